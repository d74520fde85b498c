"""What was found in parts of a table: states of folds, as arrays too, merged in a fixed tree."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.pack import Pack, write_pack
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.fold import Fold
from steelyard.data.table.quarantine import BadRow, Quarantine

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FoldedPart", "merge_parts", "packed_part", "unpacked_part"]

_STATE, _BAD = "state", "quarantine"


@dataclass(slots=True)
class FoldedPart:
    """States of some parts of a table.

    Attributes:
        states: states in the order of the folds.
        rows: rows that were folded.
        quarantine: rows that were set aside.
    """

    states: list[Any]
    rows: int = 0
    quarantine: Quarantine = field(default_factory=Quarantine)

    @classmethod
    def empty(cls, schema: "pa.Schema", folds: Sequence[Fold[Any]]) -> "FoldedPart":
        """Return the states before any row."""
        return cls([fold.init(schema) for fold in folds])

    def merge(self, later: "FoldedPart", folds: Sequence[Fold[Any]]) -> None:
        """Take in what was found in later rows."""
        for fold, state, other in zip(folds, self.states, later.states, strict=True):
            fold.merge(state, other)
        self.rows += later.rows
        self.quarantine.merge(later.quarantine)


def packed_part(part: FoldedPart, folds: Sequence[Fold[Any]]) -> dict[str, np.ndarray]:
    """Return a part as arrays by name, which a pack or another process can take."""
    quarantine = part.quarantine
    bad = {
        "rows": [list(row) for row in quarantine.rows],
        "counts": [[*key, count] for key, count in quarantine.counts.items()],
        "reads": [quarantine.reads.num_bytes, quarantine.reads.requests],
    }
    found = {
        "rows": np.array([part.rows]),
        _BAD: np.frombuffer(json.dumps(bad).encode(), np.uint8),
    }
    for place, (fold, state) in enumerate(zip(folds, part.states, strict=True)):
        for name, values in fold.sections(state).items():
            found[f"{_STATE}/{place}/{name}"] = values
    return found


def unpacked_part(
    sections: Mapping[str, np.ndarray], schema: "pa.Schema", folds: Sequence[Fold[Any]]
) -> FoldedPart:
    """Return the part of such arrays."""
    quarantine = Quarantine()
    bad = json.loads(sections[_BAD].tobytes())
    quarantine.rows = [BadRow(*row) for row in bad["rows"]]
    quarantine.counts.update({(file, field, why): n for file, field, why, n in bad["counts"]})
    quarantine.reads = ReadCounts(*bad["reads"])
    own: list[dict[str, np.ndarray]] = [{} for _ in folds]
    for name, values in sections.items():
        kind, _, rest = name.partition("/")
        if kind == _STATE:
            place, _, key = rest.partition("/")
            own[int(place)][key] = values
    states = [fold.of(schema, arrays) for fold, arrays in zip(folds, own, strict=True)]
    return FoldedPart(states, int(sections["rows"][0]), quarantine)


def merge_parts(
    parts: Iterator[FoldedPart],
    schema: "pa.Schema",
    folds: Sequence[Fold[Any]],
    *,
    shelf: Path | None = None,
) -> FoldedPart:
    """Merge parts as a binary counter adds: equal runs of neighbours, few of them kept at once.

    Args:
        parts: parts in the order of their rows.
        schema: schema of the table.
        folds: whose states they hold.
        shelf: folder for runs that wait for a neighbour; None keeps them in memory.

    Returns:
        The whole.
    """
    runs: list[tuple[int, FoldedPart | Path]] = []

    def fetched(held: FoldedPart | Path) -> FoldedPart:
        if isinstance(held, FoldedPart):
            return held
        part = unpacked_part(Pack.open(held).sections(), schema, folds)
        held.unlink()
        return part

    for part in parts:
        length, run = 1, part
        while runs and runs[-1][0] == length:
            earlier = fetched(runs.pop()[1])
            earlier.merge(run, folds)
            length, run = 2 * length, earlier
        held: FoldedPart | Path = run
        if shelf is not None:
            held = shelf / f"run-{length}.pack"
            write_pack(held, packed_part(run, folds))
        runs.append((length, held))
    if not runs:
        return FoldedPart.empty(schema, folds)
    whole = fetched(runs.pop()[1])
    while runs:
        earlier = fetched(runs.pop()[1])
        earlier.merge(whole, folds)
        whole = earlier
    return whole
