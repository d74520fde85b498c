"""Which accelerator: the same work on every kind, ranked by money, time and energy."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.bill import bill
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.roofline import Machine, operator_times_s, roofline_time_s
from steelyard.cost.weights import (
    WEIGHT_TYPES,
    WeightType,
    product_dtypes,
    stored_serving_memory,
    with_stored_weights,
)
from steelyard.errors import CatalogError, ConfigError, require
from steelyard.plan.budget import STEP_RELATIVE
from steelyard.plan.fit import COUNTS, PREFILL_CHUNK, RESERVE
from steelyard.plan.layouts import search_layouts
from steelyard.plan.machines import nodes_of
from steelyard.quantity import Forecast

__all__ = ["Contender", "ServingGoal", "which_for_serving", "which_for_training"]

_UTILIZATION = 0.8
"""Share of its rate that a replica is planned for: beyond it queues grow."""
_BATCHES: NDArray[np.float64] = np.exp2(np.arange(11, dtype=np.float64))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingGoal:
    """Load and limits of a deployment.

    Attributes:
        rate_per_s: requests per second.
        prompt_tokens: mean prompt length.
        output_tokens: mean output length.
        ttft_s: longest time to the first token.
        tpot_s: longest time per further token.
    """

    rate_per_s: float
    prompt_tokens: int = 512
    output_tokens: int = 256
    ttft_s: float = 1.0
    tpot_s: float = 0.05

    def __post_init__(self) -> None:
        """Refuse loads and limits that are not above 0."""
        names = ("rate_per_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s")
        require(self, **{name: (getattr(self, name) > 0, "above 0") for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One kind of accelerator for the work that was asked about.

    Attributes:
        accelerator: catalog name.
        count: accelerators that do the work; 0 where it cannot.
        setting: layout or batch in a few words.
        forecasts: time, energy and money, as far as they are known.
        reason: why it is not the first, or cannot do the work; empty for the first.
    """

    accelerator: str
    count: int
    setting: str = ""
    forecasts: tuple[Forecast, ...] = ()
    reason: str = ""

    def value(self, quantity: str) -> float:
        """Return the forecast of a quantity, infinite where there is none."""
        return next((item.value for item in self.forecasts if item.quantity == quantity), math.inf)


def which_for_training(
    arch: Architecture,
    accelerators: Iterable[Accelerator],
    *,
    tokens: float,
    count: int,
    site: Site,
    dtype: str = "bf16",
    sequence_length: int = 2048,
    global_batch: int = 512,
) -> list[Contender]:
    """Rank accelerators for a training run.

    Args:
        arch: model to train.
        accelerators: records to compare.
        tokens: tokens of the run.
        count: accelerators of each kind.
        site: place with its electricity.
        dtype: number format of the products.
        sequence_length: tokens per sequence.
        global_batch: sequences per step.

    Returns:
        Contenders, the cheapest first; those of unknown price after them by time; those that cannot
        at the end.

    Raises:
        ConfigError: tokens or count are not above 0.
    """
    if not (tokens > 0 and count > 0):
        raise ConfigError(f"tokens {tokens:g} and count {count} must be above 0")
    found = []
    for record in accelerators:
        try:
            found.append(
                _trained(arch, record, tokens, count, site, dtype, sequence_length, global_batch)
            )
        except CatalogError as error:
            found.append(Contender(accelerator=record.name, count=0, reason=str(error)))
    return _ranked(found, "run.cost", "train.total_time")


def _trained(
    arch: Architecture,
    record: Accelerator,
    tokens: float,
    count: int,
    site: Site,
    dtype: str,
    sequence_length: int,
    global_batch: int,
) -> Contender:
    """Plan the run on one kind of accelerator by its fastest layout."""
    machine = Machine.from_accelerator(record, dtype=dtype, cluster=nodes_of(record, count))
    search = search_layouts(
        arch,
        machine,
        counts=[count],
        global_batch=global_batch,
        sequence_length=sequence_length,
    )
    best = search.best(search.fits)
    if best < 0:
        least = float(search.memory_bytes.min()) / 1e9 if len(search.fits) else math.inf
        reason = (
            f"does not fit: needs {least:,.0f} GB, has {search.limit_bytes / 1e9:,.0f} GB on each"
        )
        return Contender(accelerator=record.name, count=0, reason=reason)
    seconds = tokens / float(search.tokens_per_s[best])
    layout = search.choice(best)
    return Contender(
        accelerator=record.name,
        count=count,
        setting=f"{layout['data']} data x {layout['tensor']} tensor x {layout['pipeline']} "
        f"pipeline, ZeRO {layout['zero_stage']}",
        forecasts=(
            _timed("train.total_time", seconds, machine),
            _timed("train.mfu", float(search.cost.mfu[best]), machine),
            *_billed(record, site, seconds, count),
        ),
    )


