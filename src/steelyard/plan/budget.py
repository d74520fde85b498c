"""Plan a training run: from a compute budget and a cluster to a model, its layout and its cost."""

from dataclasses import replace
from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.parameters import count_parameters
from steelyard.config import to_plain
from steelyard.cost.bill import bill
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.alternatives import binding_constraint, rejected
from steelyard.plan.changes import NoPlanError, what_helps
from steelyard.plan.interruptions import Interruptions, expected_interruptions
from steelyard.plan.intervals import step_relative, timed
from steelyard.plan.layout_space import LayoutSpace
from steelyard.plan.shapes import decoder_near, global_batch_tokens, learning_rate
from steelyard.plan.training_search import TrainingSearch
from steelyard.plan.training_why import training_chain
from steelyard.plan.types import AllocationLike, Plan, interval
from steelyard.quantity import Forecast, Provenance

__all__ = ["plan_training"]

YEAR_S = 365.25 * 86400


def plan_training(
    allocation: AllocationLike,
    *,
    cluster: Cluster,
    accelerator: Accelerator,
    site: Site,
    sequence_length: int = 2048,
    vocab_size: int = 32768,
    dtype: str = "bf16",
    architecture: Architecture | None = None,
    deadline_s: float = YEAR_S,
    min_efficiency: float = 0.85,
    reserve_fraction: float = 0.12,
    efficiencies: Efficiencies | None = None,
    machine: Machine | None = None,
    rent_usd: float | None = None,
    prefers_rent: bool = False,
    explains: bool = False,
    reprices: bool = False,
    space: LayoutSpace | None = None,
) -> Plan:
    """Choose a model shape, a layout and a number of accelerators, and forecast the run.

    The layout with the highest throughput that fits is chosen for each number of accelerators. Of
    these, the largest number is taken whose throughput per accelerator is at least `min_efficiency`
    of the best one's.

    Args:
        allocation: parameters, tokens and loss, as `laws.allocate` returns them.
        cluster: cluster the run is for.
        accelerator: record of the cluster's accelerator.
        site: place with the price and carbon intensity of its electricity.
        sequence_length: tokens per sequence.
        vocab_size: rows of the token embedding.
        dtype: number format of the matrix products.
        architecture: model that replaces a shape near the allocation's parameters.
        deadline_s: longest acceptable run.
        min_efficiency: least throughput per accelerator relative to the best number of
            accelerators.
        reserve_fraction: share of memory kept free.
        efficiencies: fractions of the peaks that replace the assumed ones.
        machine: calibrated machine that replaces the accelerator's published peaks.
        rent_usd: price of an accelerator-hour that replaces the amortized or list one.
        prefers_rent: whether the catalog's list rent comes before amortized hardware.
        explains: whether the plan carries the chain of formulas behind it.
        reprices: whether the plan says what would help most, by pricing the run anew with one thing
            better at a time.
        space: what each axis of the layout may be; all that is worth trying when not given.

    Returns:
        The plan. An unknown price or carbon intensity leaves its forecast out, with a note.

    Raises:
        ConfigError: an argument is out of range.
        NoPlanError: memory, batch or time rules every layout out; the message begins with which,
            and its `changes` are the nearest that give the run a plan.
    """
    wanted, tokens = (interval(item)[0] for item in (allocation.parameters, allocation.tokens))
    _check_ranges((wanted, tokens, deadline_s, sequence_length), reserve_fraction, min_efficiency)
    arch = architecture or decoder_near(
        wanted, vocab_size=vocab_size, sequence_length=sequence_length
    )
    device = machine or Machine.from_accelerator(
        accelerator, dtype=dtype, cluster=cluster, efficiencies=efficiencies
    )
    run = TrainingSearch(
        arch=arch,
        machine=device,
        num_nodes=cluster.num_nodes,
        per_node=cluster.accelerators_per_node,
        tokens=tokens,
        global_batch=_global_batch(arch, tokens, sequence_length),
        sequence_length=sequence_length,
        deadline_s=deadline_s,
        min_efficiency=min_efficiency,
        reserve_fraction=reserve_fraction,
        name=cluster.name,
        space=space or LayoutSpace(),
    )
    prices = {"rent_usd": rent_usd, "prefers_rent": prefers_rent}
    made = _plan(run, allocation, cluster, accelerator, site, dtype, prices, explains=explains)
    return replace(made, helps=what_helps(run)) if reprices else made


def _plan(
    run: TrainingSearch,
    allocation: AllocationLike,
    cluster: Cluster,
    accelerator: Accelerator,
    site: Site,
    dtype: str,
    prices: dict[str, Any],
    *,
    explains: bool,
) -> Plan:
    """Choose among the layouts, and forecast the run of the chosen one."""
    try:
        search, chosen = run.found, run.chosen
    except InfeasibleError as error:
        raise NoPlanError(error, run) from error
    choice = _choice(run, cluster, dtype)
    timed = _forecasts(run, choice["steps"])
    failures = _failures(run, choice, timed)
    duration = failures.forecasts[2] if failures else timed[1]
    costs = bill(
        duration_s=duration.value,
        num_accelerators=choice["num_accelerators"],
        accelerator=accelerator,
        site=site,
        pue=cluster.pue,
        duration_relative=duration.high / duration.value - 1,
        **prices,
    )
    shown = (run, choice["steps"], accelerator, site, cluster.pue, costs)
    interrupted = failures.forecasts if failures else ()
    return Plan(
        choice=choice | _saves(failures, choice["steps"], timed),
        forecasts=[_loss(allocation), *timed, *interrupted, *costs.forecasts],
        rejected=rejected(search, chosen, run.best, run.tokens, run.deadline_s),
        binding_constraint=binding_constraint(search, chosen, run.best),
        notes=_notes(run.machine, run.global_batch, costs.unknown),
        unknown=costs.unknown,
        why=training_chain(*shown, goodput=next(iter(interrupted), None)) if explains else [],
    )


