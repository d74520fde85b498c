"""The chain behind a training plan: FLOP of the run, time of a step, memory, time and money."""

from dataclasses import fields
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.bill import Bill
from steelyard.cost.layout import Layout
from steelyard.cost.memory import MIXED, PURE_FP32
from steelyard.cost.roofline import Machine
from steelyard.cost.why.chain import ChainStep
from steelyard.cost.why.memory import fit_step, training_memory_steps
from steelyard.cost.why.money import energy_step, hour_steps, run_cost_step
from steelyard.cost.why.training import (
    flops_per_token_step,
    run_flops_step,
    step_time_steps,
    utilization_step,
)
from steelyard.plan.layouts import LayoutSearch
from steelyard.plan.training_search import TrainingSearch
from steelyard.quantity import Forecast

__all__ = ["bill_chain", "layout_chain", "training_chain"]


def training_chain(
    run: TrainingSearch,
    steps: int,
    accelerator: Accelerator,
    site: Site,
    pue: float,
    costs: Bill,
    *,
    goodput: Forecast | None = None,
) -> list[ChainStep]:
    """Show how a plan's figures follow from one another.

    Args:
        run: what was searched for, with the candidates and the chosen one.
        steps: optimizer steps of the run.
        accelerator: record with power and price.
        site: place with its electricity.
        pue: facility overhead of the cluster, 0 for the site's.
        costs: the plan's bill.
        goodput: share of time that failures leave, None where they are not known.

    Returns:
        Steps, each after those it needs; the last ones are time, energy and money of the run.
    """
    arch, search, index = run.arch, run.found, run.chosen
    cost = search.one_cost(index)
    seconds = steps * cost.time_s
    count = float(run.count)
    # Money and energy are those of the time with failures, where they are known.
    kept, name = (goodput.value, "duration") if goodput else (1.0, "total_time")
    found = {item.quantity: item.value for item in costs.forecasts}
    shown = (accelerator, site, costs, found, count, seconds / kept, pue or site.pue, name)
    return [
        ChainStep(
            name="tokens",
            formula="steps x step_tokens",
            numbers={"steps": float(steps), "step_tokens": cost.tokens},
            value=steps * cost.tokens,
            unit="token",
            source="scaling law and budget, in whole steps",
        ),
        flops_per_token_step(arch, run.sequence_length),
        run_flops_step(arch, run.sequence_length, steps * cost.tokens, steps * cost.model_flops),
        *layout_chain(arch, run.machine, search, index),
        utilization_step(run.machine, cost, count),
        ChainStep(
            name="total_time",
            formula="steps x step_time",
            numbers={"steps": float(steps), "step_time": cost.time_s},
            value=seconds,
            unit="s",
            source="failures, restarts and evaluation left out",
        ),
        *([_duration_step(seconds, goodput)] if goodput else []),
        *bill_chain(*shown),
    ]


def _duration_step(seconds: float, goodput: Forecast) -> ChainStep:
    """Show the time with failures."""
    return ChainStep(
        name="duration",
        formula="total_time / goodput",
        numbers={"total_time": seconds, "goodput": goodput.value},
        value=seconds / goodput.value,
        unit="s",
        source=goodput.source,
    )


def layout_chain(
    arch: Architecture, machine: Machine, search: LayoutSearch, index: int
) -> list[ChainStep]:
    """Show memory and step time of one candidate.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        search: candidates.
        index: the one to show.

    Returns:
        Steps; the last one is the time of a step.
    """
    cost = search.one_cost(index)
    choice = search.choice(index)
    layout = Layout(
        **{name: choice[name] for name in {*choice} & {item.name for item in fields(Layout)}}
    )
    shape: dict[str, Any] = {
        "layout": layout,
        "micro_batch": choice["micro_batch"],
        "accumulation": choice["accumulation"],
        "sequence_length": search.sequence_length,
    }
    precision = PURE_FP32 if machine.dtype_bytes >= 4 else MIXED
    reserve = 1 - search.limit_bytes / machine.memory_bytes
    return [
        *training_memory_steps(arch, cost.memory, precision=precision, **shape),
        fit_step(machine.memory_bytes, reserve, search.limit_bytes, machine.name),
        *step_time_steps(arch, machine, cost, **shape),
    ]


def bill_chain(
    accelerator: Accelerator,
    site: Site,
    costs: Bill,
    found: dict[str, float],
    count: float,
    seconds: float,
    pue: float,
    time_name: str = "total_time",
) -> list[ChainStep]:
    """Show energy and money of a run, as far as they are known.

    Args:
        accelerator: record with power and price.
        site: place with its electricity.
        costs: bill of the run.
        found: forecasts of the answer by quantity.
        count: accelerators.
        seconds: time of the run.
        pue: facility overhead.
        time_name: name of the step that the time comes from.

    Returns:
        Steps.
    """
    steps = [energy_step(accelerator, count, seconds, pue, found["run.energy"], time_name)]
    if costs.hour and "run.cost" in found:
        steps += hour_steps(accelerator, site, costs.hour)
        steps.append(run_cost_step(costs.hour, count, seconds, found["run.cost"], time_name))
    return steps
