"""Lakes with known lineage: copies, projections, filters, and tables that only look alike."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.arrow import compute
from steelyard.errors import ConfigError
from steelyard.files import replace_folder, write_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Derivation", "SyntheticLake", "base_tables", "synthesize"]

_CHANGED = 0.01
"""Share of the rows that the decoy of changed rows changes."""
_WORDS = (
    "account",
    "amount",
    "batch",
    "channel",
    "city",
    "client",
    "code",
    "day",
    "depot",
    "device",
    "error",
    "grade",
    "hour",
    "item",
    "level",
    "line",
    "load",
    "model",
    "node",
    "order",
    "phase",
    "plant",
    "price",
    "queue",
    "rate",
    "reason",
    "region",
    "route",
    "score",
    "shift",
    "site",
    "source",
    "state",
    "stock",
    "store",
    "target",
    "team",
    "type",
    "unit",
    "user",
    "valve",
    "zone",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """How a table was made.

    Attributes:
        table: its name.
        parent: table that it was made from; empty for a base table.
        operation: what was done.
        is_contained: whether the table lies in its parent by construction.
    """

    table: str
    parent: str
    operation: str
    is_contained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticLake:
    """Tables in memory with their lineage.

    Attributes:
        tables: tables by their names.
        lineage: how each was made, in the order of the names.
        seed: seed of the choices.
    """

    tables: "dict[str, pa.Table]"
    lineage: tuple[Derivation, ...]
    seed: int

    def write(self, folder: Path) -> None:
        """Write a Parquet file for each table, and `_lineage.json`, which is no table.

        Args:
            folder: missing or empty; all files appear in it at once.

        Raises:
            ConfigError: there is something in it.
            StoreError: it cannot be put in its place.
        """
        from pyarrow import parquet

        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} is not empty", hint="give an empty folder, or a new one")
        beside = folder.absolute().with_name(f".{folder.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for name, table in self.tables.items():
            parquet.write_table(table, beside / f"{name}.parquet", compression="zstd")
        write_json(beside / "_lineage.json", {"seed": self.seed, "lineage": self.lineage})
        replace_folder(beside, folder.absolute())


def synthesize(
    bases: "Sequence[pa.Table]", count: int, seed: int, *, decoys: float = 0.4
) -> SyntheticLake:
    """Derive tables from base tables.

    Half of the derived tables are made from derived ones. Those that only look alike are a column
    shuffled (its least and largest values hold), numbers shifted, one row in a hundred changed, and
    a column renamed.

    Args:
        bases: tables, each with a column at least.
        count: tables of the lake, the bases among them.
        seed: seed of the choices.
        decoys: share of the derived tables that only look alike.

    Returns:
        The lake.

    Raises:
        ConfigError: there is no base, or fewer tables than bases are wanted.

    Source: R2D2 (arXiv 2312.13427), lakes made by SELECT, WHERE and projection from open tables.
    """
    if not bases or count < len(bases):
        raise ConfigError(
            f"{count} tables of {len(bases)} bases", hint="give a base or more, and as many tables"
        )
    rng = np.random.default_rng(seed)
    width = len(str(count - 1))
    made: list[tuple[str, pa.Table]] = []
    lineage: list[Derivation] = []
    open_places: list[int] = []
    for place in range(count):
        name = f"t{place:0{width}d}"
        if place < len(bases):
            table, step = (
                bases[place],
                Derivation(table=name, parent="", operation="base", is_contained=False),
            )
        else:
            source = int(
                rng.integers(len(bases)) if rng.random() < 0.5 else rng.choice(open_places)
            )
            parent, given = made[source]
            kinds = _DECOYS if rng.random() < decoys else _DERIVED
            operation = list(kinds)[int(rng.integers(len(kinds)))]
            table = kinds[operation](given, rng)
            step = Derivation(
                table=name,
                parent=parent,
                operation=operation,
                is_contained=operation in _DERIVED,
            )
        if step.operation not in _DECOYS:
            open_places.append(place)
        made.append((name, table))
        lineage.append(step)
    return SyntheticLake(tables=dict(made), lineage=tuple(lineage), seed=seed)


def base_tables(count: int, rows: int, seed: int) -> "list[pa.Table]":
    """Make tables of unlike schemas: a number of each row, words, whole and real numbers, days.

    Args:
        count: tables.
        rows: rows of each.
        seed: seed of the values.

    Returns:
        Tables of 5 to 12 columns; two in ten of the columns miss some values.
    """
    rng = np.random.default_rng(seed)
    return [_base(place, rows, rng) for place in range(count)]


def _base(place: int, rows: int, rng: np.random.Generator) -> "pa.Table":
    import pyarrow as pa

    columns: dict[str, pa.Array] = {f"row_{place}": pa.array(np.arange(rows))}
    names = rng.choice(_WORDS, int(rng.integers(4, 12)), replace=False)
    for kind, name in enumerate(names):
        mask = rng.random(rows) < (0.03 if rng.random() < 0.2 else 0.0)
        if kind % 4 == 0:
            values = np.array(_WORDS)[rng.integers(0, int(rng.integers(3, 40)), rows)]
        elif kind % 4 == 1:
            values = rng.integers(0, int(rng.integers(5, 5000)), rows)
        elif kind % 4 == 2:
            values = rng.lognormal(2, 1, rows).round(3)
        else:
            values = np.datetime64("2026-01-01", "D") + rng.integers(0, 90, rows)
        # Tables of unlike origin share a word here and there; the type tells them apart.
        columns[f"{name}_{place % 97}"] = pa.array(values, mask=mask)
    return pa.table(columns)


def _project(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    names = table.schema.names
    most = max(len(names) - 1, 1)
    count = int(rng.integers(min(2, most), most + 1))
    kept = np.sort(rng.choice(len(names), count, replace=False))
    return table.select([names[place] for place in kept])


def _range(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    """Keep the rows between two values of a column of numbers, else a run of rows."""
    pc = compute()
    numbers = _numbers(table)
    if not numbers or not len(table):
        first = int(rng.integers(0, len(table) // 2 + 1))
        return table.slice(first, len(table) // 3)
    name = str(rng.choice(numbers))
    low, high = np.sort(rng.choice(pc.drop_null(table[name]).to_numpy(), 2))
    inside = pc.and_(pc.greater_equal(table[name], low), pc.less_equal(table[name], high))
    return table.filter(inside)


def _equal(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    """Keep the rows with one value of a column."""
    name = str(rng.choice(table.schema.names))
    value = table[name][int(rng.integers(len(table)))] if len(table) else None
    if value is None or not value.is_valid:
        return table
    return table.filter(compute().equal(table[name], value))


def _sample(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    count = max(len(table) // 5, min(len(table), 1))
    return table.take(np.sort(rng.choice(len(table), count, replace=False)))


def _duplicate(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    return table.take(rng.permutation(len(table)))


def _slices(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    """Put the last part of a table before the first, and leave some rows between them out."""
    import pyarrow as pa

    cut = int(rng.integers(1, len(table) // 2 + 2))
    return pa.concat_tables([table.slice(len(table) - len(table) // 4), table.slice(0, cut)])


def _shuffled_column(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    """Hand the values of a column to other rows, so that bounds and counts hold."""
    place = int(rng.integers(table.num_columns))
    values = table.column(place).take(rng.permutation(len(table)))
    return table.set_column(place, table.schema.field(place), values)


def _shifted(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    """Add to a column of numbers more than it spans."""
    numbers = _numbers(table)
    if not numbers:
        return _renamed(table, rng)
    pc = compute()
    name = str(rng.choice(numbers))
    ends = pc.min_max(table[name])
    step = 1 + (ends["max"].as_py() or 0) - (ends["min"].as_py() or 0)
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pc.add(table[name], step))


def _changed_rows(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    """Change a number inside the column's bounds, in one row of a hundred and in one at least."""
    import pyarrow as pa

    numbers = _numbers(table)
    if not numbers or len(table) < 2:
        return _renamed(table, rng)
    name = str(rng.choice(numbers))
    place = table.schema.get_field_index(name)
    values = table[name].to_pylist()
    count = max(round(_CHANGED * len(table)), 1)
    for row in rng.choice(len(table), count, replace=False):
        values[row] = values[int(rng.integers(len(table)))]
    return table.set_column(place, table.schema.field(place), pa.array(values, table[name].type))


def _renamed(table: "pa.Table", rng: np.random.Generator) -> "pa.Table":
    names = list(table.schema.names)
    place = int(rng.integers(len(names)))
    names[place] += "_new"
    return table.rename_columns(names)


def _numbers(table: "pa.Table") -> list[str]:
    """Return the columns of numbers that hold two values at least."""
    import pyarrow as pa

    return [
        field.name
        for field in table.schema
        if (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        and len(table) - table[field.name].null_count > 1
    ]


_Step = Callable[..., "pa.Table"]
_DERIVED: dict[str, _Step] = {
    "project": _project,
    "filter by a range": _range,
    "filter by a value": _equal,
    "sample": _sample,
    "shuffled duplicate": _duplicate,
    "union of slices": _slices,
}
"""Operations whose result lies in what it was made from."""
_DECOYS: dict[str, _Step] = {
    "shuffled column": _shuffled_column,
    "shifted column": _shifted,
    "changed rows": _changed_rows,
    "renamed column": _renamed,
}
"""Operations whose result, but for chance, does not."""
