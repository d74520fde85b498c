"""The verbs that ask a fitted or published law: predict, allocate, next."""

import itertools
from dataclasses import asdict
from typing import Annotated

import cyclopts

from steelyard import units
from steelyard.cli.laws.options import JSON, LawOptions, dump, numbers, source_fit
from steelyard.cli.laws.pages import allocation_page, candidates_page, prediction_page

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
    asked = options.law()
    run = numbers(at, "--at")
    said = asked.predict(run, level, extrapolate=options.extrapolate).first
    distance = float(asked.distance(run)[0])
    if json:
        known = {"level": level, "distance": distance, "provenance": asked.provenance}
        print(dump({"run": run} | asdict(said) | known | {"source": asked.source}))
    else:
        prediction_page(asked, run, said, distance, level).print()


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
    from steelyard import laws

    options = law or LawOptions()
    asked = options.law()
    bounds = {
        "max_parameters": (max_parameters, "parameter"),
        "max_tokens": (max_tokens, "token"),
        "unique_tokens": (unique_tokens, "token"),
        "inference_tokens": (inference_tokens, "token"),
    }
    given = {
        name: units.parse(text, unit, where=f"--{name.replace('_', '-')}")
        for name, (text, unit) in bounds.items()
        if text
    }
    named = {"batch": batch, "learning_rate": learning_rate}
    recipe = {name: source_fit(text) for name, text in named.items() if text}
    budget = units.parse(flops, "FLOP", where="--flops")
    chosen = laws.allocate(
        asked, budget, limits=laws.Limits(**given), recipe=recipe, extrapolate=options.extrapolate
    )
    print(dump(asdict(chosen))) if json else allocation_page(chosen).print()


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
    import numpy as np

    from steelyard import laws

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
        names = ("flops", "interval_before", "interval_after", "level")
        known = {name: getattr(found, name) for name in names}
        print(dump({"best": found.best, **found.inputs, **known}))
    else:
        candidates_page(found).print()