def _failures(
    run: TrainingSearch, choice: dict[str, Any], timed: list[Forecast]
) -> Interruptions | None:
    """Forecast what failures make of the run; None on a calibrated machine, whose are unknown."""
    if run.machine.provenance == "measured":
        return None
    count = choice["num_accelerators"]
    total = next(item for item in timed if item.quantity == "train.total_time")
    return expected_interruptions(choice["parameters"], count, run.nodes_of(count), total)


def _saves(failures: Interruptions | None, steps: int, timed: list[Forecast]) -> dict[str, Any]:
    """Return how often the run should save, in steps."""
    if failures is None:
        return {}
    every = failures.plan.interval_s / timed[0].value
    return {"checkpoint_every": min(steps, max(1, round(every)))}


def _notes(machine: Machine, batch: int, unknown: dict[str, str]) -> list[str]:
    """List what a reader should know of the plan's numbers."""
    return [
        f"step time: {machine.source}",
        f"batch of about {batch} sequences and learning rate: arXiv 2401.02954, equation 1",
        *(f"{name} is left out: {reason}" for name, reason in unknown.items()),
    ]


def _check_ranges(
    positive: tuple[float, ...], reserve_fraction: float, min_efficiency: float
) -> None:
    """Refuse arguments out of range."""
    if min(positive) <= 0 or not (0 <= reserve_fraction < 1 and 0 < min_efficiency <= 1):
        raise ConfigError(
            "parameters, tokens, deadline_s and sequence_length must be positive and the "
            "fractions within 0..1"
        )


def _global_batch(arch: Architecture, tokens: float, sequence_length: int) -> int:
    """Return the sequences per step: a power of two near the usual tokens for this compute."""
    flops = tokens * model_flops_per_token(arch, sequence_length)
    # A small run would take a few huge steps by that rule: it gets at least 250.
    wanted = min(global_batch_tokens(flops), tokens / 250) / sequence_length
    return 2 ** max(0, round(np.log2(max(wanted, 1.0))))


def _choice(run: TrainingSearch, cluster: Cluster, dtype: str) -> dict[str, Any]:
    """Collect the chosen settings as plain values."""
    search, index, arch = run.found, run.chosen, run.arch
    flops = run.tokens * model_flops_per_token(arch, run.sequence_length)
    steps = max(1, round(run.tokens / float(search.cost.tokens[index])))
    layout = search.choice(index)
    batch = layout["data"] * layout["micro_batch"] * layout["accumulation"]
    return {
        "architecture": to_plain(arch),
        "parameters": int(count_parameters(arch).total),
        "tokens": float(steps * batch * run.sequence_length),
        "steps": steps,
        "sequence_length": run.sequence_length,
        "global_batch": batch,
        "learning_rate": float(f"{learning_rate(flops):.3g}"),
        "dtype": dtype,
        "cluster": cluster.name,
        "accelerator": cluster.accelerator,
        **layout,
    }


def _forecasts(run: TrainingSearch, steps: int) -> list[Forecast]:
    """Forecast time, utilization, memory and work of the chosen candidate."""
    search, index = run.found, run.chosen
    cost = search.cost
    seconds = float(cost.time_s[index])
    times = {
        "train.step_time": seconds,
        "train.total_time": seconds * steps,
        "train.throughput": float(search.tokens_per_s[index]),
        "train.mfu": float(cost.mfu[index]),
    }
    memory = float(search.memory_bytes[index])
    work = float(cost.model_flops[index]) * steps
    counted = (
        ("plan.memory_per_accelerator", memory, 0.15, "weights, optimizer and saved activations"),
        ("plan.num_accelerators", float(search.num_accelerators[index]), 0.0, "chosen by the plan"),
        ("train.flops", work, 0.0, "6N plus attention"),
    )
    width = step_relative(run.machine, search.one_cost(index), run.arch)
    return [
        *timed(run.machine, times, relative=width),
        *(
            Forecast.about(name, value, relative=spread, provenance="derived", source=source)
            for name, value, spread, source in counted
        ),
    ]


def _loss(allocation: AllocationLike) -> Forecast:
    """Forecast the loss; a law without uncertainty gets an assumed width of 5 %."""
    value, low, high = interval(allocation.loss)
    kind: Provenance = getattr(allocation, "provenance", "fitted")
    said = str(getattr(allocation, "source", "scaling law"))
    if low == high:
        return Forecast.about(
            "eval.loss",
            value,
            relative=0.05,
            provenance=kind,
            source=f"{said}; +-5 % assumed, no interval was given",
        )
    return Forecast(
        quantity="eval.loss",
        value=value,
        low=min(low, value),
        high=max(high, value),
        provenance=kind,
        source=said,
    )
