"""The page of a profile: columns, problems, rows set aside, and what the pass took."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.data.table import ColumnProfile, DataTable, Folded, Quarantine, TableProfile

__all__ = ["profile_page", "profile_values", "quarantine_table", "told_files"]

_SHOWN_BAD = 10


def profile_page(
    table: "DataTable", folded: "Folded", took_s: float, costs: Sequence[Section]
) -> Report:
    """Make the page.

    Args:
        table: what was profiled.
        folded: what the pass found.
        took_s: its time.
        costs: sections of forecast and prices.

    Returns:
        The page.
    """
    found: TableProfile = folded.results["profile"]
    quarantine = folded.quarantine
    facts = Facts(
        [
            ("rows", f"{found.rows:,}", ""),
            ("set aside", f"{quarantine.total:,}", ""),
            ("distinct rows", f"about {found.distinct_rows:,.0f}", ""),
            ("files", f"{len(table.files):,}, {pretty(table.num_bytes, 'byte')}", ""),
            ("rows per second", f"{(found.rows + quarantine.total) / max(took_s, 1e-9):,.0f}", ""),
        ]
    )
    problems = [f"{path} was left out: {why}" for path, why in table.unreadable.items()]
    problems += [*table.drift, *found.problems()]
    sections = [
        Section("Table", [facts]),
        Section("Columns", [_columns(found)]),
        Section("Problems", [Text(line) for line in problems] or [Text("none")]),
    ]
    if quarantine.total:
        sections.append(Section("Rows set aside", [quarantine_table(quarantine)]))
    return Report("Profile", "one pass over " + told_files(table), [*sections, *costs])


def told_files(table: "DataTable") -> str:
    """Return the files of a table in words."""
    first = table.files[0].path
    return first if len(table.files) == 1 else f"{first} and {len(table.files) - 1} more"


def _columns(found: "TableProfile") -> Table:
    """List the columns."""
    heads = ("missing", "distinct", "least", "5 %", "median", "95 %", "largest", "mean")
    ranks = (0, 0, 0, 1, 0, 1, 0, 1)
    columns = [
        Column(words, align="right", rank=rank) for words, rank in zip(heads, ranks, strict=True)
    ]
    rows: list[list[Cell]] = []
    for item in found.columns:
        levels = item.quantiles or (math.nan,) * 5
        numbers = (item.least, levels[0], levels[2], levels[4], item.largest, item.mean)
        is_time = item.type.startswith(("timestamp", "date"))
        rows.append(
            [
                item.name,
                item.type,
                f"{item.missing / max(found.rows, 1):.1%}",
                f"{item.distinct:,.0f}",
                *(_number(value, is_time=is_time) for value in numbers),
                _frequent(item),
            ]
        )
    note = (
        "distinct values within 1.6 % (standard error), quantiles within 1.65 % of the ranks; of "
        "text the mean is that of its length"
    )
    return Table(
        [Column("column"), Column("type", rank=1), *columns, Column("most frequent", rank=2)],
        rows,
        caption=note,
    )


def _number(value: float, *, is_time: bool) -> str:
    """Return a number for people, a time as one."""
    if math.isnan(value):
        return ""
    if is_time:
        shown = str(np.datetime64(round(value), "s")).replace("T", " ")
        return shown.removesuffix(" 00:00:00")
    return f"{value:,.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.4g}"


def _frequent(item: "ColumnProfile") -> str:
    """Return the most frequent values with their counts."""
    return ", ".join(f"{text} ({count:,})" for text, count in item.frequent[:3])


def quarantine_table(quarantine: "Quarantine") -> Table:
    """Return what was set aside, by file, field and reason, with an example of each."""
    examples = {(row.file, row.field, row.reason): row for row in reversed(quarantine.rows)}
    rows: list[list[Cell]] = []
    for key, count in quarantine.counts.most_common(_SHOWN_BAD):
        example = examples.get(key)
        told = f"row {example.row:,}: {example.value}" if example else ""
        rows.append([key[0], key[1] or "(whole row)", key[2], f"{count:,}", told])
    heads = ("file", "field", "reason")
    columns = [*map(Column, heads), Column("rows", align="right"), Column("such as")]
    return Table(columns, rows)


def profile_values(table: "DataTable", folded: "Folded", took_s: float) -> dict[str, Any]:
    """Return all figures of a profile, for programs."""
    from dataclasses import asdict

    found: TableProfile = folded.results["profile"]
    counts = folded.quarantine.counts
    return {
        "rows": found.rows,
        "distinct_rows": found.distinct_rows,
        "files": [item.path for item in table.files],
        "unreadable": dict(table.unreadable),
        "drift": list(table.drift),
        "num_bytes": table.num_bytes,
        "seconds": took_s,
        "columns": [_plain(asdict(item)) for item in found.columns],
        "problems": found.problems(),
        "quarantine": {
            "rows": folded.quarantine.total,
            "counts": [
                {"file": file, "field": field, "reason": reason, "rows": count}
                for (file, field, reason), count in counts.items()
            ],
            "examples": [row._asdict() for row in folded.quarantine.rows[:100]],
        },
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values without NaN, which JSON lacks."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }
