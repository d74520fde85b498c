"""`steelyard plan which`: the same work on every accelerator, ranked by money, time and energy."""

import math
from typing import Any

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.cli.plan.fit import old_prices, weight_types
from steelyard.cli.why import plain_steps, why_section
from steelyard.config import to_plain
from steelyard.cost.why.chain import ChainStep
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.shapes import model_of
from steelyard.plan.which import Contender, ServingGoal, which_for_serving, which_for_training
from steelyard.plan.which_why import serving_contender_chain, training_contender_chain
from steelyard.quantity import quantity
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.units import parse, pretty

__all__ = ["which"]


def which(
    *,
    model: str,
    tokens: str = "",
    rate: str = "",
    ttft: str = "1 s",
    tpot: str = "50 ms",
    prompt: int = 512,
    output: int = 256,
    count: int = 64,
    weights: str = "bf16",
    site: str = "world-average",
    why: Switch = False,
    json: Switch = False,
) -> None:
    """Rank the accelerators of the catalog for one work by money, time and energy.

    Example: steelyard plan which --model llama-3.1-8b --rate '20 request/s' --tpot '30 ms'

    Args:
        model: catalog name of the model, or its size, such as 7B.
        tokens: training tokens, such as 1e12 or 300B; asks about training.
        rate: requests per second, such as 20; asks about serving.
        ttft: longest time to the first token.
        tpot: longest time per further token.
        prompt: mean prompt length in tokens.
        output: mean output length in tokens.
        count: accelerators of each kind that train.
        weights: type of the weights that are served: fp32, bf16, fp8, int8 or int4.
        site: catalog name of the place with its electricity.
        why: print the chain of formulas behind the first row.
        json: print all contenders as JSON.
    """
    _check_one(tokens, rate, min(prompt, output, count))
    arch, _ = model_of(model)
    place = catalog.site(site)
    if tokens:
        amount = parse(tokens, "token", where="--tokens")
        found = which_for_training(arch, _published(), tokens=amount, count=count, site=place)
        title = f"Training {arch.name} on {pretty(amount, 'token')}"
        shown = ("train.total_time", "run.cost", "run.energy", "train.mfu")

        def chain(record: Accelerator, item: Contender) -> list[ChainStep]:
            return training_contender_chain(arch, record, item, tokens=amount, site=place)

    else:
        goal = _goal(rate, prompt, output, ttft, tpot)
        kind = weight_types(weights)[0]
        found = which_for_serving(arch, _published(), goal, site=place, weights=kind)
        title = f"Serving {arch.name} at {pretty(goal.rate_per_s, 'request/s')}"
        shown = ("run.cost", "run.energy", "serve.ttft", "serve.tpot")

        def chain(record: Accelerator, item: Contender) -> list[ChainStep]:
            return serving_contender_chain(arch, record, item, goal, site=place, weights=kind)

    first = found[0]
    steps = chain(catalog.accelerator(first.accelerator), first) if why and first.count else []
    if json:
        print_json([to_plain(item) | _why(item is first, steps) for item in found])
    else:
        _print(title, found, shown, steps, per_hour=bool(rate))
    if not first.count:
        raise InfeasibleError(f"no accelerator of the catalog can do it: {first.reason}")
    if rate and not json:
        how = ("--use", "serve", "--weights", weights, "--context", prompt + output)
        say_next("plan", "fit", model, "--accelerator", first.accelerator, *how)
    elif not json:
        _say_training(model, first)


def _check_one(tokens: str, rate: str, least: int) -> None:
    """Refuse both questions and neither, and counts below 1."""
    if bool(tokens) == bool(rate):
        raise ConfigError(
            "either --tokens or --rate must be given",
            hint="--tokens 300B asks about training, --rate '20 request/s' about serving",
        )
    if least < 1:
        raise ConfigError("--prompt, --output and --count are at least 1")


def _published() -> list[Accelerator]:
    """Return the accelerators of the catalog, this machine left out."""
    records = [catalog.accelerator(name) for name in catalog.names("accelerators")]
    return [record for record in records if record.confidence != "measured"]


def _goal(rate: str, prompt: int, output: int, ttft: str, tpot: str) -> ServingGoal:
    """Read load and limits of a deployment."""
    return ServingGoal(
        rate_per_s=parse(rate, "request/s", where="--rate"),
        prompt_tokens=prompt,
        output_tokens=output,
        ttft_s=parse(ttft, "s", where="--ttft"),
        tpot_s=parse(tpot, "s", where="--tpot"),
    )


def _say_training(model: str, first: Contender) -> None:
    """Say how to plan the run on the accelerator that came first."""
    where = ("--accelerator", first.accelerator, "--count", first.count, "--model", model)
    spent = first.value("run.cost")
    known = f"${math.ceil(spent):,}" if math.isfinite(spent) else "1 week"
    say_next("plan", "train", "--budget", known, *where)


def _why(is_first: bool, steps: list[ChainStep]) -> dict[str, Any]:
    """Return the chain of the first contender as JSON values."""
    return {"why": plain_steps(steps)} if is_first and steps else {}


def _print(
    title: str,
    found: list[Contender],
    shown: tuple[str, ...],
    steps: list[ChainStep],
    *,
    per_hour: bool,
) -> None:
    """Print the contenders, those that can do the work first."""
    heads = [Column("accelerator"), Column("count", align="right")]
    # The last figures leave first where the terminal is too narrow for all.
    heads += [Column(name, align="right", rank=rank) for rank, name in enumerate(shown)]
    rows = [[item.accelerator, item.count or "", *_values(item, shown)] for item in found]
    notes = ["rents of the catalog; rates are published peaks x assumed efficiencies, +-35 %"]
    notes += ["money and energy of one hour"] if per_hour else []
    notes += old_prices(part.source for item in found for part in item.forecasts)
    table = Table(
        columns=[*heads, Column("why not")],
        rows=[[*row, item.reason] for row, item in zip(rows, found, strict=True)],
        caption="; ".join(notes),
    )
    sections = [Section("", [table])]
    if steps:
        sections.append(why_section(steps, f"How {found[0].accelerator} comes about"))
    Report(title, "the cheapest first", sections).print()


def _values(item: Contender, shown: tuple[str, ...]) -> list[Cell]:
    """Return a contender's forecasts as people write them, empty where unknown."""
    found = {name: item.value(name) for name in shown}
    return [
        "" if math.isinf(value) else pretty(value, quantity(name).unit)
        for name, value in found.items()
    ]
