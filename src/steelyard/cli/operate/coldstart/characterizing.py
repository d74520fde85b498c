"""`steelyard operate coldstart characterize`: a trace's cold starts in tables."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from steelyard.cli.output import Switch, print_report
from steelyard.operate.coldstart.characterize import LEVELS, ColdStartReport, characterize
from steelyard.operate.coldstart.fits import TimeFit
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import pretty, pretty_duration

__all__ = ["characterize_trace"]


def characterize_trace(
    # A docstring's words for it are not read: its name there has a star.
    *traces: Annotated[
        Path,
        Parameter(help="files of one schema in the order of time (CSV, gzip-packed CSV, Parquet)."),
    ],
    functions: Path | None = None,
    requests: Path | None = None,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Say how long cold starts take, which part dominates when, and which functions cause them.

    Traces in Huawei's schema of cold starts, or invocations in Azure's of 2019 or 2021.

    Example: steelyard operate coldstart characterize R2_day0.csv R2_day1.csv --functions R2.csv

    Args:
        *traces: files of one schema in the order of time (CSV, gzip-packed CSV, Parquet).
        functions: Huawei's table of runtimes and triggers by funcID.
        requests: Huawei's table of requests, for the utility of pods.
        json: print figures as JSON.
        report: HTML file for the page with pictures.
    """
    found = characterize(traces, functions=functions, requests=[requests] if requests else ())
    page = _page(found, ", ".join(path.name for path in traces))
    print_report(page, json=json, html=report, values=dataclasses.asdict(found) | _LEVELS)


_LEVELS: dict[str, Any] = {"levels": list(LEVELS)}
_WORDS = {"total_s": "cold start", "duration_s": "execution", "interarrival_s": "time between rows"}


def _page(found: ColdStartReport, source: str) -> Report:
    """Make the page."""
    what = "cold starts" if found.schema == "huawei" else "invocations"
    subtitle = (
        f"{found.num_rows:,} {what} of {found.num_functions:,} functions in "
        f"{pretty_duration(found.span_s)}; {found.schema} schema"
    )
    sections = [Section("Quantiles", [_quantiles(found)])] if found.quantiles else []
    if found.fits:
        sections.append(Section("Fits", [_fits(found.fits)]))
    if found.correlation:
        sections.append(Section("Rank correlation by minute", [_correlation(found)]))
    if found.utility:
        sections.append(Section("Utility of pods", [_utility(found)]))
    sections.append(Section("Most frequent functions", [_top(found)]))
    if "total_s" in found.hourly:
        sections.append(Section("Parts by hour", [_chart(found)]))
    return Report(f"Cold starts in {source}", subtitle, sections)


def _right(*names: str) -> list[Column]:
    return [Column(name, align="right") for name in names]


def _quantiles(found: ColdStartReport) -> Table:
    """List the quantiles of every runtime, and the parts of all."""
    shown = (0.5, 0.9, 0.99)
    at = [LEVELS.index(level) for level in shown]
    rows: list[list[Cell]] = []
    for runtime, parts in found.quantiles.items():
        for part, values in parts.items():
            if runtime == "all" or part in _WORDS:
                times = [pretty(values[place], "s") for place in at]
                rows.append([runtime, _WORDS.get(part, part.replace("_", " ")), *times])
    return Table([Column("runtime"), Column("time"), *_right("p50", "p90", "p99")], rows)


def _fits(fits: dict[str, list[TimeFit]]) -> Table:
    """List all fits, the best of each first."""
    rows: list[list[Cell]] = [
        [
            _WORDS.get(name, name),
            item.name,
            ", ".join(f"{key} {value:.3g}" for key, value in item.values.items()),
            pretty(item.mean_s, "s"),
            f"{item.ks:.3f}",
            f"{item.aic:,.0f}",
        ]
        for name, several in fits.items()
        for item in several
    ]
    heads = [Column("time"), Column("law"), Column("parameters")]
    return Table([*heads, *_right("mean", "KS distance", "AIC")], rows)


def _correlation(found: ColdStartReport) -> Table:
    """Print the matrix; a cell without significance is in brackets."""
    names, rho = found.correlation["names"], found.correlation["rho"]
    p_value = found.correlation["p_value"]
    rows: list[list[Cell]] = []
    for row, name in enumerate(names):
        cells = [
            f"{rho[row][at]:.2f}" if p_value[row][at] < 0.01 else f"({rho[row][at]:.2f})"
            for at in range(len(names))
        ]
        rows.append([name, *cells])
    caption = "Spearman's rho of per-minute means; in brackets where p is .01 or more"
    return Table([Column(""), *_right(*names)], rows, caption=caption)


def _utility(found: ColdStartReport) -> Table:
    """List quantiles of the utility ratio."""
    levels = zip(found.utility["levels"], found.utility["ratio"], strict=True)
    rows: list[list[Cell]] = [
        [f"p{level:.0%}".rstrip("%"), f"{value:.3g}"] for level, value in levels
    ]
    below, pods = found.utility["below_1"][0], found.utility["pods"][0]
    caption = f"useful lifetime over cold start of {pods:,.0f} pods that ended; {below:.1%} below 1"
    return Table([Column("level"), *_right("ratio")], rows, caption=caption)


def _top(found: ColdStartReport) -> Table:
    """List the functions with the most rows."""
    rows: list[list[Cell]] = [
        [item.name[:24], f"{item.count:,}", f"{item.share:.1%}", f"{item.peak_to_trough:.3g}"]
        for item in found.top
    ]
    return Table([Column("function"), *_right("rows", "share", "peak to trough")], rows)


def _chart(found: ColdStartReport) -> Chart | Text:
    """Draw the mean parts of each hour."""
    from steelyard.runs.charts import loss_curves

    hours = found.hourly["hour"]
    if len(hours) < 2:
        return Text("The trace is shorter than two hours.")
    curves = {
        _WORDS.get(name, name.replace("_", " ")): (hours, values)
        for name, values in found.hourly.items()
        if name not in ("hour", "count")
    }
    title = "Mean cold start and its parts by hour"
    return Chart(loss_curves(curves, title, x_title="Hour", y_title="Seconds"))