def _timed(quantity: str, value: float, machine: Machine) -> Forecast:
    """Make a forecast that rests on the roofline of a machine."""
    return Forecast.about(
        quantity, value, relative=STEP_RELATIVE, provenance="assumed", source=machine.source
    )


def _billed(record: Accelerator, site: Site, seconds: float, count: int) -> list[Forecast]:
    """Forecast energy, and money where a rent is known.

    Hardware that is owned and written off would be cheaper than any rent: rents are compared with
    rents only.
    """
    found = bill(
        duration_s=seconds,
        num_accelerators=count,
        accelerator=record,
        site=site,
        prefers_rent=True,
        duration_relative=STEP_RELATIVE,
    ).forecasts
    return [item for item in found if record.price_usd_per_hour or item.quantity != "run.cost"]


def _ranked(found: list[Contender], money: str, time: str) -> list[Contender]:
    """Sort contenders and say of each but the first why it is not the first."""
    found.sort(key=lambda item: (item.count == 0, item.value(money), item.value(time)))
    if not found or not found[0].count:
        return found
    first = found[0]
    return [first, *(_with_reason(item, first, money, time) for item in found[1:])]


def _with_reason(item: Contender, first: Contender, money: str, time: str) -> Contender:
    """Say why a contender is not the first."""
    if not item.count:
        return item
    spent, seconds = (item.value(name) / first.value(name) for name in (money, time))
    pace = f"{seconds:.3g}x the time" if time == "train.total_time" else ""
    if math.isinf(item.value(money)):
        reason = "no rent is known" + (f"; {pace}" if pace else "")
    else:
        reason = f"{spent:.3g}x the money" + (f", {pace}" if pace else "")
    return replace(item, reason=reason)


