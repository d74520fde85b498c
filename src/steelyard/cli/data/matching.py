"""`steelyard data table match`: columns that say the same, joins, and rows that are one thing."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cli.data.scanned import scanned
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError, DataError
from steelyard.runs.progress import progress
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text

if TYPE_CHECKING:
    import numpy as np

    from steelyard.data.matching import ColumnMatch, EntityPairs, JoinCandidate
    from steelyard.data.table import DataTable

__all__ = ["match"]

_SHOWN = 20


def match(
    left: str,
    right: str,
    *,
    rows: Switch = False,
    columns: str = "",
    labels: Path | None = None,
    least: float = 0.5,
    many: Switch = False,
    out: Path | None = None,
    memory: str = "",
    json: Switch = False,
) -> None:
    """Find the columns of two tables that say the same, and those by which they can be joined.

    With --rows also the rows that are one thing: candidates by their letters, with a probability.

    Example: steelyard data table match customers.csv 'orders/*.csv'

    Args:
        left: files of the first table.
        right: files of the second.
        rows: look for rows that are one thing as well.
        columns: pairs of columns by which rows are compared, such as "name=title, city=town"; those
            that were found to say the same when left out.
        labels: CSV file with columns left, right and match (1 or 0) of some rows, from 1, to learn
            the score from; pairs that leave little doubt when left out.
        least: least probability of rows that are one thing.
        many: a row may be in several pairs.
        out: file for the pairs of rows: .csv, .parquet or .jsonl.
        memory: most bytes of a pass, such as 200MB.
        json: print JSON instead of tables.
    """
    from steelyard.data.matching import ValueSketchFold, find_joins, match_schemas

    if not 0 <= least <= 1:
        raise ConfigError(f"--least is {least:g}, but must be 0 to 1")
    tables = [scanned((source,), {}) for source in (left, right)]
    fold = ValueSketchFold()
    with progress("sketch", quiet=json):
        one, other = (
            table.fold(fold, memory=memory or None).results[fold.name] for table in tables
        )
    matches, joins = match_schemas(one, other), find_joins(one, other)
    sections = _sections(matches, joins)
    values: dict[str, Any] = {
        "columns": [asdict(item) for item in matches],
        "joins": [asdict(item) | {"kind": item.kind} for item in joins],
    }
    if rows:
        pairs = _pairs(columns) or _comparable(matches, tables)
        section, told = _rows(tables, pairs, labels, least, many=many, out=out, quiet=json)
        sections.append(section)
        values["rows"] = told
    print_report(
        Report("Match", f"{left} and {right}", sections), json=json, html=None, values=values
    )


def _sections(matches: "list[ColumnMatch]", joins: "list[JoinCandidate]") -> list[Section]:
    """Return the tables of columns and of joins."""
    shown: list[list[Cell]] = [
        [item.left, item.right, f"{item.score:.2f}", f"{item.names:.2f}", f"{item.values:.2f}"]
        for item in matches
    ]
    heads = [Column("left"), Column("right"), *_right("score", "names", "values")]
    joined: list[list[Cell]] = [
        [
            item.left,
            item.right,
            item.kind,
            f"{item.left_in_right:.0%}",
            f"{item.right_in_left:.0%}",
            f"{item.told_of:,}",
        ]
        for item in joins[:_SHOWN]
    ]
    join_heads = [Column("left"), Column("right"), Column("rows meet")]
    join_heads += _right("left in right", "right in left", "told of")
    return [
        Section("Columns that say the same", [_table(heads, shown)]),
        Section("Joins", [_table(join_heads, joined)]),
    ]


def _right(*names: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(name, align="right") for name in names]


def _table(heads: list[Column], rows: list[list[Cell]]) -> Block:
    """Return a table, or that there is nothing."""
    return Table(heads, rows) if rows else Text("none")


def _pairs(given: str) -> list[tuple[str, str]]:
    """Return pairs of columns from "name=title, city=town"."""
    found = []
    for part in filter(None, (part.strip() for part in given.split(","))):
        one, is_given, other = part.partition("=")
        found.append((one.strip(), other.strip() if is_given else one.strip()))
    return found


def _comparable(matches: "list[ColumnMatch]", tables: "list[DataTable]") -> list[tuple[str, str]]:
    """Return the pairs of columns by which rows can be compared."""
    found = [(item.left, item.right) for item in matches]
    if not found:
        raise DataError("no columns say the same", hint='name some, such as --columns "name=title"')
    return found


def _rows(
    tables: "list[DataTable]",
    pairs: list[tuple[str, str]],
    labels: Path | None,
    least: float,
    *,
    many: bool,
    out: Path | None,
    quiet: bool,
) -> tuple[Section, dict[str, Any]]:
    """Find rows that are one thing."""
    from steelyard.data.matching import find_pairs, fit_matches, match_entities

    with progress("compare rows", quiet=quiet):
        found = find_pairs(tables[0], tables[1], pairs)
        model = fit_matches(found, _labels(labels, found) if labels else None)
        matched = match_entities(found, model, least=least, one_to_one=not many)
    if out is not None:
        import pyarrow as pa

        from steelyard.data.table.writing import write_file

        names = ("left", "right", "score")
        kinds = (pa.int64(), pa.int64(), pa.float64())
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        plain = [asdict(item) for item in matched]
        write_file(out, schema, [pa.RecordBatch.from_pylist(plain, schema=schema)])
    shown: list[list[Cell]] = [
        [f"{item.left:,}", f"{item.right:,}", f"{item.score:.3f}"] for item in matched[:_SHOWN]
    ]
    by = ", ".join(f"{one} and {other}" for one, other in pairs)
    taught = "told" if model.is_taught else "that leave little doubt"
    lines = [
        Text(f"{len(matched):,} pairs of {len(found.pairs):,} candidates, by {by}"),
        Text(f"score learned from {model.labelled:,} pairs {taught}"),
    ]
    if found.cut:
        lines.append(Text(f"{found.cut:,} times more rows were alike than are looked at"))
    block = _table(_right("row of left", "row of right", "probability"), shown)
    told = {
        "matches": [asdict(item) for item in matched],
        "candidates": len(found.pairs),
        "by": pairs,
        "labelled": model.labelled,
        "cut": found.cut,
    }
    return Section("Rows that are one thing", [*lines, block]), told


def _labels(path: Path, found: "EntityPairs") -> "np.ndarray":
    """Return what is known of candidates."""
    import numpy as np

    table = scanned((str(path),), {})
    if missing := [name for name in ("left", "right", "match") if name not in table.schema.names]:
        raise DataError(
            f"{path} has no column {missing[0]!r}", hint="left, right and match are read"
        )
    known = {
        (row["left"], row["right"]): float(row["match"])
        for row in table.select(["left", "right", "match"]).collect()[0].to_pylist()
    }
    pairs = (found.pairs + 1).tolist()
    return np.array([known.get((one, other), np.nan) for one, other in pairs])
