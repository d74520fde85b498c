"""Plan a training run: from a compute budget and a cluster to a model, its layout and its cost."""

from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.parameters import count_parameters
from steelyard.config import to_plain
from steelyard.cost.bill import Bill, bill
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.alternatives import binding_constraint, rejected
from steelyard.plan.layouts import LayoutSearch, accelerator_counts, fitting_layouts
from steelyard.plan.shapes import decoder_near, global_batch_tokens, learning_rate
from steelyard.plan.training_why import training_chain
from steelyard.plan.types import AllocationLike, Plan, interval
from steelyard.quantity import Forecast, Provenance
from steelyard.units import pretty

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

    Returns:
        The plan. An unknown price or carbon intensity leaves its forecast out, with a note.

    Raises:
        ConfigError: an argument is out of range.
        InfeasibleError: memory, batch or time rules every layout out; the message begins with
            which.
    """
    wanted, tokens = (interval(item)[0] for item in (allocation.parameters, allocation.tokens))
    _check_ranges((wanted, tokens, deadline_s, sequence_length), reserve_fraction, min_efficiency)
    arch = architecture or decoder_near(
        wanted, vocab_size=vocab_size, sequence_length=sequence_length
    )
    device = machine or Machine.from_accelerator(
        accelerator, dtype=dtype, cluster=cluster, efficiencies=efficiencies
    )
    flops = tokens * model_flops_per_token(arch, sequence_length)
    batch = _global_batch(flops, tokens, sequence_length)
    search = _search(arch, device, cluster, batch, sequence_length, reserve_fraction)
    best = _best_per_count(search)
    chosen = _choose_count(search, best, tokens, deadline_s, min_efficiency, cluster)
    choice = _choice(search, chosen, arch, cluster, dtype, sequence_length, tokens, flops)
    duration_s = choice["steps"] * float(search.cost.time_s[chosen])
    prices: dict[str, Any] = {"rent_usd": rent_usd, "prefers_rent": prefers_rent}
    costs = _bill(duration_s, choice, device, accelerator, site, cluster, **prices)
    run = (arch, device, search, chosen, choice["steps"])
    why = training_chain(*run, accelerator, site, cluster.pue, costs) if explains else []
    timed = _forecasts(search, chosen, choice["steps"], device)
    return Plan(
        choice=choice,
        forecasts=[_loss(allocation), *timed, *costs.forecasts],
        rejected=rejected(search, chosen, best, tokens, deadline_s),
        binding_constraint=binding_constraint(search, chosen, best),
        notes=_notes(device, batch, costs.unknown),
        unknown=costs.unknown,
        why=why,
    )


def _bill(
    duration_s: float,
    choice: dict[str, Any],
    device: Machine,
    accelerator: Accelerator,
    site: Site,
    cluster: Cluster,
    **prices: Any,
) -> Bill:
    """Price the run of the chosen layout."""
    return bill(
        duration_s=duration_s,
        num_accelerators=choice["num_accelerators"],
        accelerator=accelerator,
        site=site,
        pue=cluster.pue,
        duration_relative=device.time_relative,
        **prices,
    )


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


def _best_per_count(search: LayoutSearch) -> dict[int, int]:
    """Return the fastest candidate that fits, for each number of accelerators that has one."""
    counts = sorted({*search.num_accelerators[search.fits].tolist()})
    return {
        count: search.best(search.fits & (search.num_accelerators == count)) for count in counts
    }


def _global_batch(flops: float, tokens: float, sequence_length: int) -> int:
    """Return the sequences per step: a power of two near the usual tokens for this compute."""
    # A small run would take a few huge steps by that rule: it gets at least 250.
    wanted = min(global_batch_tokens(flops), tokens / 250) / sequence_length
    return 2 ** max(0, round(np.log2(max(wanted, 1.0))))


def _search(
    arch: Architecture,
    machine: Machine,
    cluster: Cluster,
    batch: int,
    sequence_length: int,
    reserve_fraction: float,
) -> LayoutSearch:
    """Evaluate every layout on the cluster; refuse when none exists or none fits."""
    return fitting_layouts(
        arch,
        machine,
        counts=accelerator_counts(cluster.num_nodes, cluster.accelerators_per_node),
        global_batch=batch,
        sequence_length=sequence_length,
        reserve_fraction=reserve_fraction,
    )


def _choose_count(
    search: LayoutSearch,
    best: dict[int, int],
    tokens: float,
    deadline_s: float,
    min_efficiency: float,
    cluster: Cluster,
) -> int:
    """Return the candidate of the largest efficient number of accelerators.

    Where that misses the deadline it is the one of the fewest accelerators that meet it.
    """
    rate = {count: float(search.tokens_per_s[index]) for count, index in best.items()}
    fastest = max(rate, key=lambda count: rate[count])
    if tokens / rate[fastest] > deadline_s:
        raise InfeasibleError(
            f"time: {pretty(tokens, 'token')} take {pretty(tokens / rate[fastest], 's')} on "
            f"{fastest} accelerators of {cluster.name}, longer than the limit of "
            f"{pretty(deadline_s, 's')}",
            hint="lower the budget, choose a larger cluster, or allow more time",
        )
    efficiency = {count: rate[count] / count for count in rate}
    least = min_efficiency * max(efficiency.values())
    efficient = [count for count in rate if efficiency[count] >= least]
    chosen = max(efficient, key=lambda count: rate[count])
    if tokens / rate[chosen] > deadline_s:
        chosen = min(count for count in rate if tokens / rate[count] <= deadline_s)
    return best[chosen]


def _choice(
    search: LayoutSearch,
    index: int,
    arch: Architecture,
    cluster: Cluster,
    dtype: str,
    sequence_length: int,
    tokens: float,
    flops: float,
) -> dict[str, Any]:
    """Collect the chosen settings as plain values."""
    steps = max(1, round(tokens / float(search.cost.tokens[index])))
    layout = search.choice(index)
    batch = layout["data"] * layout["micro_batch"] * layout["accumulation"]
    return {
        "architecture": to_plain(arch),
        "parameters": int(count_parameters(arch).total),
        "tokens": float(steps * batch * sequence_length),
        "steps": steps,
        "sequence_length": sequence_length,
        "global_batch": batch,
        "learning_rate": float(f"{learning_rate(flops):.3g}"),
        "dtype": dtype,
        "cluster": cluster.name,
        "accelerator": cluster.accelerator,
        **layout,
    }


def _forecasts(
    search: LayoutSearch,
    index: int,
    steps: int,
    machine: Machine,
) -> list[Forecast]:
    """Forecast time, utilization, memory and work of the chosen candidate."""
    kind: Provenance = "derived" if machine.provenance == "measured" else "assumed"
    cost = search.cost
    seconds = float(cost.time_s[index])
    timed = {
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
    width = machine.time_relative
    return [
        *(
            Forecast.about(name, value, relative=width, provenance=kind, source=machine.source)
            for name, value in timed.items()
        ),
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
