"""The verbs that read a table of runs: fit, compare, isoflop."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from steelyard.cli.following import say_next
from steelyard.cli.laws.options import (
    FLAG,
    MANY,
    TableOptions,
    chart_file,
    dump,
    forms_past,
    named_laws,
    numbers,
)
from steelyard.cli.laws.pages import compare_page, fit_page, isoflop_page
from steelyard.cli.laws.recipes import compare_by
from steelyard.errors import ConfigError
from steelyard.files import write_bytes
from steelyard.runs.save import save_chart
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.laws.fitting.fitted import Fit

__all__ = ["compare", "fit", "isoflop"]

_LOOSE_SHARE = 0.5


def fit(
    file: Path,
    *,
    law: str = "chinchilla",
    target: str = "loss",
    table: TableOptions | None = None,
    fix: Annotated[tuple[str, ...], MANY] = (),
    profile: Annotated[tuple[str, ...], MANY] = (),
    bootstraps: int = 300,
    seed: int = 0,
    delta: float = 1e-3,
    out: Path | None = None,
    report: Path | None = None,
    chart: Path | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Fit a law to the runs of a table.

    Example: steelyard laws fit runs.csv --law chinchilla --out law.json

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
    from steelyard.laws.decisions.fit_trouble import residual_trouble
    from steelyard.laws.tables.table_trouble import table_trouble
    from steelyard.laws.tables.trouble import keep_trouble

    chart_file(chart)  # a wrong name is refused before minutes of fitting
    wanted = laws.law_named(law).fix(**numbers(fix, "--fix"))
    bootstrap = laws.Bootstrap(count=bootstraps, seed=seed)
    points = (table or TableOptions()).read(file)
    fitted = laws.fit(wanted, points, target, bootstrap=bootstrap, delta=delta)
    trouble = (*table_trouble(points, target, wanted.axes), *residual_trouble(fitted, target))
    if chart is not None:
        from steelyard.laws.pictures.charts import fit_chart

        save_chart(fit_chart(fitted, target=target), chart)
    if report is not None:
        from steelyard.laws.pictures.report import fit_report

        fit_report(fitted, target=target, trouble=trouble).write_html(report)
    if out is not None:
        write_bytes(out, keep_trouble(fitted.to_json(), trouble).encode())
    if json:
        print(keep_trouble(fitted.to_json(), trouble))
    else:
        asked = fitted.law.names if profile == ("all",) else profile
        # An ordered set: what was asked first, then what the points leave nearly free.
        named = dict.fromkeys((*asked, *_loose(fitted)))
        fit_page(fitted, [fitted.profile(name) for name in named], trouble).print()
        if out is not None and {"parameters", "tokens"} <= {*fitted.law.inputs}:
            say_next("laws", "allocate", "--fit", out, "--flops", "1e21FLOP", "--extrapolate")
        else:
            say_next("laws", "compare", file, *(table or TableOptions()).words())


def compare(
    file: Path,
    *,
    law: Annotated[tuple[str, ...], MANY] = (),
    target: str = "loss",
    along: str = "",
    by: str = "",
    at: Annotated[tuple[str, ...], MANY] = (),
    table: TableOptions | None = None,
    chart: Path | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Find the law that foretells large runs from small ones best, or the best recipe at a size.

    Example: steelyard laws compare runs.csv --law chinchilla kaplan

    Example: steelyard laws compare runs.csv --by recipe --at parameters=7B tokens=140B

    Args:
        file: CSV, Parquet or JSON lines with one run per row, or the folder of a run store.
        law: names of the laws to compare; those of the literature that read the table's axes
            unless given.
        target: what to fit, one of the columns by its new name.
        along: input that measures size; the product of all inputs (compute) unless given.
        by: column of recipes to compare, in place of laws; chinchilla_tied is fitted to each unless
            --law names one other.
        at: size at which recipes are compared, NAME=NUMBER.
        table: which columns and rows to read.
        chart: file for the picture of the errors, .html, .svg, .png or .json.
        json: print JSON instead of a table.
    """
    from steelyard import laws
    from steelyard.laws.tables.table_trouble import table_trouble

    chart_file(chart)
    chosen = named_laws(law)
    points = (table or TableOptions()).read(file)
    if by:
        # Recipes are compared under one form; several --law names say nothing about which.
        own = chosen[0].name if len(chosen) == 1 else "chinchilla_tied"
        compare_by(points, target, by, at, own, json)
        return
    found = laws.compare(points, target, chosen or None, along=along)
    axes = dict.fromkeys(name for form in found.forms for name in form.law.axes)
    trouble = table_trouble(points, target, tuple(axes))
    past = forms_past(target)
    if chart is not None:
        from steelyard.laws.pictures.diagnostics import compare_chart

        save_chart(compare_chart(found), chart)
    if json:
        keys = ("weight", "extrapolation_error", "errors", "noise", "aic")
        rows = [
            {"law": form.law.name} | {key: getattr(form, key) for key in keys}
            for form in found.forms
        ]
        said = {"best": found.best.name, "cuts": found.sizes, "forms": rows}
        said["past"] = {name: asdict(item) for name, item in past.items()}
        print(dump(said | {"trouble": [asdict(item) for item in trouble]}))
    else:
        compare_page(found, points.source, trouble, past).print()
        how = ("--law", found.best.name, "--out", "law.json")
        say_next("laws", "fit", file, *how, *(table or TableOptions()).words())


def isoflop(
    file: Path,
    *,
    flops: str = "",
    at: str = "",
    edges: str = "drop",
    table: TableOptions | None = None,
    chart: Path | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Find the best model size of each compute budget, and how it grows with compute.

    Example: steelyard laws isoflop runs.csv --at 1e21FLOP

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
    from steelyard.laws.decisions.fit_trouble import edge_trouble
    from steelyard.laws.decisions.optima.isoflop import isoflop as find
    from steelyard.laws.tables.table_trouble import table_trouble

    if edges not in ("drop", "extend"):
        raise ConfigError(f"--edges {edges!r} is not known", hint="drop or extend")
    chart_file(chart)
    options = table or TableOptions()
    if flops:
        options = replace(options, column=(*options.column, f"flops={flops}"))
    points = options.read(file)
    found = find(points, edges=edges)
    trouble = (*table_trouble(points), *edge_trouble(found))
    budget = parse(at, "FLOP", where="--at") if at else 0.0
    if chart is not None:
        from steelyard.laws.pictures.isoflop_chart import isoflop_chart

        save_chart(isoflop_chart(found, points), chart)
    if json:
        best = {"parameters": found.parameters, "tokens": found.tokens} if budget else {}
        value = {
            "exponent": asdict(found.exponent),
            "token_exponent": asdict(found.token_exponent),
            "level": found.level,
            "noise": found.noise,
            "budgets": [asdict(item) for item in found.budgets],
            "at": {name: asdict(of(budget)) for name, of in best.items()} or None,
            "trouble": [asdict(item) for item in trouble],
        }
        print(dump(value))
    else:
        isoflop_page(found, budget, trouble).print()
        say_next("laws", "compare", file, *(table or TableOptions()).words())


def _loose(fitted: "Fit") -> list[str]:
    """Name parameters that carry a direction the points leave nearly free."""
    return [
        name
        for item in fitted.flat_directions
        for name, share in item.components.items()
        if abs(share) >= _LOOSE_SHARE
    ]
