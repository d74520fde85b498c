"""The chain behind a training plan: FLOP of the run, time of a step, memory, time and money."""

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
from steelyard.quantity import Forecast

__all__ = ["bill_chain", "layout_chain", "training_chain"]


def training_chain(
    arch: Architecture,
    machine: Machine,
    search: LayoutSearch,
    index: int,
    steps: int,
    accelerator: Accelerator,
    site: Site,
    pue: float,
    costs: Bill,
    goodput: Forecast | None = None,
) -> list[ChainStep]:
    """Show how a plan's figures follow from one another.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        search: candidates that the plan chose from.
        index: the chosen one.
        steps: optimizer steps of the run.
        accelerator: record with power and price.
        site: place with its electricity.
        pue: facility overhead of the cluster, 0 for the site's.
        costs: the plan's bill.
        goodput: share of time that failures leave, None where they are not known.

    Returns:
        Steps, each after those it needs; the last ones are time, energy and money of the run.
    """
    cost = search.one_cost(index)
    length = search.sequence_length
    tokens = steps * cost.tokens
    seconds = steps * cost.time_s
    count = float(search.num_accelerators[index])
    found = {item.quantity: item.value for item in costs.forecasts}
    return [
        ChainStep(
            name="tokens",
            formula="steps x step_tokens",
            numbers={"steps": float(steps), "step_tokens": cost.tokens},
            value=tokens,
            unit="token",
            source="scaling law and budget, in whole steps",
        ),
        flops_per_token_step(arch, length),
        run_flops_step(arch, length, tokens, steps * cost.model_flops),
        *layout_chain(arch, machine, search, index),
        utilization_step(machine, cost, count),
        ChainStep(
            name="total_time",
            formula="steps x step_time",
            numbers={"steps": float(steps), "step_time": cost.time_s},
            value=seconds,
            unit="s",
            source="failures, restarts and evaluation left out",
        ),
        *([_duration_step(seconds, goodput)] if goodput else []),
        *bill_chain(
            accelerator,
            site,
            costs,
            found,
            count,
            seconds / (goodput.value if goodput else 1.0),
            pue or site.pue,
            "duration" if goodput else "total_time",
        ),
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
    names = ("data", "tensor", "pipeline", "zero_stage", "recompute", "sequence_parallel")
    choice = search.choice(index)
    layout = Layout(**{name: choice[name] for name in names})
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
