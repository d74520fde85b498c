"""The pages that the verbs of `steelyard laws` print: a table each, with notes below."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steelyard.cli.laws.options import run_words
from steelyard.runs.report import Block, Column, Report, Section, Table, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.cli.laws.price import Worth
    from steelyard.laws.decisions.allocate import Allocation
    from steelyard.laws.decisions.compare import Comparison
    from steelyard.laws.decisions.next_cell import NextCell
    from steelyard.laws.decisions.optima.isoflop import IsoFlop
    from steelyard.laws.fitting.estimate import Estimate
    from steelyard.laws.fitting.fitted import Fit
    from steelyard.laws.fitting.profile import Profile
    from steelyard.laws.registry import PublishedLaw
    from steelyard.laws.tables.trouble import Trouble
    from steelyard.laws.theory.random_features import RandomFeatureModel
    from steelyard.runs.track import FormPast

__all__ = [
    "allocation_page",
    "beyond",
    "candidates_page",
    "compare_page",
    "ends",
    "fit_page",
    "isoflop_page",
    "law_page",
    "prediction_page",
    "registry_page",
    "right",
    "table_page",
    "theory_page",
]

_MOST_OUTLIERS = 5
_MOST_CANDIDATES = 12


def table_page(
    title: str,
    subtitle: str,
    heading: str,
    heads: Sequence[Column],
    rows: list[list[Any]],
    caption: str = "",
    notes: Iterable[str] = (),
    trouble: "Sequence[Trouble]" = (),
    lead: str = "",
) -> Report:
    """Return a page of one table, with trouble and a sentence above it and notes below."""
    from steelyard.laws.pictures.look_first import look_first

    words = "\n".join(f"- {note}" for note in notes)
    table = Table(list(heads), rows, caption)
    above: list[Block] = [Text(lead)] if lead else []
    section = Section(heading, [*above, table, *([Text(words)] if words else [])])
    return Report(title, subtitle, [*look_first(trouble), section])


def right(*words: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(word, align="right") for word in words]


def _count(value: float, unit: str, more: int = 0) -> str:
    """Return a count without its noun, which the head of the column says."""
    return pretty(value, unit, more=more).partition(" ")[0] if unit else f"{value:.{4 + more}g}"


def ends(item: "Estimate", unit: str = "") -> tuple[str, str]:
    """Return the value and its interval."""
    from steelyard.laws.fitting.wording import ends_words

    return ends_words(
        item.value, item.low, item.high, write=lambda value, more: _count(value, unit, more)
    )


def beyond(distance: float) -> str:
    """Say how far a run lies outside the points, given in factors of e."""
    return f"; {math.exp(distance):.3g}x beyond the fitted points" if distance else ""


def fit_page(
    fitted: "Fit", profiles: "Sequence[Profile]", trouble: "Sequence[Trouble]" = ()
) -> Report:
    """Show parameters with intervals and what the reader should know about them."""
    from steelyard.laws.fitting.wording import parameter_words

    flat = {item.name for item in profiles if item.is_flat}
    rows: list[list[Any]] = []
    for name in fitted.params:
        note = "flat, see its profile" if name in flat else ""
        note = "at its bound" if name in fitted.at_bounds else note
        rows.append([name, *parameter_words(fitted, name), note])
    formula = f"{fitted.law.formula}, " if fitted.law.formula else ""
    return table_page(
        f"Law {fitted.law.name}",
        f"{formula}fitted to {fitted.source}",
        "Parameters",
        [Column("parameter"), *right("fitted", "80 % interval"), Column("note")],
        rows,
        f"80 % intervals from {len(fitted.samples)} bootstraps ({fitted.resampling})"
        if len(fitted.samples)
        else "no intervals: nothing was resampled",
        [*_fit_notes(fitted), *(f"profile of {item}" for item in profiles)],
        trouble,
    )


def _fit_notes(fitted: "Fit") -> list[str]:
    """Say how well the points determine the law."""
    outliers = fitted.outliers()
    shown = "; ".join(map(str, outliers[:_MOST_OUTLIERS]))
    if len(outliers) > _MOST_OUTLIERS:
        shown += f" and {len(outliers) - _MOST_OUTLIERS} more"
    priors = f"weak priors on {', '.join(fitted.prior)}, because the points are few"
    return [
        f"{fitted.num_points} points, residual noise {100 * fitted.noise:.2g} %, sum of Huber "
        f"losses {fitted.objective:.6g}",
        f"beyond the points the error grows by {100 * fitted.drift:.2g} % per factor e "
        f"({fitted.drift_source})",
        f"condition number {fitted.condition_number:.3g}; nearly free: "
        f"{'; '.join(map(str, fitted.flat_directions)) or 'nothing'}",
        priors if fitted.prior else "no priors",
        f"far from the law: {shown}" if outliers else "no outliers",
    ]


def compare_page(
    found: "Comparison",
    source: str,
    trouble: "Sequence[Trouble]" = (),
    past: "Mapping[str, FormPast] | None" = None,
) -> Report:
    """Show the laws by how well they extrapolated, and how they did in the user's store."""
    counts = past or {}
    rows: list[list[Any]] = [
        [
            form.law.name,
            f"{form.weight:.2f}",
            f"{100 * form.extrapolation_error:.2f} %",
            # A cut with too few runs for a form has no error (NaN).
            " ".join("-" if error != error else f"{100 * error:.1f}" for error in form.errors),
            f"{100 * form.noise:.2f} %",
            f"{form.aic:.1f}",
            *([str(counts.get(form.law.name, ""))] if counts else []),
        ]
        for form in found.forms
    ]
    heads = [Column("law"), *right("weight", "error beyond", "per cut, %", "noise inside", "AIC")]
    heads += [Column("so far in your store")] if counts else []
    caption = (
        f"Fitted below {len(found.sizes)} sizes, predicting the runs beyond; the first law "
        f"extrapolates best, the last cuts count most. Weights are those of laws forecast."
    )
    title = "Which law to trust"
    return table_page(title, source, "Rolling extrapolation", heads, rows, caption, trouble=trouble)


