"""Layouts for a run on given machines: the search with its money, and the best one as a plan."""

import math

from steelyard.catalog.architecture import Architecture
from steelyard.config import to_plain
from steelyard.cost.bill import Bill, bill
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.advice import LayoutAdvice, advise
from steelyard.plan.changes import NoPlanError
from steelyard.plan.intervals import beyond_spread
from steelyard.plan.layout_space import LayoutSpace
from steelyard.plan.machines import Machines
from steelyard.plan.shapes import learning_rate
from steelyard.plan.training_search import TrainingSearch
from steelyard.plan.types import Plan
from steelyard.quantity import Forecast

__all__ = ["advise_run", "plan_of"]

_STEP_TOKENS = 2**22
"""Tokens of a step where no batch is named: about what large runs take (arXiv 2005.14165, table
2.1: 3.2 million; arXiv 2407.21783, section 3.4.1: 4 million at first)."""


def advise_run(
    arch: Architecture,
    machines: Machines,
    *,
    tokens: float = 0.0,
    global_batch: int = 0,
    sequence_length: int = 2048,
    space: LayoutSpace | None = None,
) -> LayoutAdvice:
    """Rank the layouts of a run on all of the machines.

    Args:
        arch: model that is trained.
        machines: where it is trained, with published peaks.
        tokens: training tokens of the run; 20 per parameter when 0.
        global_batch: sequences of a step; about 4 million tokens when 0.
        sequence_length: tokens per sequence.
        space: what each axis of a layout may be; all that is worth trying when not given.

    Returns:
        The advice, with the run's tokens and, where the price is known, its money.

    Raises:
        CatalogError: the accelerator lacks a published rate.
        ConfigError: tokens, batch or length are out of range.
        NoPlanError: no layout exists or none fits in memory; its `changes` are the nearest with
            which one does.
    """
    if min(tokens, global_batch, sequence_length - 1) < 0 or not math.isfinite(tokens):
        raise ConfigError(
            f"tokens {tokens:g}, global batch {global_batch} and sequence length {sequence_length} "
            "must be positive"
        )
    machine = Machine.from_accelerator(
        machines.accelerator, dtype=machines.dtype, cluster=machines.cluster
    )
    # Six operations a parameter and token: attention's share counts as further parameters.
    run_tokens = tokens or 20 * model_flops_per_token(arch, sequence_length) / 6
    run = TrainingSearch(
        arch=arch,
        machine=machine,
        num_nodes=machines.cluster.num_nodes,
        per_node=machines.cluster.accelerators_per_node,
        tokens=run_tokens,
        global_batch=global_batch or max(1, round(_STEP_TOKENS / sequence_length)),
        sequence_length=sequence_length,
        deadline_s=math.inf,
        name=machines.cluster.name,
        counts=(machines.cluster.num_accelerators,),
        space=space or LayoutSpace(),
    )
    try:
        search = run.found
    except InfeasibleError as error:
        raise NoPlanError(error, run) from error
    duration_s = run_tokens / float(search.tokens_per_s[search.best(search.fits)])
    # Only the value is of interest here, whatever its interval.
    costs = _bill(machines, duration_s, 0.0)
    known = {item.quantity: item.value for item in costs.forecasts}
    run_usd = known.get("run.cost", float("nan"))
    return advise(
        search,
        arch,
        machine,
        beyond=beyond_spread(machine, arch),
        run_tokens=run_tokens,
        run_usd=run_usd,
    )


def plan_of(advice: LayoutAdvice, machines: Machines) -> Plan:
    """Return the best layout as a plan, for exports.

    Args:
        advice: layouts of a run, as `advise_run` returns them, with what was measured since.
        machines: what it was asked for.

    Returns:
        The plan, with time, memory, energy, money and carbon as far as they are known.
    """
    choice = advice.search.choice(advice.chosen)
    length = advice.search.sequence_length
    batch = choice["data"] * choice["micro_batch"] * choice["accumulation"]
    steps = max(1, round(advice.run_tokens / (batch * length)))
    flops = advice.run_tokens * model_flops_per_token(advice.arch, length)
    step_s, _, high_s = advice.step_s
    relative = high_s / step_s - 1
    costs = _bill(machines, steps * step_s, relative)
    return Plan(
        choice=choice
        | {
            "architecture": to_plain(advice.arch),
            "sequence_length": length,
            "steps": steps,
            "learning_rate": float(f"{learning_rate(flops):.3g}"),
            "dtype": machines.dtype,
            "accelerator": machines.cluster.accelerator,
        },
        forecasts=[*_times(advice, step_s, steps, relative), *costs.forecasts],
        unknown=costs.unknown,
    )


def _times(advice: LayoutAdvice, step_s: float, steps: int, relative: float) -> list[Forecast]:
    """Forecast the time of a step and of the run, with the spread that was fitted on layouts."""
    timed = {"train.step_time": step_s, "train.total_time": step_s * steps}
    return [
        Forecast.about(
            name,
            value,
            relative=relative,
            # A measured probe moves the forecast, but its spreads stay those of other machines.
            provenance="derived" if advice.doubt.mean.any() else "assumed",
            source=advice.machine.source,
        )
        for name, value in timed.items()
    ]


def _bill(machines: Machines, duration_s: float, relative: float) -> Bill:
    """Price all of the machines for a run's time."""
    return bill(
        duration_s=duration_s,
        num_accelerators=machines.cluster.num_accelerators,
        accelerator=machines.accelerator,
        site=machines.site,
        pue=machines.cluster.pue,
        duration_relative=relative,
    )
