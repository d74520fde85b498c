"""`steelyard data table drift`: how two tables differ, by their sketches."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cli.output import Switch, print_report
from steelyard.errors import DataError
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.data.table.drift import ColumnDrift, TableDrift
    from steelyard.data.table.sketch_file import TableSketch

__all__ = ["drift"]


def drift(
    before: str,
    after: str,
    /,
    *,
    stale: Switch = False,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Compare two tables by their sketches: no data are read.

    Example: steelyard data table drift march.sketch april.sketch

    Sketches are written by `steelyard data table profile FILES --sketch FILE`. Files, patterns and
    folders may stand for either of them; they are profiled first. A sketch whose files have changed
    since is refused.

    Args:
        before: sketch of the table to compare with, or files.
        after: sketch of the table that may have changed, or files.
        stale: compare sketches even if their files have changed since, as files that are written
            over each month have.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    from steelyard.data.table.drift import compare_tables

    one, other = (_opened(given, stale=stale) for given in (before, after))
    found = compare_tables(one, other)
    page = _page(found, before, after)
    print_report(page, json=json, html=report, values=_values(found))


def _opened(given: str, *, stale: bool) -> "TableSketch":
    """Return the sketch of a file of sketches, or that of files that are profiled now."""
    from steelyard.data.table import DataTable, ProfileFold
    from steelyard.data.table.sketch_file import TableSketch

    if not given.endswith(".sketch"):
        table = DataTable.scan(given)
        return TableSketch.of(table, table.fold(ProfileFold()))
    found = TableSketch.open(Path(given))
    if not stale and (changed := found.stale()):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise DataError(
            f"{given} is stale: {changed[0]}{more} changed since it was made",
            hint="profile the files again with --sketch, or compare what was with --stale",
        )
    return found


def _page(found: "TableDrift", before: str, after: str) -> Report:
    """Make the page."""
    findings = found.findings()
    facts = Facts(
        [
            ("rows before", f"{found.rows[0]:,}", ""),
            ("rows after", f"{found.rows[1]:,}", ""),
            ("columns of both", f"{len(found.columns):,}", ""),
        ]
    )
    return Report(
        "Drift",
        f"{before} and {after}",
        [
            Section("Tables", [facts]),
            Section("Differences", [Text(line) for line in findings] or [Text("none")]),
            Section("Columns", [_columns(found.columns)]),
        ],
    )


def _columns(columns: "tuple[ColumnDrift, ...]") -> Table:
    """List the columns, those that differ most first."""
    heads = ("missing before", "missing after", "distinct before", "distinct after", "PSI", "KS")
    ranks = (1, 1, 1, 1, 0, 0)
    rows: list[list[Cell]] = []
    for item in sorted(columns, key=lambda item: -(0 if math.isnan(item.psi) else item.psi)):
        numbers = [f"{share:.1%}" for share in item.missing]
        numbers += [f"{count:,.0f}" for count in item.distinct]
        numbers += ["" if math.isnan(value) else f"{value:.3f}" for value in (item.psi, item.ks)]
        rows.append([item.name, " to ".join(dict.fromkeys(item.types)), *numbers])
    return Table(
        [
            Column("column"),
            Column("type", rank=1),
            *(
                Column(head, align="right", rank=rank)
                for head, rank in zip(heads, ranks, strict=True)
            ),
        ],
        rows,
        caption=(
            "PSI: population stability index over ten bins or the most frequent texts; under 0.1 "
            "little, over 0.25 much. KS: largest difference of shares up to a value, within 3.3 %"
        ),
    )


def _values(found: "TableDrift") -> dict[str, Any]:
    """Return all figures, for programs."""
    columns = [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(item).items()
        }
        for item in found.columns
    ]
    return {
        "rows": list(found.rows),
        "lost": list(found.lost),
        "new": list(found.new),
        "columns": columns,
        "findings": found.findings(),
    }
