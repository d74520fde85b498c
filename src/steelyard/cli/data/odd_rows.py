"""`steelyard data table detect`: rows that are odd, and the columns that make them so."""

import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cyclopts

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.output import Switch, print_report
from steelyard.files import folder_beside
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.data.anomalies import DetectedTable, DetectOptions

__all__ = ["detect"]

_SHOWN = 20


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OddOptions:
    """How odd rows are found.

    Args:
        method: isolation forest; distance from the middle in the scale of a shrunk covariance; what
            the main components do not explain; local outlier factor in a sample of the rows
            (neighbours); or half-space trees, by the rows before (stream).
        share: share of rows that are called odd.
        leave_out: columns that do not count, such as keys, separated by commas.
        reduce: fewer features, such as pca:16 or random:64.
        trees: trees of the forest.
        sample: rows of each tree.
        memory: most bytes that the first pass may take, such as 200MB.
        seed: seed of what is drawn.
    """

    method: Literal["forest", "distance", "components", "neighbours", "stream"] = "forest"
    share: float = 0.01
    leave_out: str = ""
    reduce: str = ""
    trees: int = 100
    sample: int = 256
    memory: str = ""
    seed: int = 0

    def given(self) -> "DetectOptions":
        """Return the options as the library takes them."""
        from steelyard.data.anomalies import DetectOptions

        return DetectOptions(
            method=self.method,
            share=self.share,
            leave_out=names_of(self.leave_out),
            reduce=self.reduce,
            trees=self.trees,
            sample=self.sample,
            memory=self.memory,
            seed=self.seed,
        )


def detect(
    *sources: Sources,
    out: Path | None = None,
    options: OddOptions | None = None,
    types: str = "",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find the rows that are unlike the others, and say which columns make them so.

    The table is read twice and may be larger than memory. Columns count in standard deviations,
    frequent values of text as yes and no.

    Example: steelyard data table detect 'sales/*.csv' --leave-out id --out odd.parquet

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: file for the score of each row, whether it is odd and why, in the order of the rows:
            .parquet, .csv, .jsonl or .arrow.
        options: how odd rows are found.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    given = (options or OddOptions()).given()
    table = scanned(sources, kinds_of(types))
    import pyarrow as pa

    from steelyard.data.anomalies import detect_table
    from steelyard.data.table.writing import checked_format, write_file

    if out is not None:
        checked_format(out)
    with progress("detect", total=3.0, quiet=json) as advance, _folder(out) as folder:
        stages = {"columns": 0.0, "rows": 1.0, "scores": 2.0}
        found = detect_table(
            table,
            given,
            Path(folder) / "rows",
            done=lambda what, share: advance(stages[what] + min(share, 1.0), what),
        )
    if out is not None:
        schema = pa.schema([("score", pa.float32()), ("odd", pa.bool_()), ("why", pa.string())])
        write_file(out, schema, found.batches())
    told = f"{len(found.scores):,} rows, {given.method}" + ("" if out is None else f"; {out}")
    print_report(
        Report("Odd rows", told, _sections(found)), json=json, html=report, values=_values(found)
    )


def _folder(out: Path | None) -> AbstractContextManager[str | Path]:
    """Return a folder for the rows: beside the file, where one is wanted, as it may be large."""
    return tempfile.TemporaryDirectory() if out is None else folder_beside(out)


def _sections(found: "DetectedTable") -> list[Section]:
    """Return the page of odd rows."""
    facts = [
        ("odd rows", f"{found.count:,} with scores above {found.threshold:.4g}", ""),
        ("rows", f"{len(found.scores):,}", ""),
    ]
    rows: list[list[Cell]] = [[row.place, row.score, row.told] for row in found.odd[:_SHOWN]]
    shares: list[list[Cell]] = [
        [name, share] for name, share in found.columns[:_SHOWN] if share > 0
    ]
    odd = Table([Column("row"), Column("score"), Column("columns that make it so")], rows)
    by_column = Table([Column("column"), Column("share of the blame")], shares)
    return [
        Section("Found", [Facts(facts), *(Text(line) for line in found.warnings)]),
        Section("The oddest", [odd]),
        Section("Columns", [by_column]),
    ]


def _values(found: "DetectedTable") -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "rows": len(found.scores),
        "odd": found.count,
        "threshold": found.threshold,
        "oddest": [
            {
                "row": row.place,
                "score": row.score,
                "columns": [
                    {"column": name, "share": share, "value": value}
                    for name, share, value in row.reasons
                ],
            }
            for row in found.odd
        ],
        "columns": dict(found.columns),
        "warnings": found.warnings,
    }
