"""Plan a training run.

From a compute budget and a cluster to a model, its layout, and what it takes.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.parameters import count_parameters
from steelyard.config import to_plain
from steelyard.cost.bill import bill
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.roofline import Efficiencies, Machine
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.layouts import LayoutSearch, accelerator_counts, search_layouts
from steelyard.plan.shapes import decoder_near, global_batch_tokens, learning_rate
from steelyard.plan.types import Plan, Rejected
from steelyard.quantity import Forecast, Provenance
from steelyard.units import pretty

__all__ = ["AllocationLike", "Interval", "plan_training"]

YEAR_S = 365.25 * 86400
STEP_RELATIVE = 0.35
"""Half-width of the step time's interval on a published machine: 24 of 27 runs that did not set the
efficiencies lie within."""


class Interval(Protocol):
    """A value with its 80 % interval, such as a Forecast."""

    @property
    def value(self) -> float:
        """Central value."""
        ...

    @property
    def low(self) -> float:
        """Lower end."""
        ...

    @property
    def high(self) -> float:
        """Upper end."""
        ...


class AllocationLike(Protocol):
    """What a scaling law says of a budget: anything with these three."""

    @property
    def parameters(self) -> Any:
        """Parameters, embeddings included: a number or an `Interval`."""
        ...

    @property
    def tokens(self) -> Any:
        """Training tokens: a number or an `Interval`."""
        ...

    @property
    def loss(self) -> Any:
        """Loss in nats per token: a number or an `Interval`."""
        ...


def _interval(value: Any) -> tuple[float, float, float]:
    """Give (value, low, high) of an interval, or of a bare number with no width."""
    if hasattr(value, "value"):
        return float(value.value), float(value.low), float(value.high)
    return float(value), float(value), float(value)


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
    loss_source: str = "",
) -> Plan:
    """Choose a model shape, a layout and a number of accelerators, and forecast the run.

    The layout with the highest throughput that fits is chosen for each number of accelerators. Of
    these, the largest number is taken whose throughput per accelerator is at least `min_efficiency`
    of the best one's.

    Args:
        allocation: parameters, tokens and loss, as `laws.allocate` gives.
        cluster: where it runs.
        accelerator: the cluster's.
        site: price of energy and carbon.
        sequence_length: tokens per sequence.
        vocab_size: rows of the token embedding.
        dtype: of the matrix products.
        architecture: train this instead of a shape near the allocation's parameters.
        deadline_s: longest acceptable run.
        min_efficiency: least throughput per accelerator relative to the best number of
            accelerators.
        reserve_fraction: memory kept free.
        efficiencies: override the assumed ones.
        machine: a calibrated machine to use instead of the accelerator's published peaks.
        rent_usd: price of an accelerator-hour, instead of the amortized or list one.
        loss_source: where the loss comes from; the allocation's own source when empty.

    Returns:
        The plan.

    Raises:
        ConfigError: an argument is out of range.
        InfeasibleError: memory, batch or time rules every layout out; the message begins with
            which.
    """
    wanted, tokens = _wanted(
        allocation, deadline_s, sequence_length, reserve_fraction, min_efficiency
    )
    arch = architecture or decoder_near(
        wanted, vocab_size=vocab_size, sequence_length=sequence_length
    )
    device = machine or Machine.from_accelerator(
        accelerator, dtype=dtype, cluster=cluster, efficiencies=efficiencies
    )
    flops = tokens * model_flops_per_token(arch, sequence_length)
    batch = _global_batch(flops, tokens, sequence_length)
    counts = accelerator_counts(cluster.num_nodes, cluster.accelerators_per_node)
    sizes = {"global_batch": batch, "sequence_length": sequence_length}
    search = search_layouts(arch, device, counts=counts, reserve_fraction=reserve_fraction, **sizes)
    _refuse_impossible(search, arch, accelerator, cluster, batch)
    best = _best_per_count(search, counts)
    chosen = _choose_count(search, best, tokens, deadline_s, min_efficiency, cluster)
    steps = max(1, round(tokens / float(search.cost.tokens[chosen])))
    choice = _choice(search, chosen, arch, cluster, dtype, sequence_length, steps, flops)
    forecasts = _forecasts(search, chosen, steps, device, allocation, loss_source)
    forecasts += bill(
        duration_s=steps * float(search.cost.time_s[chosen]),
        num_accelerators=choice["num_accelerators"],
        accelerator=accelerator,
        site=site,
        pue=cluster.pue,
        rent_usd=rent_usd,
        duration_relative=_relative(device),
    )
    rejected, binding = (
        _rejected(search, chosen, best, tokens, deadline_s),
        _binding(search, chosen, best),
    )
    return Plan(
        choice=choice,
        forecasts=forecasts,
        rejected=rejected,
        binding_constraint=binding,
        notes=[
            f"step time: {device.source}",
            f"batch of about {batch} sequences and learning rate: arXiv 2401.02954, equation 1",
        ],
    )


def _wanted(
    allocation: AllocationLike,
    deadline_s: float,
    sequence_length: int,
    reserve_fraction: float,
    min_efficiency: float,
) -> tuple[float, float]:
    """Return the allocation's parameters and tokens, and refuse arguments out of range."""
    wanted, tokens = _interval(allocation.parameters)[0], _interval(allocation.tokens)[0]
    if (
        min(wanted, tokens, deadline_s, sequence_length) <= 0
        or not 0 <= reserve_fraction < 1
        or not 0 < min_efficiency <= 1
    ):
        raise ConfigError(
            "parameters, tokens, deadline_s and sequence_length must be positive and the "
            "fractions within 0..1"
        )
    return wanted, tokens


