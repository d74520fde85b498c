"""The verbs that ask a fitted or published law: predict, allocate, next."""

from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.laws.options import JSON, LawOptions, dump, numbers, source_fit

if TYPE_CHECKING:
    from steelyard.laws import Allocation, Estimate, Fit, NextCell, Prediction

__all__ = ["allocate", "next_cell", "predict"]

_MANY = cyclopts.Parameter(consume_multiple=True, negative=())


def predict(
    *,
    at: Annotated[tuple[str, ...], _MANY],
    law: LawOptions | None = None,
    level: float = 0.8,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Predict a run.

    Args:
        at: the run as NAME=NUMBER, such as parameters=7B tokens=1.4T.
        law: which law to ask.
        level: probability that the run falls into the interval, 0..1.
        json: print JSON instead of a table.
    """
    options = law or LawOptions()
    asked, run = options.law(), numbers(at, "--at")
    said = asked.predict(run, level, extrapolate=options.extrapolate)
    if json:
        value = {"value": said.value[0], "low": said.low[0], "high": said.high[0]}
        print(
            dump(
                {
                    "run": run,
                    **value,
                    "level": level,
                    "distance": asked.distance(run)[0],
                    "provenance": asked.provenance,
                    "source": asked.source,
                }
            )
        )
    else:
        _print_prediction(asked, run, said, level)


def allocate(
    *,
    flops: str,
    law: LawOptions | None = None,
    max_parameters: str = "",
    max_tokens: str = "",
    unique_tokens: str = "",
    inference_tokens: str = "",
    batch: str = "",
    learning_rate: str = "",
    json: Annotated[bool, JSON] = False,
) -> None:
    """Split a training budget between model size and tokens.

    Args:
        flops: budget, such as 1e22FLOP.
        law: which law to ask.
        max_parameters: largest model allowed, such as 8B.
        max_tokens: most training tokens, such as 15T.
        unique_tokens: distinct tokens at hand, for laws of repetition.
        inference_tokens: tokens the model will serve; their compute comes out of the budget.
        batch: law of the batch, a file or a published name.
        learning_rate: law of the learning rate, a file or a published name.
        json: print JSON instead of a table.
    """
    from dataclasses import asdict

    from steelyard import laws, units

    options = law or LawOptions()
    asked = options.law()
    bounds = {"max_parameters": (max_parameters, "parameter"), "max_tokens": (max_tokens, "token")}
    bounds |= {
        "unique_tokens": (unique_tokens, "token"),
        "inference_tokens": (inference_tokens, "token"),
    }
    given = {
        name: units.parse(text, unit, where=f"--{name.replace('_', '-')}")
        for name, (text, unit) in bounds.items()
        if text
    }
    recipe = {
        name: source_fit(text)
        for name, text in (("batch", batch), ("learning_rate", learning_rate))
        if text
    }
    budget = units.parse(flops, "FLOP", where="--flops")
    chosen = laws.allocate(
        asked, budget, limits=laws.Limits(**given), recipe=recipe, extrapolate=options.extrapolate
    )
    print(dump(asdict(chosen))) if json else _print_allocation(chosen)


def next_cell(
    *,
    at: Annotated[tuple[str, ...], _MANY],
    parameters: str,
    tokens: str,
    law: LawOptions | None = None,
    max_flops: str = "",
    json: Annotated[bool, JSON] = False,
) -> None:
    """Say which run to do next to sharpen a prediction most per FLOP.

    Args:
        at: the run whose prediction should become sharper, NAME=NUMBER.
        parameters: sizes that could be trained, such as 10M,30M,100M.
        tokens: token counts that could be trained, such as 1B,3B,10B.
        law: which law to ask; a fit with points.
        max_flops: most compute for one run, such as 1e19FLOP.
        json: print JSON instead of a table.
    """
    import itertools

    import numpy as np

    from steelyard import laws, units

    options = law or LawOptions()
    sizes = [units.parse(text, "parameter", where="--parameters") for text in parameters.split(",")]
    counts = [units.parse(text, "token", where="--tokens") for text in tokens.split(",")]
    grid = np.array(list(itertools.product(sizes, counts)))
    most = units.parse(max_flops, "FLOP", where="--max-flops") if max_flops else np.inf
    found = laws.next_cell(
        options.law(),
        {"parameters": grid[:, 0], "tokens": grid[:, 1]},
        numbers(at, "--at"),
        max_flops=most,
    )
    if json:
        width = {"interval_before": found.interval_before, "interval_after": found.interval_after}
        print(
            dump(
                {
                    "best": found.best,
                    **found.inputs,
                    "flops": found.flops,
                    **width,
                    "level": found.level,
                }
            )
        )
    else:
        _print_next(found)


def _print_prediction(
    asked: "Fit", run: dict[str, float], said: "Prediction", level: float
) -> None:
    """Print the prediction with its interval and how far it lies outside the points."""
    from steelyard.runs.report import Column, Report, Section, Table

    rows: list[list[Any]] = [
        [f"{said.value[0]:.5g}", f"{said.low[0]:.5g}", f"{said.high[0]:.5g}", asked.provenance]
    ]
    heads = [
        *(Column(word, align="right") for word in ("predicted", "low", "high")),
        Column("provenance"),
    ]
    far = float(asked.distance(run)[0])
    caption = f"{100 * level:.0f} % interval of one run"
    caption += f"; {2.718281828459045**far:.3g}x beyond the fitted points" if far else ""
    caption += (
        "; no width, because no joint uncertainty was published"
        if asked.provenance == "published"
        else ""
    )
    title = ", ".join(f"{name} {value:.4g}" for name, value in run.items())
    Report(
        title,
        f"{asked.law.name}: {asked.source}",
        [Section("Prediction", [Table(heads, rows, caption)])],
    ).print()


def _print_allocation(chosen: "Allocation") -> None:
    """Print size, tokens, loss and recipe with intervals."""
    from steelyard import units
    from steelyard.runs.report import Column, Report, Section, Table

    def row(label: str, item: "Estimate", unit: str) -> list[Any]:
        words = (
            units.pretty(value, unit).partition(" ")[0] if unit else f"{value:.4g}"
            for value in (item.value, item.low, item.high)
        )
        return [label, *words, chosen.provenance]

    rows = [
        row("parameters", chosen.parameters, "parameter"),
        row("tokens", chosen.tokens, "token"),
    ]
    rows += [row("epochs", chosen.epochs, "")] if chosen.epochs else []
    rows += [
        row("loss", chosen.loss, ""),
        *(row(name.replace("_", " "), item, "") for name, item in chosen.recipe.items()),
    ]
    heads = [
        Column(""),
        *(Column(word, align="right") for word in ("best", "low", "high")),
        Column("provenance"),
    ]
    ratio = chosen.tokens.value / chosen.parameters.value
    caption = f"{ratio:.3g} tokens per parameter; {100 * chosen.level:.0f} % intervals"
    if chosen.provenance == "published":
        caption += " have no width, because no joint uncertainty was published"
    elif chosen.distance:
        caption += f"; {2.718281828459045**chosen.distance:.3g}x beyond the fitted points"
    caption += (
        f"; held back by {' and '.join(name.replace('_', ' ') for name in chosen.binding)}"
        if chosen.binding
        else ""
    )
    if chosen.training_flops < 0.999 * chosen.flops:
        caption += f"; training spends {units.pretty(chosen.training_flops, 'FLOP')} of it"
    title = f"Best use of {units.pretty(chosen.flops, 'FLOP')}"
    Report(title, chosen.source, [Section("Allocation", [Table(heads, rows, caption)])]).print()


def _print_next(found: "NextCell") -> None:
    """Print the candidates, the best buy first."""
    from steelyard import units
    from steelyard.runs.report import Column, Report, Section, Table

    rows: list[list[Any]] = [
        [
            units.pretty(float(found.inputs["parameters"][index]), "parameter"),
            units.pretty(float(found.inputs["tokens"][index]), "token"),
            units.pretty(float(found.flops[index]), "FLOP"),
            f"{100 * found.interval_after[index]:.3g} %",
        ]
        for index in range(min(len(found.rows), 12))
    ]
    heads = [Column(word, align="right") for word in ("size", "tokens", "cost", "interval after")]
    caption = (
        f"Best buy first. The {100 * found.level:.0f} % interval of the law is "
        f"{100 * found.interval_before:.3g} % wide now."
    )
    Report(
        "Which run to do next", "", [Section("Candidates", [Table(heads, rows, caption)])]
    ).print()
