"""The verbs that read a table of runs: fit, compare, isoflop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.laws.options import JSON, TableOptions, chart_file, dump, law_from

if TYPE_CHECKING:
    from steelyard.laws import Comparison, Fit, Profile
    from steelyard.laws.decisions.optima.isoflop import IsoFlop

__all__ = ["compare", "fit", "isoflop"]

_LOOSE_SHARE = 0.5
_MANY = cyclopts.Parameter(consume_multiple=True, negative=())


def fit(
    file: Path,
    *,
    law: str = "chinchilla",
    target: str = "loss",
    table: TableOptions | None = None,
    fix: Annotated[tuple[str, ...], _MANY] = (),
    profile: Annotated[tuple[str, ...], _MANY] = (),
    bootstraps: int = 300,
    seed: int = 0,
    delta: float = 1e-3,
    out: Path | None = None,
    report: Path | None = None,
    chart: Path | None = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Fit a law to the runs of a table.

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        law: chinchilla, kaplan, power_law:tokens, ...; an unknown name lists them all.
        target: what to fit, one of the columns by its new name.
        table: which columns and rows to read.
        fix: parameters to hold, NAME=VALUE.
        profile: parameters whose profile interval is printed, besides those the points leave nearly
            free; "all" for all.
        bootstraps: resampled fits for the intervals.
        seed: seed of the resampling.
        delta: where the Huber loss turns linear, in log units.
        out: file to keep the fit in, for `laws predict --fit` and `laws allocate --fit`.
        report: HTML page with the fit, its charts, residuals and outliers.
        chart: file for the picture of the fit, .html, .svg, .png or .json.
        json: print the whole fit as JSON.
    """
    from steelyard import laws
    from steelyard.files import write_bytes

    chart_file(chart)
    wanted = law_from(law, fixed=fix)
    points = (table or TableOptions()).read(file)
    fitted = laws.fit(wanted, points, target, bootstraps=bootstraps, seed=seed, delta=delta)
    asked = fitted.law.names if profile == ("all",) else profile
    profiles = (
        [] if json else [fitted.profile(name) for name in dict.fromkeys((*asked, *_loose(fitted)))]
    )
    if chart is not None:
        from steelyard.laws.pictures.charts import fit_chart
        from steelyard.runs.save import save_chart

        save_chart(fit_chart(fitted, target=target), chart)
    if report is not None:
        from steelyard.laws.pictures.report import fit_report

        fit_report(fitted, target=target).write_html(report)
    if out is not None:
        write_bytes(out, fitted.to_json().encode())
    if json:
        print(fitted.to_json())
    else:
        _print_fit(fitted, profiles)