def _best_per_count(search: LayoutSearch, counts: Iterable[int]) -> dict[int, int]:
    """Return the candidate of highest throughput that fits, for each number of accelerators that has one."""
    found = {
        count: search.best(search.fits & (search.num_accelerators == count)) for count in counts
    }
    return {count: index for count, index in found.items() if index >= 0}


def _global_batch(flops: float, tokens: float, sequence_length: int) -> int:
    """Return sequences per step: the usual tokens for this compute, a power of two, and at least 250 steps."""
    wanted = min(global_batch_tokens(flops), tokens / 250) / sequence_length
    return 2 ** max(0, round(np.log2(max(wanted, 1.0))))


def _refuse_impossible(
    search: LayoutSearch, arch: Architecture, accelerator: Accelerator, cluster: Cluster, batch: int
) -> None:
    """Raise when no layout exists or none fits."""
    if not len(search.fits):
        message = (
            f"batch: no split of {cluster.num_accelerators} accelerators divides {batch} "
            f"sequences and {arch.num_layers} layers"
        )
        raise InfeasibleError(message, hint="use fewer accelerators or a longer training run")
    if not search.fits.any():
        least = float(search.memory_bytes.min())
        raise InfeasibleError(
            f"memory: {arch.name} needs at least {pretty(least, 'byte')} per accelerator on "
            f"{cluster.name}, "
            f"and {accelerator.name} offers {pretty(search.limit_bytes, 'byte')} after the reserve",
            hint="choose a larger cluster, a smaller budget, or accelerators with more memory",
        )


def _choose_count(
    search: LayoutSearch,
    best: dict[int, int],
    tokens: float,
    deadline_s: float,
    min_efficiency: float,
    cluster: Cluster,
) -> int:
    """Return the candidate of the largest efficient number of accelerators, or of the fewest that meet the deadline."""
    rate = {count: float(search.tokens_per_s[index]) for count, index in best.items()}
    fastest = max(rate, key=lambda count: rate[count])
    if tokens / rate[fastest] > deadline_s:
        raise InfeasibleError(
            f"time: {pretty(tokens, 'token')} take {pretty(tokens / rate[fastest], 's')} on "
            f"{fastest} accelerators of {cluster.name}, "
            f"longer than the limit of {pretty(deadline_s, 's')}",
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
    steps: int,
    flops: float,
) -> dict[str, Any]:
    """Collect the chosen settings as plain values."""
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


def _relative(machine: Machine) -> float:
    """Return the half-width of a step time's interval: narrower on a calibrated machine."""
    return 0.2 if machine.provenance == "measured" else STEP_RELATIVE


