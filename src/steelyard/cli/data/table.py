"""`steelyard data table`: what tables in files hold, in one pass."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
import numpy as np

from steelyard.cli.output import Switch, print_report
from steelyard.errors import BackendError, ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.data.table import ColumnProfile, DataTable, Folded, Quarantine, TableProfile

__all__ = ["app"]

app = cyclopts.App(name="table", help="Look at tables in files: CSV, JSON lines, Parquet, Arrow.")
_Sources = Annotated[
    str,
    cyclopts.Parameter(help="Files, patterns such as 'sales/*.csv', and folders."),
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""
_SHOWN_BAD = 10


@app.command
def profile(
    *sources: _Sources,
    types: str = "",
    workers: int = 1,
    journal: Path | None = None,
    quarantine: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Profile every column in one pass: missing, distinct, quantiles, frequent values, problems.

    Example: steelyard data table profile 'sales/*.csv' --report profile.html

    Args:
        *sources: files, patterns such as 'sales/*.csv', and folders.
        types: kinds of columns of text files, in place of what their values look like, such as
            "id=text, price=number".
        workers: processes that read parts of the files.
        journal: folder that keeps finished parts; after a kill the same line goes on there.
        quarantine: CSV file for the rows that were set aside, the first thousand of them.
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    if not sources:
        raise ConfigError(
            "data table profile needs files", hint="steelyard data table profile 'sales/*.csv'"
        )
    if workers < 1:
        raise ConfigError(f"--workers is {workers}, but must be 1 or more")
    table = _scanned(sources, _kinds(types))
    began_s = time.perf_counter()
    folded = _folded(table, workers, journal, quiet=json)
    took_s = time.perf_counter() - began_s
    if quarantine is not None:
        _write_bad(quarantine, folded.quarantine)
    page = _page(table, folded, took_s)
    print_report(page, json=json, html=report, values=_values(table, folded, took_s))


def _scanned(sources: tuple[str, ...], kinds: dict[str, str]) -> "DataTable":
    """Look at the files; the libraries that read them are an extra."""
    try:
        from steelyard.data.table import DataTable
    except ImportError as error:
        raise _without_arrow() from error
    try:
        return DataTable.scan(*sources, types=kinds)
    except ImportError as error:
        raise _without_arrow() from error


def _without_arrow() -> BackendError:
    return BackendError(
        "tables in files are read with Arrow, which is not installed",
        hint="pip install 'steelyard[data]'",
    )


def _kinds(given: str) -> dict[str, str]:
    """Return kinds by column from "a=text, b=number"."""
    found = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, is_given, kind = part.rpartition("=")
        if not is_given:
            raise ConfigError(
                f"--types has {part!r}, but each part is a column and its kind",
                hint='such as --types "id=text, price=number"',
            )
        found[name.strip()] = kind.strip()
    return found


def _folded(table: "DataTable", workers: int, journal: Path | None, *, quiet: bool) -> "Folded":
    """Profile the table with a bar of the bytes read."""
    from steelyard.data.table import ProfileFold

    total = float(sum(part.num_bytes for part in table.partitions)) or 1.0
    read = 0
    with progress("profile", total=total, quiet=quiet) as advance:

        def done(num_bytes: int) -> None:
            nonlocal read
            read += num_bytes
            advance(float(read), f"{pretty(read, 'byte')} of {pretty(total, 'byte')}")

        return table.fold(ProfileFold(), workers=workers, journal=journal, done=done)


def _write_bad(path: Path, quarantine: "Quarantine") -> None:
    """Write the rows that were set aside."""
    import csv

    from steelyard.files import atomic_path

    with atomic_path(path) as beside, beside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "row", "field", "value", "reason"])
        writer.writerows(quarantine.rows)


def _page(table: "DataTable", folded: "Folded", took_s: float) -> Report:
    """Make the page."""
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
    problems += found.problems()
    sections = [
        Section("Table", [facts]),
        Section("Columns", [_columns(found)]),
        Section("Problems", [Text(line) for line in problems] or [Text("none")]),
    ]
    if quarantine.total:
        sections.append(Section("Rows set aside", [_bad(quarantine)]))
    return Report("Profile", "one pass over " + _told(table), sections)


def _told(table: "DataTable") -> str:
    """Return the files in words."""
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


def _bad(quarantine: "Quarantine") -> Table:
    """List what was set aside, by file, field and reason, with an example of each."""
    examples = {(row.file, row.field, row.reason): row for row in reversed(quarantine.rows)}
    rows: list[list[Cell]] = []
    for key, count in quarantine.counts.most_common(_SHOWN_BAD):
        example = examples.get(key)
        told = f"row {example.row:,}: {example.value}" if example else ""
        rows.append([key[0], key[1] or "(whole row)", key[2], f"{count:,}", told])
    heads = ("file", "field", "reason")
    columns = [*map(Column, heads), Column("rows", align="right"), Column("such as")]
    return Table(columns, rows)


def _values(table: "DataTable", folded: "Folded", took_s: float) -> dict[str, Any]:
    """Return all figures, for programs."""
    from dataclasses import asdict

    found: TableProfile = folded.results["profile"]
    counts = folded.quarantine.counts
    return {
        "rows": found.rows,
        "distinct_rows": found.distinct_rows,
        "files": [item.path for item in table.files],
        "unreadable": dict(table.unreadable),
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