def compare(
    file: Path,
    *,
    law: Annotated[tuple[str, ...], _MANY] = ("chinchilla", "chinchilla_tied", "kaplan"),
    target: str = "loss",
    along: str = "",
    table: TableOptions | None = None,
    chart: Path | None = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Find the law that foretells large runs from small ones best.

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        law: names of the laws to compare.
        target: what to fit, one of the columns by its new name.
        along: input that measures size; the product of all inputs (compute) unless given.
        table: which columns and rows to read.
        chart: file for the picture of the errors, .html, .svg, .png or .json.
        json: print JSON instead of a table.
    """
    from steelyard import laws

    chart_file(chart)
    names = [name for item in law for name in item.split(",")]
    points = (table or TableOptions()).read(file)
    found = laws.compare(points, target, [law_from(name) for name in names], along=along)
    if chart is not None:
        from steelyard.laws.pictures.compare_chart import compare_chart
        from steelyard.runs.save import save_chart

        save_chart(compare_chart(found), chart)
    if json:
        rows = [
            {
                "law": form.law.name,
                "extrapolation_error": form.extrapolation_error,
                "errors": form.errors,
                "noise": form.noise,
                "aic": form.aic,
            }
            for form in found.forms
        ]
        print(dump({"best": found.best.name, "cuts": found.sizes, "forms": rows}))
    else:
        _print_comparison(found, points.source)


def isoflop(
    file: Path,
    *,
    flops: str = "",
    at: str = "",
    edges: str = "drop",
    table: TableOptions | None = None,
    chart: Path | None = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Find the best model size of each compute budget, and how it grows with compute.

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        flops: column with the budgets; the one called flops, else 6 x parameters x tokens.
        at: budget whose best size is asked for, such as 1e21FLOP.
        edges: what to do with budgets whose best size lies at the edge of the sizes, drop or
            extend.
        table: which columns and rows to read.
        chart: file for the picture, .html, .svg, .png or .json.
        json: print JSON instead of a table.
    """
    from dataclasses import asdict, replace

    from steelyard.errors import ConfigError
    from steelyard.laws import isoflop as find
    from steelyard.units import parse

    if edges not in ("drop", "extend"):
        raise ConfigError(f"--edges {edges!r} is not known", hint="drop or extend")
    chart_file(chart)
    options = table or TableOptions()
    points = (
        replace(options, column=(*options.column, f"flops={flops}")) if flops else options
    ).read(file)
    found = find(points, edges=edges)
    budget = parse(at, "FLOP", where="--at") if at else 0.0
    if chart is not None:
        from steelyard.laws.pictures.isoflop_chart import isoflop_chart
        from steelyard.runs.save import save_chart

        save_chart(isoflop_chart(found, points), chart)
    if json:
        said = (
            {"parameters": asdict(found.parameters(budget)), "tokens": asdict(found.tokens(budget))}
            if budget
            else None
        )
        budgets = [asdict(item) for item in found.budgets]
        exponents = {
            "exponent": asdict(found.exponent),
            "token_exponent": asdict(found.token_exponent),
        }
        print(
            dump(
                {
                    **exponents,
                    "level": found.level,
                    "noise": found.noise,
                    "budgets": budgets,
                    "at": said,
                }
            )
        )
    else:
        _print_isoflop(found, budget)


def _loose(fitted: "Fit") -> list[str]:
    """Name parameters that carry a direction the points leave nearly free."""
    return [
        name
        for item in fitted.flat_directions
        for name, share in item.components.items()
        if abs(share) >= _LOOSE_SHARE
    ]


def _print_fit(fitted: "Fit", profiles: "list[Profile]") -> None:
    """Print parameters with intervals and what the reader should know about them."""
    from steelyard.runs.report import Column, Report, Section, Table, Text

    rows: list[list[Any]] = []
    flat = {item.name for item in profiles if item.is_flat}
    for name, value in fitted.params.items():
        low, high = fitted.interval(name)
        note = (
            "at its bound"
            if name in fitted.at_bounds
            else "flat, see its profile"
            if name in flat
            else ""
        )
        rows.append([name, f"{value:.5g}", f"{low:.5g}", f"{high:.5g}", note])
    heads = [
        Column("parameter"),
        *(Column(word, align="right") for word in ("fitted", "low", "high")),
        Column("note"),
    ]
    outliers = fitted.outliers()
    shown = "; ".join(map(str, outliers[:5])) + (
        f" and {len(outliers) - 5} more" if len(outliers) > 5 else ""
    )
    notes = [
        f"- {fitted.num_points} points, residual noise {100 * fitted.noise:.2g} %, sum of Huber "
        f"losses {fitted.objective:.6g}",
        f"- beyond the points the error grows by {100 * fitted.drift:.2g} % per factor e "
        f"({fitted.drift_source})",
        f"- condition number {fitted.condition_number:.3g}; nearly free: "
        f"{'; '.join(map(str, fitted.flat_directions)) or 'nothing'}",
        f"- weak priors on {', '.join(fitted.prior)}, because the points are few"
        if fitted.prior
        else "- no priors",
        f"- far from the law: {shown}" if outliers else "- no outliers",
        *(f"- profile of {item}" for item in profiles),
    ]
    table = Table(
        heads, rows, f"80 % intervals from {len(fitted.samples)} bootstraps ({fitted.resampling})"
    )
    formula = f"{fitted.law.formula}, " if fitted.law.formula else ""
    Report(
        f"Law {fitted.law.name}",
        f"{formula}fitted to {fitted.source}",
        [Section("Parameters", [table, Text("\n".join(notes))])],
    ).print()


def _print_comparison(found: "Comparison", source: str) -> None:
    """Print the laws by how well they extrapolated."""
    from steelyard.runs.report import Column, Report, Section, Table

    rows: list[list[Any]] = [
        [
            form.law.name,
            f"{100 * form.extrapolation_error:.2f} %",
            " ".join(f"{100 * error:.1f}" for error in form.errors),
            f"{100 * form.noise:.2f} %",
            f"{form.aic:.1f}",
        ]
        for form in found.forms
    ]
    heads = [
        Column("law"),
        *(
            Column(word, align="right")
            for word in ("error beyond", "per cut, %", "noise inside", "AIC")
        ),
    ]
    caption = (
        f"Fitted below {len(found.sizes)} sizes, predicting the runs beyond; the first law "
        f"extrapolates best."
    )
    Report(
        "Which law to trust",
        source,
        [Section("Rolling extrapolation", [Table(heads, rows, caption)])],
    ).print()


def _count(value: float, unit: str) -> str:
    """Print a count without its noun, which the head of the column says."""
    from steelyard import units

    return units.pretty(value, unit).partition(" ")[0]


def _print_isoflop(found: "IsoFlop", budget: float) -> None:
    """Print the minima, the exponents and the size for a budget."""
    from steelyard import units
    from steelyard.runs.report import Column, Report, Section, Table, Text

    rows: list[list[Any]] = [
        [
            units.pretty(item.flops, "FLOP"),
            *(
                _count(value, "parameter")
                for value in (item.parameters.value, item.parameters.low, item.parameters.high)
            ),
            _count(item.tokens, "token"),
            f"{item.loss:.4f}",
            item.reason or item.state,
        ]
        for item in found.budgets
    ]
    heads = [
        Column("budget"),
        *(Column(word, align="right") for word in ("best size", "low", "high", "tokens", "loss")),
        Column(""),
    ]
    lines = [
        f"- best size grows as compute^{item.value:.3f} ({item.low:.3f} to {item.high:.3f}), "
        f"{100 * found.level:.0f} % interval"
        if what == "size"
        else f"- tokens grow as compute^{item.value:.3f} ({item.low:.3f} to {item.high:.3f})"
        for what, item in (("size", found.exponent), ("tokens", found.token_exponent))
    ]
    lines.append(f"- noise of one run {100 * found.noise:.2g} % ({found.noise_source})")
    if budget:
        size, tokens = found.parameters(budget), found.tokens(budget)
        lines.append(
            f"- at {units.pretty(budget, 'FLOP')}: {units.pretty(size.value, 'parameter')}, "
            f"{units.pretty(tokens.value, 'token')}"
        )
    Report(
        "IsoFLOP", found.source, [Section("Minima", [Table(heads, rows), Text("\n".join(lines))])]
    ).print()
