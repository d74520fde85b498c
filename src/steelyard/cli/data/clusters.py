"""`steelyard data table cluster` and `reduce`: rows in clusters, and in fewer columns."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cyclopts
import numpy as np

from steelyard.cli.data.scanned import Sources, kinds_of, names_of, scanned
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.progress import progress
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.data.clustering import ClusteredTable, ClusterOptions

__all__ = ["cluster", "reduce"]

_SHOWN, _COLUMNS_SHOWN, _ROUNDING = 30, 3, 1e-6


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """How rows are clustered.

    Args:
        method: kmeans around means, mixture of normal distributions, density for clusters of any
            form and rows that are in none, or birch around means of small clusters that one pass
            over the rows finds.
        clusters: how many; of density unused.
        leave_out: columns that do not count, such as keys, separated by commas.
        reduce: fewer features, such as pca:16 or random:64.
        radius: distance within which rows are neighbours, in standard deviations of a column; of
            density; the one within which nine of ten rows have enough when left out.
        least_rows: neighbours that make a row part of a cluster's core; of density.
        memory: most bytes that the first pass may take, such as 200MB.
        seed: seed of what is drawn.
    """

    method: Literal["kmeans", "mixture", "density", "birch"] = "kmeans"
    clusters: int = 8
    leave_out: str = ""
    reduce: str = ""
    radius: float | None = None
    least_rows: int = 10
    memory: str = ""
    seed: int = 0

    def given(self) -> "ClusterOptions":
        """Return the options as the library takes them."""
        from steelyard.data.clustering import ClusterOptions

        return ClusterOptions(
            method=self.method,
            clusters=self.clusters,
            leave_out=names_of(self.leave_out),
            reduce=self.reduce,
            radius=self.radius,
            least_rows=self.least_rows,
            memory=self.memory,
            seed=self.seed,
        )


def cluster(
    *sources: Sources,
    out: Path,
    model: Path | None = None,
    options: GroupOptions | None = None,
    types: str = "",
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Put rows in clusters, and say what makes each of them.

    The table is read twice and may be larger than memory. Columns count in standard deviations,
    frequent values of text as yes and no.

    Example: steelyard data table cluster 'sales/*.csv' --clusters 6 --leave-out id --out of.parquet

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        out: file for the cluster of each row, in the order of the rows: .parquet, .csv, .jsonl or
            .arrow. Beside it stands the distance to the center, the share of the likeliest part of
            a mixture, or 1 for core rows.
        model: file that keeps the clusters: `steelyard data table predict` puts other rows in them.
        options: how rows are clustered.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of tables.
        report: HTML file for the page.
    """
    given = (options or GroupOptions()).given()
    table = scanned(sources, kinds_of(types))
    import pyarrow as pa

    from steelyard.data.clustering import cluster_table
    from steelyard.data.table.writing import checked_format, write_file

    checked_format(out)
    with progress("cluster", total=3.0, quiet=json) as advance:
        stages = {"columns": 0.0, "rows": 1.0, "clusters": 2.0}
        found = cluster_table(
            table,
            given,
            out.with_name(out.name + ".work"),
            done=lambda what, share: advance(stages[what] + min(share, 1.0), what),
        )
    write_file(
        out, pa.schema([("cluster", pa.int64()), ("strength", pa.float32())]), found.batches()
    )
    if model is not None:
        found.model.save(model)
    page = Report(
        "Clusters", f"{len(found.labels):,} rows, {given.method}; {out}", _sections(found)
    )
    print_report(page, json=json, html=report, values=_values(found))
    if model is not None and not json:
        say_next("data", "table", "predict", model, *sources, "--out", "clusters.parquet")