def isoflop_page(found: "IsoFlop", budget: float, trouble: "Sequence[Trouble]" = ()) -> Report:
    """Show the minima, the exponents and the size for a budget; a budget of 0 asks for none."""
    rows: list[list[Any]] = [
        [
            pretty(item.flops, "FLOP"),
            *ends(item.parameters, "parameter"),
            _count(item.tokens, "token"),
            f"{item.loss:.4f}",
            item.reason or item.state,
        ]
        for item in found.budgets
    ]
    size, tokens = found.exponent, found.token_exponent
    notes = [
        f"best size grows as compute^{size.value:.3f} ({size.low:.3f} to {size.high:.3f}), "
        f"{100 * found.level:.0f} % interval",
        f"tokens grow as compute^{tokens.value:.3f} ({tokens.low:.3f} to {tokens.high:.3f})",
        f"noise of one run {100 * found.noise:.2g} % ({found.noise_source})",
    ]
    if budget:
        best = pretty(found.parameters(budget).value, "parameter")
        fed = pretty(found.tokens(budget).value, "token")
        notes.append(f"at {pretty(budget, 'FLOP')}: {best}, {fed}")
    numbers = right("best size", f"{100 * found.level:.0f} % interval", "tokens", "loss")
    heads = [Column("budget"), *numbers, Column("")]
    return table_page("IsoFLOP", found.source, "Minima", heads, rows, notes=notes, trouble=trouble)


def prediction_page(
    asked: "Fit",
    run: Mapping[str, float],
    said: "Estimate",
    distance: float,
    level: float,
    trouble: "Sequence[Trouble]" = (),
) -> Report:
    """Show a prediction with its interval and how far it lies outside the points."""
    from steelyard.laws.fitting.wording import ends_words

    row = ends_words(
        said.value, said.low, said.high, write=lambda value, more: f"{value:.{5 + more}g}"
    )
    caption = f"{100 * level:.0f} % interval of one run" + beyond(distance)
    if asked.provenance == "published":
        caption += "; no width, because no joint uncertainty was published"
    return table_page(
        run_words(run),
        f"{asked.law.name}: {asked.source}",
        "Prediction",
        [*right("predicted", "interval"), Column("provenance")],
        [[*row, asked.provenance]],
        caption,
        trouble=trouble,
    )


def allocation_page(chosen: "Allocation", trouble: "Sequence[Trouble]" = ()) -> Report:
    """Show size, tokens, loss and recipe with intervals."""
    found = {
        "parameters": (chosen.parameters, "parameter"),
        "tokens": (chosen.tokens, "token"),
        "epochs": (chosen.epochs, ""),
        "loss": (chosen.loss, ""),
    }
    found |= {name.replace("_", " "): (item, "") for name, item in chosen.recipe.items()}
    rows: list[list[Any]] = [
        [label, *ends(item, unit), chosen.provenance]
        for label, (item, unit) in found.items()
        if item is not None
    ]
    ratio = chosen.tokens.value / chosen.parameters.value
    caption = f"{ratio:.3g} tokens per parameter; {100 * chosen.level:.0f} % intervals"
    if chosen.provenance == "published":
        caption += " have no width, because no joint uncertainty was published"
    else:
        caption += beyond(chosen.distance)
    if chosen.binding:
        caption += f"; held back by {' and '.join(chosen.binding).replace('_', ' ')}"
    if chosen.training_flops < 0.999 * chosen.flops:
        caption += f"; training spends {pretty(chosen.training_flops, 'FLOP')} of it"
    if not chosen.cost.is_product:
        caption += f"; training costs {chosen.cost} FLOP"
    title = f"Best use of {pretty(chosen.flops, 'FLOP')}"
    heads = [Column(""), *right("best", "interval"), Column("provenance")]
    return table_page(title, chosen.source, "Allocation", heads, rows, caption, trouble=trouble)