def which_for_serving(
    arch: Architecture,
    accelerators: Iterable[Accelerator],
    goal: ServingGoal,
    *,
    site: Site,
    weights: str = "bf16",
) -> list[Contender]:
    """Rank accelerators for a deployment by its money per hour.

    A replica runs the largest batch that meets both limits: requests decode together, and each new
    prompt holds all of them up for its own time. It is planned for 80 % of its rate.

    Args:
        arch: model to serve.
        accelerators: records to compare.
        goal: load and limits.
        site: place with its electricity.
        weights: type the weights are stored in.

    Returns:
        Contenders, the cheapest first; those of unknown price after them by their number; those
        that cannot at the end. Energy and money are of one hour.
    """
    kind = WEIGHT_TYPES[weights]
    works = [_work(arch, kind, goal, count) for count in COUNTS if arch.num_heads % count == 0]
    found = [_served(record, kind, goal, works, site) for record in accelerators]
    return _ranked(found, "run.cost", "plan.num_accelerators")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What a replica of some accelerators does, over the batches that are tried.

    Attributes:
        count: accelerators of a replica.
        decode: operators of one token for every batch.
        prefill: operators of one prompt.
        memory_bytes: bytes on each accelerator for every batch, [batches].
        reduced_bytes: bytes that a decoding step sums over the group, [batches].
        prompt_bytes: bytes that a prefill sums over the group.
    """

    count: int
    decode: OperatorTable
    prefill: OperatorTable
    memory_bytes: NDArray[np.float64]
    reduced_bytes: NDArray[np.float64]
    prompt_bytes: float


def _work(arch: Architecture, kind: WeightType, goal: ServingGoal, count: int) -> _Work:
    """List the work of a replica once for all accelerators."""
    context = goal.prompt_tokens + goal.output_tokens
    shape: dict[str, Any] = {"dtype_bytes": kind.activation_bytes, "tensor_parallel": count}
    decode = operators(arch, phase="decode", tokens=1, context=context, batch=_BATCHES, **shape)
    prefill = operators(arch, phase="prefill", tokens=goal.prompt_tokens, **shape)
    memory = stored_serving_memory(
        arch,
        kind,
        tokens_resident=_BATCHES * context,
        step_tokens=np.maximum(_BATCHES, min(goal.prompt_tokens, PREFILL_CHUNK)),
        tensor_parallel=count,
    )
    # A layer sums its hidden states over the group twice: after attention and after the MLP.
    per_token = 2 * arch.num_layers * arch.hidden_size * kind.activation_bytes
    return _Work(
        count=count,
        decode=with_stored_weights(decode, kind),
        prefill=with_stored_weights(prefill, kind),
        memory_bytes=np.asarray(memory.total),
        reduced_bytes=_BATCHES * per_token,
        prompt_bytes=goal.prompt_tokens * per_token,
    )


def _served(
    record: Accelerator, kind: WeightType, goal: ServingGoal, works: list[_Work], site: Site
) -> Contender:
    """Deploy on one kind of accelerator: the replica size that needs the fewest accelerators."""
    dtypes = product_dtypes(kind, record.peak_flops_per_s)
    if not dtypes:
        known = ", ".join(sorted(record.peak_flops_per_s))
        return Contender(
            accelerator=record.name, count=0, reason=f"no rate for {kind.name}; it has {known}"
        )
    machine = replace(
        Machine.from_accelerator(record, dtype=dtypes[0]), accelerators_per_node=max(COUNTS)
    )
    linked = record.scale_up_bytes_per_s or record.host_link_bytes_per_s
    tried = [_replica(record, machine, goal, work) for work in works if work.count == 1 or linked]
    possible = [item for item in tried if isinstance(item, _Replica)]
    if not possible:
        return Contender(accelerator=record.name, count=0, reason=str(tried[-1]))
    best = min(possible, key=lambda item: item.accelerators(goal))
    count = best.accelerators(goal)
    return Contender(
        accelerator=record.name,
        count=count,
        setting=f"{count // best.count} x {best.count}, batch {best.batch}",
        forecasts=(
            Forecast.about(
                "plan.num_accelerators",
                count,
                relative=STEP_RELATIVE,
                provenance="assumed",
                source=machine.source,
            ),
            _timed("serve.ttft", best.ttft_s, machine),
            _timed("serve.tpot", best.tpot_s, machine),
            *_billed(record, site, 3600.0, count),
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replica:
    """The largest batch of a replica that meets both limits.

    Attributes:
        count: accelerators.
        batch: requests that decode together.
        ttft_s: time of one prompt.
        tpot_s: time per further token, prompts of others included.
        output_tokens: tokens of an answer.
    """

    count: int
    batch: int
    ttft_s: float
    tpot_s: float
    output_tokens: int

    def accelerators(self, goal: ServingGoal) -> int:
        """Return the accelerators of as many replicas as the rate takes."""
        per_replica = _UTILIZATION * self.batch / (self.output_tokens * self.tpot_s)
        return self.count * math.ceil(goal.rate_per_s / per_replica)


def _replica(
    record: Accelerator, machine: Machine, goal: ServingGoal, work: _Work
) -> _Replica | str:
    """Return the replica, or the limit that no batch meets."""
    links_s = [
        all_reduce_s(machine, size, work.count) if work.count > 1 else 0.0
        for size in (work.reduced_bytes, work.prompt_bytes)
    ]
    decode_s = (work.decode.count * operator_times_s(work.decode, machine)).sum(axis=0)
    prefill_s = float(roofline_time_s(work.prefill, machine) + links_s[1])
    # While an answer is decoded, `batch` prompts of other requests take the machine.
    tpot_s = decode_s + links_s[0] + _BATCHES * prefill_s / goal.output_tokens
    fits = work.memory_bytes <= record.memory_bytes * (1 - RESERVE)
    if not fits.any():
        return (
            f"does not fit: needs {work.memory_bytes[0] / 1e9:,.0f} GB, has "
            f"{record.memory_bytes / 1e9:,.0f} GB on each of {work.count}"
        )
    if prefill_s > goal.ttft_s:
        return f"a prompt takes {prefill_s:.2g} s, more than {goal.ttft_s:g} s"
    meets = fits & (tpot_s <= goal.tpot_s)
    if not meets.any():
        return f"a token takes {tpot_s[0] * 1e3:.3g} ms, more than {goal.tpot_s * 1e3:g} ms"
    best = int(np.flatnonzero(meets).max())
    return _Replica(
        count=work.count,
        batch=int(_BATCHES[best]),
        ttft_s=prefill_s,
        tpot_s=float(tpot_s[best]),
        output_tokens=goal.output_tokens,
    )
