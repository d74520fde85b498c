"""The report of a fit: law, parameters with intervals, what is left free, extrapolation."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.compare import Comparison
from steelyard.laws.decisions.fit_trouble import fit_trouble
from steelyard.laws.fitting.diagnostics import Outlier
from steelyard.laws.fitting.estimate import NOT_DETERMINED
from steelyard.laws.fitting.fit import Holdout, hold_out
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.profile import Profile
from steelyard.laws.fitting.wording import parameter_words
from steelyard.laws.pictures.charts import fit_chart
from steelyard.laws.pictures.diagnostics import compare_chart, profile_chart, residual_chart
from steelyard.laws.pictures.look_first import look_first
from steelyard.laws.pictures.series import MOST_DRAWN, formula_words, greek
from steelyard.laws.tables.trouble import Trouble
from steelyard.runs.report import Block, Cell, Chart, Column, Facts, Report, Section, Table, Text
from steelyard.runs.wording import more_digits, number_text

__all__ = ["fit_report"]

_MOST_PROFILES = 9
_STRONGEST = 5
_MOST_OUTLIERS = 10


def fit_report(
    fit: Fit,
    *,
    title: str = "",
    target: str = "Loss",
    unseen: Mapping[str, ArrayLike] | None = None,
    comparison: Comparison | None = None,
    profiles: bool = True,
    holdout: bool = True,
    level: float = 0.8,
    profile_level: float = 0.9,
    trouble: Sequence[Trouble] | None = None,
) -> Report:
    """Tell all there is to know about a fit on one page.

    Args:
        fit: fit with its points.
        title: heading; empty for the name of the law.
        target: words for what is predicted.
        unseen: columns of the inputs and "target" of measured runs that the fit did not see.
        comparison: comparison of this law with others, made by `compare`.
        profiles: whether the objective is profiled, which takes up to a second per parameter.
        holdout: whether the largest points are left out once and predicted.
        level: probability inside bootstrap intervals and bands.
        profile_level: probability inside profile intervals.
        trouble: what was found in the table and the fit; None to look at the fit's points.

    Returns:
        The report, for the terminal, JSON and HTML.

    Raises:
        FitError: a published set, which has no points.
    """
    fit.study()  # refuses a law without points
    # Of all that the page shows, profiles and the fit without the largest points take time.
    found = _profiles(fit, profile_level) if profiles else {}
    held = _hold_out(fit) if holdout else "The largest points were not left out."
    sections = [
        *look_first(fit_trouble(fit, target) if trouble is None else trouble),
        _law(fit, target, unseen, level, held),
        _parameters(fit, found, level, profile_level),
        _freedom(fit, found),
        _points(fit),
        _beyond(held, target, comparison),
        _method(fit),
    ]
    subtitle = f"{fit.num_points} points" + (f", {fit.source}" if fit.source else "")
    return Report(title or f"Law {fit.law.name}", subtitle, sections)


def _profiles(fit: Fit, level: float) -> dict[str, Profile]:
    """Profile up to nine parameters; none for a law that has only one."""
    if len(fit.law.names) < 2:
        return {}
    return {name: fit.profile(name, level) for name in fit.law.names[:_MOST_PROFILES]}


def _hold_out(fit: Fit) -> Holdout | str:
    """Leave the largest points out, or say why that cannot be done."""
    try:
        return hold_out(fit, along="" if fit.law.axes else fit.law.inputs[0])
    except FitError as error:
        return f"The largest points cannot be left out: {error}."


def _law(
    fit: Fit, target: str, unseen: Mapping[str, ArrayLike] | None, level: float, held: Holdout | str
) -> Section:
    """Lead with the formula, the few numbers that judge it, and the picture."""
    facts = [
        ("Points", f"{fit.num_points}", "measured"),
        ("Residual noise", f"{100 * fit.noise:.2g} %", "fitted"),
        (
            "Error beyond the points, per factor e",
            f"{100 * fit.drift:.2g} %",
            "assumed" if fit.drift_source == "assumed" else "fitted",
        ),
    ]
    if isinstance(held, Holdout):
        error = f"{100 * held.mean_relative_error:.2g} %"
        facts.append(("Mean error on the largest, left out", error, "measured"))
    said = (
        f"**{target} = {formula_words(fit.law.formula)}**"
        if fit.law.formula
        else f"**{fit.law.name}** of {', '.join(fit.law.inputs)}"
    )
    title = f"{target} and the law"
    picture = fit_chart(fit, title=title, target=target, unseen=unseen, level=level)
    return Section("The law", [Text(said), Facts(facts), Chart(picture)])


def _parameters(
    fit: Fit, found: Mapping[str, Profile], level: float, profile_level: float
) -> Section:
    """List the parameters with both intervals and a note where one needs care."""
    columns = [Column("Parameter"), Column("Fitted", align="right")]
    columns += [Column(f"Bootstrap {100 * level:.0f} %", align="right")] if len(fit.samples) else []
    columns += [Column(f"Profile {100 * profile_level:.0f} %", align="right")] if found else []
    columns += [Column("Note")]
    rows: list[list[Cell]] = []
    for name in fit.params:
        value, interval = parameter_words(fit, name, level)
        row: list[Cell] = [greek(name), value]
        row += [interval] if len(fit.samples) else []
        row += [_interval(found[name]) if name in found else None] if found else []
        rows.append([*row, _note(fit, found.get(name), name)])
    for name, value in fit.law.fixed.items():
        rows.append(
            [greek(name), number_text(value), *([""] * (len(columns) - 3)), "held at this value"]
        )
    caption = "Natural values. " + (
        f"Bootstrap: {len(fit.samples)} resampled fits ({fit.resampling}). "
        if len(fit.samples)
        else ""
    )
    caption += (
        "Profile: all other parameters at their best for each value of this one." if found else ""
    )
    return Section("Parameters", [Table(columns, rows, caption.strip())])


def _interval(item: Profile) -> str:
    """Write a profile's interval, open where an end is missing."""
    if not item.is_determined:
        return NOT_DETERMINED
    more = more_digits(
        lambda value, extra: number_text(value, more=extra), [item.value], item.low, item.high
    )
    return f"{number_text(item.low, more=more)} – {number_text(item.high, more=more)}"