def candidates_page(found: "NextCell", worth: "Worth | None" = None) -> Report:
    """Show the candidates, the best buy first, and what they cost and save where it is known."""
    columns = (found.inputs["parameters"], found.inputs["tokens"], found.flops)
    units = ("parameter", "token", "FLOP")
    rows: list[list[Any]] = [
        [
            *(pretty(float(value), unit) for value, unit in zip(row, units, strict=True)),
            f"{100 * after:.3g} %",
        ]
        for *row, after in zip(*columns, found.interval_after, strict=True)
    ]
    heads = right("size", "tokens", "cost", "interval after")
    caption = (
        f"Best buy first. The {100 * found.level:.0f} % interval, without the noise of a run, is "
        f"{100 * found.interval_before:.3g} % wide now."
    )
    if worth:
        heads += right("hours", "money", "saves in the plan")
        for row, run, saved in zip(rows, worth.runs, worth.saved_usd, strict=True):
            row += [f"{run.hours:.3g}", _money(run.usd), _money(saved)]
        plan = worth.plan
        caption += (
            f" The plan that asks: {pretty(plan.parameters, 'parameter')} on "
            f"{pretty(plan.tokens, 'token')}, {_money(plan.usd)} and {plan.hours:.3g} hours on "
            f"{plan.count} x {worth.accelerator}; knowing the law exactly would save "
            f"{_money(worth.most_usd)} of it."
        )
    shown = rows[:_MOST_CANDIDATES]
    return table_page("Which run to do next", "", "Candidates", heads, shown, caption)


def _money(usd: float | None) -> str:
    """Return an amount, or that it is not known."""
    return "not known" if usd is None else pretty(usd, "USD")


def registry_page(laws: "Sequence[PublishedLaw]") -> Report:
    """Show the published laws."""
    rows: list[list[Any]] = [[law.name, law.law.formula or law.form, law.title] for law in laws]
    heads = [Column("name"), Column("law"), Column("about")]
    caption = "steelyard laws registry NAME shows numbers, conventions and source."
    return table_page("Published laws", "", "As the papers give them", heads, rows, caption)


def law_page(law: "PublishedLaw") -> Report:
    """Show one published law with its numbers and conventions."""
    errors = {key: f"{error:.3g}" for key, error in law.standard_errors.items()}
    rows: list[list[Any]] = [
        [key, f"{value:.8g}", errors.get(key, "")] for key, value in law.params.items()
    ]
    rows += [[key, "not printed", ""] for key in law.missing]
    facts = {
        "predicts": f"{law.target}, {law.unit}" if law.unit else law.target,
        "parameters counted": law.counts,
        "tokenizer": law.tokenizer,
        "source": law.source,
    }
    return table_page(
        law.name,
        law.title,
        law.law.formula or law.form,
        [Column("parameter"), *right("value", "standard error")],
        rows,
        "Natural units.",
        [f"{label}: {words}" for label, words in facts.items() if words],
    )


def theory_page(
    title: str,
    model: "RandomFeatureModel",
    curve: Any,
    binding: dict[str, Any] | None,
    best: dict[str, Any] | None,
) -> Report:
    """Show the learning curve and what follows from the exponents."""
    shown = range(0, len(curve.steps), max(len(curve.steps) // 8, 1))
    rows: list[list[Any]] = [
        [str(curve.steps[index]), f"{curve.test[index]:.5g}", f"{curve.train[index]:.5g}"]
        for index in shown
    ]
    known = model.exponents()
    notes = [
        f"loss ~ steps^-{known.steps:.3g}, width^-{known.width:.3g}, "
        f"samples^-{known.samples:.3g} where each binds",
        f"compute-optimal width ~ compute^{known.optimal_width:.3g}, steps ~ "
        f"compute^{known.optimal_steps:.3g}",
    ]
    if binding:
        what = binding["binding"]
        notes.append(f"at the end {what} bind: d ln loss / d ln {what} = {binding[what]:.3f}")
    if best:
        notes.append(
            f"{best['budget']:.4g} width x steps: width {best['width']:.4g}, {best['steps']} "
            f"steps, test loss {best['loss']:.4g}"
        )
    heads = right("steps", "test loss", "train loss")
    said = "Exact for large sizes, not measured"
    return table_page(title, said, "Learning curve", heads, rows, notes=notes)