def _forecasts(
    search: LayoutSearch,
    index: int,
    steps: int,
    machine: Machine,
    allocation: AllocationLike,
    loss_source: str,
) -> list[Forecast]:
    """Forecast loss, time, utilization, memory and work of the chosen candidate."""
    provenance: Provenance = "derived" if machine.provenance == "measured" else "assumed"
    relative, cost, source = _relative(machine), search.cost, machine.source
    seconds, mfu = float(cost.time_s[index]), float(cost.mfu[index])

    def about(
        name: str, value: float, width: float, kind: Provenance = provenance, said: str = source
    ) -> Forecast:
        return Forecast.about(name, value, relative=width, provenance=kind, source=said)

    count = float(search.num_accelerators[index])
    return [
        _loss(allocation, loss_source),
        about("train.step_time", seconds, relative),
        about("train.total_time", seconds * steps, relative),
        about("train.throughput", float(search.tokens_per_s[index]), relative),
        about("train.mfu", mfu, relative),
        about(
            "plan.memory_per_accelerator",
            float(search.memory_bytes[index]),
            0.15,
            "derived",
            "weights, optimizer and saved activations",
        ),
        about("plan.num_accelerators", count, 0.0, "derived", "chosen by the plan"),
        about(
            "train.flops",
            float(cost.model_flops[index]) * steps,
            0.0,
            "derived",
            "6N plus attention",
        ),
    ]


def _loss(allocation: AllocationLike, source: str) -> Forecast:
    """Forecast the loss; a law without uncertainty gets an assumed width of 5 %."""
    value, low, high = _interval(allocation.loss)
    kind: Provenance = getattr(allocation, "provenance", "fitted")
    said = source or str(getattr(allocation, "source", "scaling law"))
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


def _rejected(
    search: LayoutSearch, chosen: int, best: dict[int, int], tokens: float, deadline_s: float
) -> list[Rejected]:
    """List the alternatives worth knowing: faster but too big, other splits of the same number, other numbers."""
    same = search.num_accelerators == search.num_accelerators[chosen]
    rate, found = search.tokens_per_s, []
    bigger = search.best(~search.fits & same & (rate > rate[chosen]))
    if bigger >= 0:
        memory = (
            f"{pretty(float(search.memory_bytes[bigger]), 'byte')} of "
            f"{pretty(search.limit_bytes, 'byte')}"
        )
        gain = f"{100 * (rate[bigger] / rate[chosen] - 1):.0f} % faster"
        found.append(
            Rejected(
                choice=search.choice(bigger), reason=f"{gain}, but needs {memory} per accelerator"
            )
        )
    for name in ("tensor", "pipeline", "zero_stage", "recompute", "micro_batch"):
        column = getattr(search, name)
        other = search.best(search.fits & same & (column != column[chosen]))
        if other >= 0:
            loss = 100 * (1 - rate[other] / rate[chosen])
            found.append(
                Rejected(
                    choice=search.choice(other),
                    reason=f"best with another {name}: {loss:.1f} % slower",
                )
            )
    per_accelerator = float(rate[chosen] / search.num_accelerators[chosen])
    for count in sorted(best, reverse=True):
        if count == search.num_accelerators[chosen]:
            continue
        share, duration = (
            float(rate[best[count]]) / count / per_accelerator,
            tokens / float(rate[best[count]]),
        )
        late = ", past the deadline" if duration > deadline_s else ""
        reason = (
            f"{count} accelerators take {pretty(duration, 's')}{late} at {100 * share:.0f} % "
            f"of the efficiency"
        )
        found.append(Rejected(choice=search.choice(best[count]), reason=reason))
    return found[:10]


def _binding(search: LayoutSearch, chosen: int, best: dict[int, int]) -> str:
    """Name what keeps the plan from being faster."""
    same = search.num_accelerators == search.num_accelerators[chosen]
    free = search.best(same)
    count = int(search.num_accelerators[chosen])
    if search.tokens_per_s[free] > 1.02 * search.tokens_per_s[chosen]:
        return "memory: a layout that does not fit would be faster"
    if count < max(search.num_accelerators):
        return "efficiency: more accelerators would finish sooner but idle more"
    parts = {
        "compute": search.cost.compute_s,
        "tensor-parallel links": search.cost.tensor_s,
        "pipeline bubble": search.cost.bubble_s,
    }
    parts |= {"data-parallel network": search.cost.data_s}
    largest = max(parts, key=lambda name: float(parts[name][chosen]))
    return f"{largest}: all {count} accelerators are in use" if max(best) == count else largest
