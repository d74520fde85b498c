"""The verbs that read no table: ask a law, list the published ones, solve a model of learning."""

import itertools
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steelyard import units
from steelyard.cli.following import say_next
from steelyard.cli.laws.foresee import forecast
from steelyard.cli.laws.joint import answer_runs, next_of_runs, refuse_price, refuse_sources
from steelyard.cli.laws.options import (
    FLAG,
    MANY,
    LawOptions,
    TableOptions,
    chart_file,
    dump,
    known_inputs,
    numbers,
    source_fit,
)
from steelyard.cli.laws.pages import (
    allocation_page,
    candidates_page,
    law_page,
    prediction_page,
    registry_page,
    theory_page,
)
from steelyard.runs.save import save_chart

if TYPE_CHECKING:
    from steelyard.cli.laws.price import Worth
    from steelyard.laws.decisions.cost_law import CostLaw
    from steelyard.laws.decisions.next_cell import NextCell
    from steelyard.laws.fitting.fitted import Fit

__all__ = ["allocate", "next_cell", "predict", "registry", "theory"]


def predict(
    *,
    at: Annotated[tuple[str, ...], MANY],
    law: LawOptions | None = None,
    runs: Path | None = None,
    table: TableOptions | None = None,
    level: float = 0.8,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Predict a run.

    Example: steelyard laws predict --published besiroglu2024 --at parameters=7B tokens=1.4T

    Example: steelyard laws predict --runs runs.csv --at parameters=7B tokens=140B

    Args:
        at: the run as NAME=NUMBER, such as parameters=7B tokens=1.4T.
        law: which law to ask.
        runs: table of runs in place of a law; several forms are fitted to it and weighed by how
            well they foresaw its larger runs, as `laws forecast` does.
        table: which columns and rows of --runs to read.
        level: probability that the run falls into the interval, 0..1.
        json: print JSON instead of a table.
    """
    options, columns = law or LawOptions(), table or TableOptions()
    refuse_sources(options, runs, columns)
    if runs is not None:  # no law was named: what the runs say together is `laws forecast`
        return forecast(runs, at=at, level=level, table=columns, json=json)
    asked = options.law()
    run = numbers(at, "--at")
    known_inputs(run, asked, "--at")
    said = asked.predict(run, level, extrapolate=options.extrapolate).first
    distance = float(asked.distance(run)[0])
    trouble = options.trouble()
    if json:
        known = {"level": level, "distance": distance, "provenance": asked.provenance}
        known |= {"trouble": [asdict(item) for item in trouble]}
        print(dump({"run": run} | asdict(said) | known | {"source": asked.source}))
    else:
        prediction_page(asked, run, said, distance, level, trouble).print()
        if {"parameters", "tokens"} <= {*asked.law.inputs}:
            say_next("laws", "allocate", *options.words(), "--flops", "1e22FLOP")


def allocate(
    *,
    flops: str,
    law: LawOptions | None = None,
    runs: Path | None = None,
    table: TableOptions | None = None,
    max_parameters: str = "",
    max_tokens: str = "",
    unique_tokens: str = "",
    inference_tokens: str = "",
    batch: str = "",
    learning_rate: str = "",
    cost_from: Path | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Split a training budget between model size and tokens.

    Example: steelyard laws allocate --published besiroglu2024 --flops 1e22FLOP

    Example: steelyard laws allocate --runs runs.csv --flops 1e21FLOP

    Args:
        flops: budget, such as 1e22FLOP.
        law: which law to ask.
        runs: table of runs in place of a law; several forms are fitted to it and weighed by how
            well they foresaw its larger runs, as `laws forecast` does.
        table: which columns and rows of --runs to read.
        max_parameters: largest model allowed, such as 8B.
        max_tokens: most training tokens, such as 15T.
        unique_tokens: distinct tokens at hand, for laws of repetition.
        inference_tokens: tokens the model will serve; their compute comes out of the budget.
        batch: law of the batch, a file or a published name.
        learning_rate: law of the learning rate, a file or a published name.
        cost_from: table with columns parameters, tokens and flops; what training costs is then
            k N^a D^b fitted to it, not 6 N D.
        json: print JSON instead of a table.
    """
    from steelyard import laws

    options, columns = law or LawOptions(), table or TableOptions()
    refuse_sources(options, runs, columns)
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
    asked: dict[str, Any] = {
        "limits": laws.Limits(**given),
        "recipe": recipe,
        "cost": _cost(cost_from),
        "extrapolate": options.extrapolate,
    }
    if runs is not None:
        return answer_runs(columns.read(runs), budget, asked, json)
    chosen = laws.allocate(options.law(), budget, **asked)
    trouble = tuple(dict.fromkeys((*options.trouble(), *chosen.trouble)))
    if json:
        return print(dump(asdict(chosen) | {"trouble": [asdict(item) for item in trouble]}))
    allocation_page(chosen, trouble).print()
    where = ("--accelerator", "H100-SXM5-80GB", "--count", "8", "--deadline", "10 years")
    same_law = ("--law", options.published) if options.published else ()
    say_next("plan", "train", "--budget", flops, *where, *same_law)


def _cost(file: Path | None) -> "CostLaw":
    """Fit what training costs to a table's recorded FLOPs; 6 N D without one."""
    from steelyard.laws.decisions.cost_law import SIX_N_D, CostLaw
    from steelyard.laws.tables.table import RunTable

    if file is None:
        return SIX_N_D
    # That the FLOPs are not 6 N D is why they are asked.
    return CostLaw.fit(RunTable.read(file, flops_factor=math.inf))


def next_cell(
    *,
    at: Annotated[tuple[str, ...], MANY],
    parameters: str,
    tokens: str,
    law: LawOptions | None = None,
    runs: Path | None = None,
    max_flops: str = "",
    accelerator: str = "",
    count: int = 1,
    budget: str = "",
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Say which run to do next to sharpen a prediction most per FLOP, and what knowing is worth.

    Example: steelyard laws next --fit law.json --at parameters=1B tokens=20B --parameters 10M,30M
    --tokens 1B,3B

    Example: steelyard laws next --runs runs.csv --at parameters=7B tokens=140B
    --parameters 100M,1B --tokens 3B,30B

    Example: steelyard laws next --fit law.json --at parameters=7B tokens=140B --parameters 100M,1B
    --tokens 3B,30B --accelerator H100-SXM5-80GB --count 8

    Args:
        at: the run whose prediction should become sharper, NAME=NUMBER.
        parameters: sizes that could be trained, such as 10M,30M,100M.
        tokens: token counts that could be trained, such as 1B,3B,10B.
        law: which law to ask; a fit with points.
        runs: table of runs with columns parameters, tokens and loss in place of a law: several
            forms are fitted to it, and a run that tells them apart is worth more.
        max_flops: most compute for one run, such as 1e19FLOP.
        accelerator: catalog machine on which the runs are priced, beside what each saves in the
            plan that asks.
        count: accelerators at hand; a model too large for them is spread over more.
        budget: compute of the plan that asks; 6 parameters x tokens of --at unless given.
        json: print JSON instead of a table.
    """
    import numpy as np

    from steelyard import laws

    options = law or LawOptions()
    refuse_sources(options, runs, TableOptions())
    sizes = [units.parse(text, "parameter", where="--parameters") for text in parameters.split(",")]
    counts = [units.parse(text, "token", where="--tokens") for text in tokens.split(",")]
    grid = np.array(list(itertools.product(sizes, counts)))
    most = units.parse(max_flops, "FLOP", where="--max-flops") if max_flops else np.inf
    cells, wanted = {"parameters": grid[:, 0], "tokens": grid[:, 1]}, numbers(at, "--at")
    worth = None
    if runs is not None:
        refuse_price(accelerator)
        found = next_of_runs(runs, cells, wanted, most)
    else:
        found = laws.next_cell(options.law(), cells, wanted, max_flops=most)
        worth = _worth(options.law(), found, wanted, accelerator, count, budget)
    if json:
        names = ("flops", "interval_before", "interval_after", "level")
        known = {name: getattr(found, name) for name in names}
        known |= {"worth": asdict(worth)} if worth else {}
        print(dump({"best": found.best, **found.inputs, **known}))
    else:
        candidates_page(found, worth).print()
        ask = ("forecast", runs) if runs is not None else ("predict", *options.words())
        say_next("laws", *ask, "--at", *at)


def _worth(
    fit: "Fit",
    found: "NextCell",
    wanted: dict[str, float],
    accelerator: str,
    count: int,
    budget: str,
) -> "Worth | None":
    """Price the candidates and the plan that asks; None where no machine was named."""
    from steelyard.cli.laws.price import price_candidates

    if not accelerator:
        return None
    compute = (
        units.parse(budget, "FLOP", where="--budget")
        if budget
        else 6.0 * wanted.get("parameters", 0.0) * wanted.get("tokens", 0.0)
    )
    return price_candidates(fit, found.inputs, accelerator, count, compute)


_KEYS = (
    "name",
    "title",
    "form",
    "params",
    "missing",
    "standard_errors",
    "counts",
    "target",
    "unit",
    "tokenizer",
    "source",
)


def registry(name: str = "", *, json: Annotated[bool, FLAG] = False) -> None:
    """List the published laws, or show one.

    Example: steelyard laws registry besiroglu2024

    Args:
        name: name of one law; all unless given.
        json: print JSON instead of a table.
    """
    from steelyard.laws.registry import published

    chosen = [published[name]] if name else list(published.values())
    if json:
        rows = [
            {key: getattr(item, key) for key in _KEYS}
            | {"law": item.law.name, "formula": item.law.formula}
            for item in chosen
        ]
        print(dump(rows))
    else:
        (law_page(chosen[0]) if name else registry_page(chosen)).print()
        say_next("laws", "registry", *(() if name else (chosen[0].name,)))


def theory(
    *,
    a: float = 2.0,
    b: float = 1.5,
    modes: int = 1000,
    learning_rate: float = 0.4,
    steps: int = 100,
    width: float = float("inf"),
    samples: float = float("inf"),
    budget: float = 0.0,
    chart: Path | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Solve a model of learning exactly: loss over steps, width and samples, and what binds.

    Example: steelyard laws theory

    Args:
        a: source exponent, power of the target along mode k ~ k^-a, above 1.
        b: capacity exponent, variance of mode k ~ k^-b.
        modes: features of the task.
        learning_rate: step size over the largest variance.
        steps: training steps.
        width: features of the student; endless unless given.
        samples: training examples; endless unless given.
        budget: width times steps to split best; none unless given.
        chart: file for the picture of the learning curve, .html, .svg, .png or .json.
        json: print JSON instead of a table.
    """
    import numpy as np

    from steelyard.laws.theory.random_features import RandomFeatureModel

    chart_file(chart)
    model = RandomFeatureModel(a=a, b=b, modes=modes, learning_rate=learning_rate)
    when = np.unique(np.geomspace(1, max(steps, 1), 25).round().astype(np.int64))
    curve = model.loss(when, width, samples)
    best = asdict(model.compute_optimal(budget, samples)) if budget else None
    binding = asdict(model.bottleneck(steps, width, samples)) if steps > 1 else None
    title = f"Random features, a = {a:g}, b = {b:g}"
    losses = {"test": curve.test.tolist(), "train": curve.train.tolist()}
    if chart is not None:
        from steelyard.runs.charts import loss_curves

        lines = {name: (curve.steps.tolist(), loss) for name, loss in losses.items()}
        words = {"x_title": "Steps", "y_title": "Mean squared error"}
        save_chart(loss_curves(lines, title, log_x=True, **words), chart)
    if json:
        value = {
            "steps": curve.steps,
            **{f"{name}_loss": loss for name, loss in losses.items()},
            "truncation": curve.truncation,
            "exponents": asdict(model.exponents()),
            "slopes": binding,
            "compute_optimal": best,
        }
        print(dump(value))
    else:
        theory_page(title, model, curve, binding, best).print()
        if not budget:
            say_next("laws", "theory", "--a", a, "--b", b, "--budget", 1_000_000)
