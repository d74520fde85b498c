"""The chain behind the first of several contenders: its time or replicas, energy and money."""

from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.bill import bill
from steelyard.cost.operators import OperatorTable
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import WEIGHT_TYPES
from steelyard.cost.why.chain import ChainStep
from steelyard.cost.why.kernels import all_reduce_step, kernel_steps
from steelyard.cost.why.training import flops_per_token_step, run_flops_step, utilization_step
from steelyard.plan.replicas import (
    BATCHES,
    UTILIZATION,
    Replica,
    ServingGoal,
    Work,
    best_replica,
    replica_works,
    serving_machine,
)
from steelyard.plan.training_why import bill_chain, layout_chain
from steelyard.plan.which import Contender, layouts_of

__all__ = ["serving_contender_chain", "training_contender_chain"]


def training_contender_chain(
    arch: Architecture, record: Accelerator, item: Contender, *, tokens: float, site: Site
) -> list[ChainStep]:
    """Show how time, energy and money of a contender that trains follow from one another.

    Args:
        arch: model that is trained.
        record: the contender's accelerator.
        item: the contender.
        tokens: tokens of the run.
        site: place with its electricity.

    Returns:
        Steps, each after those it needs.
    """
    machine, search = layouts_of(arch, record, item.count)
    best = search.best(search.fits)
    cost = search.one_cost(best)
    seconds = item.value("train.total_time")
    rate = cost.tokens / cost.time_s
    flops_per_token = flops_per_token_step(arch, search.sequence_length)
    return [
        flops_per_token,
        run_flops_step(arch, search.sequence_length, tokens, tokens * flops_per_token.value),
        *layout_chain(arch, machine, search, best),
        utilization_step(machine, cost, item.count),
        ChainStep(
            name="tokens_per_s",
            formula="step_tokens / step_time",
            numbers={"step_tokens": cost.tokens, "step_time": cost.time_s},
            value=rate,
            unit="token/s",
            source="tokens of a step on all accelerators",
        ),
        ChainStep(
            name="total_time",
            formula="tokens / tokens_per_s",
            numbers={"tokens": tokens, "tokens_per_s": rate},
            value=seconds,
            unit="s",
            source="failures, restarts and evaluation left out",
        ),
        *_billed(record, site, item, seconds),
    ]


def _billed(record: Accelerator, site: Site, item: Contender, seconds: float) -> list[ChainStep]:
    """Show energy and money of a contender."""
    costs = bill(
        duration_s=seconds,
        num_accelerators=item.count,
        accelerator=record,
        site=site,
        prefers_rent=True,
    )
    found = {part.quantity: part.value for part in item.forecasts}
    return bill_chain(record, site, costs, found, item.count, seconds, site.pue)


def serving_contender_chain(
    arch: Architecture,
    record: Accelerator,
    item: Contender,
    goal: ServingGoal,
    *,
    site: Site,
    weights: str,
) -> list[ChainStep]:
    """Show how replicas and money of a contender that serves follow from one another.

    Args:
        arch: model that is served.
        record: the contender's accelerator.
        item: the contender.
        goal: load and limits.
        site: place with its electricity.
        weights: type of the weights.

    Returns:
        Steps, each after those it needs; energy and money are of one hour.
    """
    kind = WEIGHT_TYPES[weights]
    machine = serving_machine(record, kind)
    assert machine, "a contender that serves has a rate"
    works = replica_works(arch, kind, goal)
    best = best_replica(record, machine, goal, works)
    assert isinstance(best, Replica), "a contender that serves has a replica"
    work = next(found for found in works if found.count == best.count)
    return [
        *_replica_chain(machine, work, best, goal),
        _number_step(best, item, goal),
        *_billed(record, site, item, 3600.0),
    ]


def _replica_chain(
    machine: Machine, work: Work, best: Replica, goal: ServingGoal
) -> list[ChainStep]:
    """Show the time of a prompt and of a further token."""
    # The replica was chosen among these batches: its decoding costs stand in that column.
    row = int(np.flatnonzero(best.batch == BATCHES)[0])
    prompt = _pass_steps(work.prefill, machine, work.count, work.prompt_bytes, "prompt_")
    decode = _pass_steps(
        _column(work.decode, row), machine, work.count, float(work.reduced_bytes[row]), ""
    )
    numbers = {
        decode[-1].name: decode[-1].value,
        "batch": float(best.batch),
        prompt[-1].name: best.ttft_s,
        "output_tokens": float(goal.output_tokens),
    }
    token = ChainStep(
        name="time_per_token",
        formula=f"{decode[-1].name} + batch x {prompt[-1].name} / output_tokens",
        numbers=numbers,
        value=best.tpot_s,
        unit="s",
        source="while an answer is decoded, a prompt of every other request takes the machine",
    )
    return [*prompt, *decode, token]


def _column(table: OperatorTable, row: int) -> OperatorTable:
    """Return the operators of one batch of several."""
    columns: dict[str, Any] = {
        name: getattr(table, name)[:, row]
        for name in OperatorTable.__slots__
        if name not in ("names", "kinds")
    }
    return OperatorTable(names=table.names, kinds=table.kinds, **columns)


def _pass_steps(
    table: OperatorTable, machine: Machine, count: int, size: float, prefix: str
) -> list[ChainStep]:
    """Show the time of a pass with the sums over its group."""
    steps = kernel_steps(table, machine, prefix=prefix)
    if count == 1:
        return steps  # a chip alone sums nothing with others
    name = f"{prefix}all_reduce_time"
    steps.append(all_reduce_step(machine, size, count, name=name))
    numbers = {step.name: step.value for step in steps[-2:]}
    whole = ChainStep(
        name=f"{prefix}pass_time",
        formula=" + ".join(numbers),
        numbers=numbers,
        value=sum(numbers.values()),
        unit="s",
        source="all layers' sums over the group at once",
    )
    return [*steps, whole]


def _number_step(best: Replica, item: Contender, goal: ServingGoal) -> ChainStep:
    """Show how many accelerators the rate takes."""
    return ChainStep(
        name="accelerators",
        formula="per_replica x ceil(rate x output_tokens x time_per_token / (utilization x batch))",
        numbers={
            "per_replica": float(best.count),
            "rate": goal.rate_per_s,
            "output_tokens": float(goal.output_tokens),
            "time_per_token": best.tpot_s,
            "utilization": UTILIZATION,
            "batch": float(best.batch),
        },
        value=float(item.count),
        unit="count",
        source="requests under way (Little's law) over those that the replicas hold at 80 %",
    )
