"""The pages of `laws check`, `compare --by`, `recipe`, `curate` and `select`."""

from typing import TYPE_CHECKING, Any

from steelyard.cli.laws.options import run_words
from steelyard.cli.laws.pages import beyond, ends, right, table_page
from steelyard.runs.report import Column, Report
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.laws.decisions.check_law import LawCheck
    from steelyard.laws.decisions.curate import Curation
    from steelyard.laws.decisions.optima.training_recipe import TrainingRecipe
    from steelyard.laws.decisions.recipes import RecipeComparison
    from steelyard.laws.decisions.selection.select import Selection
    from steelyard.laws.forms.pools.pool_fit import PoolFit

__all__ = ["check_page", "curation_page", "recipe_page", "recipes_page", "selection_page"]

_MOST_CHOICES = 12


def check_page(found: "LawCheck") -> Report:
    """Show how a law with given numbers does on runs, and its parameters beside theirs."""
    rows: list[list[Any]] = [
        [item.name, f"{item.given:.5g}", *ends(item.fitted), "outside" if item.is_outside else ""]
        for item in found.parameters
    ]
    percent = f"{100 * found.level:.0f} %"
    low, high = (f"{100 * end:+.2g} %" for end in (found.bias.low, found.bias.high))
    notes = [
        f"prediction error {100 * found.error:.2g} % on average over {found.num_runs} runs",
        f"bias of the runs {100 * found.bias.value:+.2g} % ({low} to {high}, {percent} interval)",
        f"{100 * found.within_noise:.0f} % of the runs within the {percent} noise of one run "
        f"({100 * found.noise:.2g} %)",
    ]
    notes += [f"taken for granted: {name} {word}" for name, word in found.assumed.items()]
    notes += (
        [f"the form was not fitted to the runs: {found.why_no_fit}"] if found.why_no_fit else []
    )
    numbers = right("given", "fitted to the runs", f"{percent} interval")
    heads = [Column("parameter"), *numbers, Column("")]
    return table_page(
        f"Law {found.law} on these runs",
        found.source,
        "Given and fitted",
        heads,
        rows,
        notes=notes,
        lead=f"{found.verdict[0].upper()}{found.verdict[1:]}.",
    )


def recipes_page(found: "RecipeComparison", source: str) -> Report:
    """Show recipes at a size, the best first, and how sure the order is."""
    # Recipes come in order: the first has nothing to be behind of.
    best = found.recipes[0].name
    rows: list[list[Any]] = [
        [
            item.name,
            *ends(item.value),
            f"{100 * item.behind.value:.2g} %" if item.name != best else "",
            f"{100 * item.behind.low:.2g} – {100 * item.behind.high:.2g} %"
            if item.name != best
            else "",
            f"{100 * item.chance_best:.0f} %",
            str(item.num_runs),
        ]
        for item in found.recipes
    ]
    percent = f"{100 * found.level:.0f} % interval"
    heads = [
        Column("recipe"),
        *right(found.target, percent, "behind the best", percent, "chance best", "runs"),
    ]
    paired = min(item.shared for item in found.recipes)
    caption = f"{found.law} fitted to each; expected {found.target} of a recipe, not of one run"
    caption += beyond(found.distance)
    caption += f"; draws paired for {100 * paired:.0f} % of the runs or more"
    at = run_words(found.at)
    lead = f"{found.verdict}."
    return table_page(f"Recipes at {at}", source, "Order", heads, rows, caption, lead=lead)


def curation_page(found: "Curation", fitted: "PoolFit") -> Report:
    """Show the choices of pools, the best first, and what the pools are worth."""
    choices = [(found.pools, found.error.value), *found.rejected]
    rows: list[list[Any]] = [
        [" + ".join(pools), f"{error:.4g}", "chosen" if index == 0 else ""]
        for index, (pools, error) in enumerate(choices[:_MOST_CHOICES])
    ]
    shares = ", ".join(f"{name} {100 * share:.3g} %" for name, share in found.weights.items())
    low, high = found.error.low, found.error.high
    notes = [f"error of the choice {found.error.value:.4g} (80 % interval {low:.4g} to {high:.4g})"]
    memory = fitted.half_lives()
    for name, worth in fitted.utilities().items():
        size, half = (ends(item)[1] for item in (worth, memory[name]))
        notes.append(
            f"{name}: utility {worth.value:.3g} ({size}), half-life {memory[name].value:.3g} "
            f"passes ({half})"
        )
    notes += [
        f"at {item.samples.value:.3g} samples ({ends(item.samples)[1]}) "
        f"{' + '.join(item.after)} overtakes {' + '.join(item.before)}"
        for item in found.crossings
    ]
    notes += [
        f"a million more unique samples of {name} lower the error by {worth:.2g}"
        for name, worth in found.value_of_more.items()
    ]
    title = f"Pools for {found.samples:.4g} samples"
    heads = [Column("pools"), *right("error"), Column("")]
    lead = f"Draw {shares}."
    return table_page(title, fitted.fit.source, "Choices", heads, rows, notes=notes, lead=lead)


def recipe_page(found: "TrainingRecipe", source: str, level: float) -> Report:
    """Show batch and learning rate of a run, and how well the law behind them did."""
    rate, percent = found.learning_rate, f"{100 * level:.0f} % interval"
    rows: list[list[Any]] = [
        ["batch, tokens per step", *ends(found.batch_tokens, "token")],
        [
            "peak learning rate",
            f"{rate.value:.3g}",
            f"{rate.low:.3g} – {rate.high:.3g} around {rate.optimum:.3g}",
        ],
    ]
    best, *others = found.errors
    notes = [
        "the learning rate is below the likeliest optimum, because too high costs more than too "
        f"low; expected loss above the best {100 * rate.expected_penalty:.2g} %",
        f"law {found.law.split(':')[1]}: left-out training lengths foretold to "
        f"{100 * best.rms:.0f} % of the learning rate (R2 {best.r2:.2f}); others: "
        + ", ".join(f"{item.law.split(':')[1]} {100 * item.rms:.0f} %" for item in others),
        f"{found.num_cells} cells of the sweep have a best learning rate, {len(found.refused)} "
        "have none inside the swept ones",
    ]
    if rate.is_capped:
        notes.append("held back to where runs of this size were still stable")
    at = f"{pretty(found.parameters, 'parameter')} on {pretty(found.tokens, 'token')}"
    heads = [Column(""), *right("best", percent)]
    caption = "of the sweep" + beyond(rate.distance) if rate.distance else ""
    return table_page(f"Recipe for {at}", source, "Recipe", heads, rows, caption, notes)


def selection_page(found: "Selection", source: str) -> Report:
    """Show the models, the best first."""
    rows: list[list[Any]] = []
    for item in found.models:
        loss = ends(item.expected_loss) if item.expected_loss else ("", "")
        spent = pretty(item.flops, "FLOP") if item.flops else ""
        rows.append(
            [
                item.name,
                *loss,
                "" if item.expected_loss else f"{item.score:.4g}",
                str(item.max_examples),
                spent,
            ]
        )
    notes = [f"given up: {name} ({reason})" for name, reason in found.failed.items()]
    notes += [f"dropped after {size} examples: {name}" for name, size in found.dropped.items()]
    heads = [Column("model")]
    heads += right(
        "expected loss", f"{100 * found.level:.0f} % interval", "score", "most examples", "spent"
    )
    caption = (
        f"Ranked by {found.method} for {found.target_examples} examples, the best first; "
        f"{pretty(found.flops, 'FLOP')} in all"
    )
    title = "Which model to tune"
    return table_page(title, source, "Models", heads, rows, caption, notes)