def _sections(found: "ClusteredTable") -> list[Section]:
    """Return the page of clusters."""
    facts = [
        ("clusters", f"{len(found.sizes):,}", ""),
        ("silhouette", f"{found.silhouette:.3f}", ""),
        ("Davies-Bouldin", f"{found.davies_bouldin:.3f}", ""),
        *((name, f"{value:,.4g}", "") for name, value in found.facts.items()),
    ]
    rows: list[list[Cell]] = []
    for place, size in enumerate(found.sizes.tolist()):
        rows.append([place, size, size / len(found.labels), _told(found, place)])
    columns = [Column("cluster"), Column("rows"), Column("share"), Column("what is unlike others")]
    table = Table(
        columns,
        rows[:_SHOWN],
        "columns whose mean is farthest from that of all rows, in their standard deviations",
    )
    told = (
        "Silhouette of 2,000 rows: from -1 to 1, 0 is no structure. Davies-Bouldin: less is better."
    )
    notes = [Text(line) for line in (told, *found.warnings)]
    return [Section("Found", [Facts(facts), *notes]), Section("Clusters", [table])]


def _told(found: "ClusteredTable", place: int) -> str:
    """Return the columns that make a cluster, in words."""
    spreads, middles = found.spreads[place], found.middles[place].copy()
    # Means come from standardized columns: what is left of rounding is no mean.
    middles[np.abs(middles) < _ROUNDING * np.abs(found.middles).max(axis=0)] = 0.0
    chosen = np.argsort(-spreads, kind="stable")[:_COLUMNS_SHOWN].tolist()
    return ", ".join(
        found.columns[at]
        + ("" if np.isnan(middles[at]) else f" = {middles[at]:.4g}")
        + f" ({spreads[at]:.1f})"
        for at in chosen
    )


def _values(found: "ClusteredTable") -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "rows": len(found.labels),
        "sizes": found.sizes.tolist(),
        "silhouette": _known(found.silhouette),
        "davies_bouldin": _known(found.davies_bouldin),
        "facts": found.facts,
        "columns": found.columns,
        "middles": [[_known(value) for value in row] for row in found.middles.tolist()],
        "spreads": found.spreads.tolist(),
        "warnings": found.warnings,
    }


def _known(value: float) -> float | None:
    """Return a number, None where there is none."""
    return None if np.isnan(value) else value


def reduce(
    *sources: Sources,
    to: str,
    out: Path,
    leave_out: str = "",
    memory: str = "",
    seed: int = 0,
    types: str = "",
    json: Switch = False,
) -> None:
    """Write rows in fewer columns: principal components, or a random projection.

    Columns count in standard deviations, frequent values of text as yes and no. Components come
    from covariances that are added up in one pass, of more than 5,000 features from four passes
    with random directions.

    Example: steelyard data table reduce 'sales/*.csv' --to pca:8 --leave-out id --out small.parquet

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        to: pca or random, and how many columns, such as pca:8.
        out: file for the columns, in the order of the rows: .parquet, .csv, .jsonl or .arrow.
        leave_out: columns that do not count, such as keys, separated by commas.
        memory: most bytes that the first pass may take, such as 200MB.
        seed: seed of random directions.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of a table.
    """
    if not to:
        raise ConfigError("--to is empty", hint="give pca or random and a number: pca:8")
    table = scanned(sources, kinds_of(types))
    from steelyard.data.features import PrincipalComponents, write_reduced
    from steelyard.data.table.writing import checked_format

    checked_format(out)
    with progress("reduce", total=2.0, quiet=json) as advance:
        stages = {"columns": 0.0, "rows": 1.0}
        found = write_reduced(
            table,
            to,
            out,
            leave_out=names_of(leave_out),
            memory=memory,
            seed=seed,
            done=lambda what, share: advance(stages[what] + min(share, 1.0), what),
        )
    facts = [("rows", f"{found.rows:,}", ""), ("columns", f"{found.width} to {found.count}", "")]
    values: dict[str, Any] = {"rows": found.rows, "features": found.width, "columns": found.count}
    if isinstance(found.reducer, PrincipalComponents):
        explained = found.reducer.explained
        facts.append(("variance explained", f"{explained:.1%}", ""))
        values |= {"explained": explained, "variances": found.reducer.variances.tolist()}
    values["warnings"] = found.warnings
    lines = [Text(line) for line in found.warnings]
    page = Report("Fewer columns", str(out), [Section("Written", [Facts(facts), *lines])])
    print_report(page, json=json, values=values)
