"""Some values of each column, chosen alike in all tables, so that pairs are ruled out unread."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.hashing import column_hashes
from steelyard.data.lake.tables import LakeTable
from steelyard.data.pack import Pack, write_pack
from steelyard.data.stages import hash_of
from steelyard.errors import DataError

__all__ = ["ContainmentSketch", "can_contain", "load_sketches", "sketch_table", "write_sketches"]

_KEPT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainmentSketch:
    """The smallest hashes of the different values of each column.

    Attributes:
        fingerprint: fingerprint of the table that it was made of.
        hashes: hashes of each column, rising, at most 128.
        complete: columns of which these are all values.
    """

    fingerprint: str
    hashes: Mapping[str, NDArray[np.uint64]]
    complete: frozenset[str]


def sketch_table(table: LakeTable) -> ContainmentSketch:
    """Read a table once.

    Args:
        table: the table.

    Returns:
        Its sketch.

    Raises:
        DataError: it cannot be read.
    """
    names = [column.name for column in table.columns]
    found = {name: np.zeros(0, np.uint64) for name in names}
    for batch in table.read(names):
        for name, hashes in column_hashes(batch, names).items():
            # One more than is kept tells whether there are others.
            found[name] = np.unique(np.concatenate([found[name], hashes]))[: _KEPT + 1]
    return ContainmentSketch(
        fingerprint=table.fingerprint,
        hashes={name: hashes[:_KEPT] for name, hashes in found.items()},
        complete=frozenset(name for name, hashes in found.items() if len(hashes) <= _KEPT),
    )


def can_contain(parent: ContainmentSketch, child: ContainmentSketch) -> bool:
    """Return whether a table may contain another, as far as sketches say.

    Both hold the smallest hashes of their values. Those of the child that are no larger than the
    parent's last one would be among the parent's, were the child contained; so a pair that holds
    is never ruled out.

    Args:
        parent: sketch of the table that may contain the other.
        child: sketch of the other; its columns are among the parent's.

    Returns:
        False only where a value of the child is not in the parent.

    Source: coordinated bottom-k samples (Cohen & Kaplan 2007).
    """
    for name, own in child.hashes.items():
        others = parent.hashes[name]
        known = own if name in parent.complete else own[own <= others[-1]]
        if not np.isin(known, others).all():
            return False
    return True


def _path(folder: Path, table: LakeTable) -> Path:
    return folder / f"{hash_of(table.name)[:16]}.sketch"


def write_sketches(tables: Iterable[LakeTable], folder: Path) -> dict[str, str]:
    """Write a sketch of each table that has none, or whose files have changed since.

    Args:
        tables: the tables.
        folder: holds a pack for each of them.

    Returns:
        Why a table could not be read, by name.

    Raises:
        CapacityError: the disk is full.
    """
    problems: dict[str, str] = {}
    listed = tuple(tables)
    known = load_sketches(listed, folder)
    for table in listed:
        if table.name in known:
            continue
        try:
            sketch = sketch_table(table)
        except DataError as error:
            problems[table.name] = str(error)
            continue
        told = {
            "fingerprint": sketch.fingerprint,
            "names": list(sketch.hashes),
            "complete": sorted(sketch.complete),
        }
        sections = {"told": np.frombuffer(json.dumps(told).encode(), np.uint8)}
        sections |= {f"{place}": own for place, own in enumerate(sketch.hashes.values())}
        write_pack(_path(folder, table), sections)
    return problems


def load_sketches(tables: Iterable[LakeTable], folder: Path) -> dict[str, ContainmentSketch]:
    """Return the sketches that speak of tables as they are now.

    Args:
        tables: the tables.
        folder: where `write_sketches` put them.

    Returns:
        Sketches by table; none for a table without one, or with a stale or damaged one.
    """
    found: dict[str, ContainmentSketch] = {}
    for table in tables:
        path = _path(folder, table)
        if not path.is_file():
            continue
        try:
            pack = Pack.open(path)
            told = json.loads(pack["told"].tobytes())
            if told["fingerprint"] == table.fingerprint:
                found[table.name] = ContainmentSketch(
                    fingerprint=table.fingerprint,
                    hashes={name: pack[f"{place}"] for place, name in enumerate(told["names"])},
                    complete=frozenset(told["complete"]),
                )
        except DataError:
            continue
    return found