def _note(fit: Fit, profile: Profile | None, name: str) -> str:
    """Say what the reader should know about a parameter."""
    notes = ["at its bound"] if name in fit.at_bounds else []
    notes += (
        ["flat: the points do not determine it"] if profile is not None and profile.is_flat else []
    )
    notes += ["weak prior"] if name in fit.prior else []
    return "; ".join(notes)


def _freedom(fit: Fit, found: Mapping[str, Profile]) -> Section:
    """Say which combinations the points leave free, and show the profiles."""
    directions = [f"- {greek(str(direction))}" for direction in fit.flat_directions]
    flat = [greek(name) for name, profile in found.items() if profile.is_flat]
    lead = (
        f"Condition number **{number_text(float(f'{fit.condition_number:.3g}'))}** (1 is ideal). "
    )
    lead += (
        "These move together while the predictions hardly change:"
        if directions
        else "The points determine every combination of parameters."
    )
    blocks: list[Block] = [Text("\n".join([lead, *directions]))]
    if flat:
        blocks.append(
            Text(
                f"Flat valleys: **{', '.join(flat)}**. Quote an interval for these, never the "
                f"fitted value alone."
            )
        )
    if found:
        blocks.append(
            Chart(
                profile_chart(*found.values()),
                "1 is where an interval ends; a curve that stays below it does not end.",
            )
        )
    return Section("What the points determine", blocks)


def _points(fit: Fit) -> Section:
    """Show residuals, outliers and the points that decide the fit."""
    outliers = fit.outliers()
    blocks = [Chart(residual_chart(fit)), *([_outlier_table(outliers)] if outliers else [])]
    return Section("The points", [*blocks, _influence_table(fit)])


def _outlier_table(outliers: Sequence[Outlier]) -> Table:
    """List the points far from the law, the worst first."""
    rows: list[list[Cell]] = [
        [
            item.row + 1,
            number_text(item.measured),
            number_text(item.predicted),
            f"{item.deviations:+.1f}",
        ]
        for item in outliers[:_MOST_OUTLIERS]
    ]
    heads = [
        Column("Row", align="left"),
        *(Column(word, align="right") for word in ("Measured", "Law", "Robust deviations")),
    ]
    caption = (
        f"Outliers: {len(outliers)} point{'s' * (len(outliers) > 1)} more than four robust "
        f"standard deviations from the law."
    )
    return Table(heads, rows, caption)


def _influence_table(fit: Fit) -> Table:
    """List the points that move the parameters most when they are left out."""
    influence = fit.influence()
    rows: list[list[Cell]] = []
    for row in influence.strongest(_STRONGEST):
        index = int(np.abs(influence.shift[row]).argmax())
        name = influence.names[index]
        fitted = number_text(fit.params[name])
        without = number_text(float(influence.parameters[row, index]))
        rows.append([row + 1, greek(name), fitted, without, f"{influence.shift[row, index]:+.2f}"])
    heads = [
        Column("Row", align="left"),
        Column("Moves most"),
        *(Column(word, align="right") for word in ("Fitted", "Without the row", "Shift")),
    ]
    unit = "standard deviations of the bootstrap" if len(fit.samples) > 1 else "fitted coordinates"
    caption = f"The points that decide the fit: what leaving each out does, shift in {unit}."
    return Table(heads, rows, caption)


def _beyond(held: Holdout | str, target: str, comparison: Comparison | None) -> Section:
    """Show how the law does on points larger than those it was fitted on."""
    if isinstance(held, Holdout):
        said = (
            f"Fitted to the {held.fit.num_points} smaller points, the law predicts the "
            f"{len(held.measured)} largest with a mean error of "
            f"**{100 * held.mean_relative_error:.2g} %**; {100 * held.coverage:.0f} % of them lie "
            f"inside their 80 % interval."
        )
        if len(held.measured) > MOST_DRAWN:
            said += f" The picture draws {MOST_DRAWN:,} of them."
        picture = fit_chart(held, title="The largest points, left out and predicted", target=target)
        blocks: list[Block] = [Text(said), Chart(picture)]
    else:
        blocks = [Text(held)]
    if comparison is not None:
        words = "All laws see the same points; none sees a larger one."
        blocks.append(Chart(compare_chart(comparison), words))
    return Section("Beyond the points", blocks)


def _method(fit: Fit) -> Section:
    """Say how the numbers were made."""
    loss = "Least squares" if math.isinf(fit.delta) else f"Sum of Huber losses (δ = {fit.delta:g})"
    starts = len(fit.law.start_grid())
    lines = [
        f"- {loss} of the log residuals: {fit.objective:.6g} at the optimum; {starts} starts in "
        f"float64.",
        f"- Intervals: {len(fit.samples)} bootstraps, resampling {fit.resampling}, seed "
        f"{fit.seed}.",
        f"- Beyond the points the error grows by {100 * fit.drift:.2g} % per factor e "
        f"({fit.drift_source}).",
        f"- Weak priors on {', '.join(greek(name) for name in fit.prior)}, because the points are "
        f"few."
        if fit.prior
        else "- No priors.",
    ]
    return Section("How it was fitted", [Text("\n".join(lines))])
