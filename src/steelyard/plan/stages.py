"""Which layers each pipeline stage takes, exactly, where stages differ in speed or memory.

A pipeline of `m` micro-batches is as slow as its slowest stage: it ends after
sum(t) + (m - 1) max(t). Contiguous splits that minimize this are found by a dynamic program.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, InfeasibleError, all_of
from steelyard.units import pretty

__all__ = ["StageSplit", "proportional_layers", "split_layers", "timed_split"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSplit:
    """Layers of each stage, and what they take.

    Attributes:
        layers: layers of each stage, in the order of the pipeline.
        times_s: seconds that a micro-batch spends in each stage, both passes.
        memory_bytes: bytes that each stage holds; zeros where no bytes were given.
        micro_batches: micro-batches of a step.
    """

    layers: tuple[int, ...]
    times_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    micro_batches: int

    @property
    def slowest_s(self) -> float:
        """Seconds of the stage that sets the pace."""
        return max(self.times_s)

    @property
    def step_s(self) -> float:
        """Seconds of a step without transfers, filling and draining included."""
        return sum(self.times_s) + (self.micro_batches - 1) * self.slowest_s


@dataclass(frozen=True, slots=True)
class _Work:
    """The layers and stages of a split, as arrays.

    Attributes:
        before_s: seconds of all layers before each place, [layers + 1].
        state_bytes: bytes of the states of all layers before each place, [layers + 1].
        saved_bytes: bytes that a micro-batch saves in all layers before each place, [layers + 1].
        speeds: speed of each stage, [stages].
        limits: bytes that each stage may hold, [stages].
        micro_batches: micro-batches of a step.
    """

    before_s: Array
    state_bytes: Array
    saved_bytes: Array
    speeds: Array
    limits: Array
    micro_batches: int

    def segment_s(self, stage: int) -> Array:
        """Return the seconds of a stage over layers [from, to), infinite where it cannot be."""
        times = (self.before_s[None, :] - self.before_s[:, None]) / self.speeds[stage]
        places = np.arange(len(self.before_s))
        is_stage = places[None, :] > places[:, None]
        return np.where(is_stage & (self.segment_bytes(stage) <= self.limits[stage]), times, np.inf)

    def segment_bytes(self, stage: int) -> Array:
        """Return the bytes that a stage holds over layers [from, to)."""
        # One forward, one backward: a stage keeps a micro-batch for itself and each stage after it.
        in_flight = min(len(self.speeds) - stage, self.micro_batches)
        held = self.state_bytes + in_flight * self.saved_bytes
        return held[None, :] - held[:, None]


def split_layers(
    layer_s: Sequence[float],
    *,
    speeds: Sequence[float],
    micro_batches: int = 1,
    state_bytes: Sequence[float] = (),
    saved_bytes: Sequence[float] = (),
    memory_bytes: Sequence[float] = (),
) -> StageSplit:
    """Return the contiguous split whose step is shortest; none is shorter.

    Args:
        layer_s: seconds of each layer for a micro-batch at speed 1, both passes, [layers]. The
            embedding and the head may be layers of their own.
        speeds: relative speed of each stage's devices, in the order of the pipeline, [stages].
        micro_batches: micro-batches of a step.
        state_bytes: bytes of weights, gradients and optimizer states of each layer, [layers].
        saved_bytes: bytes that each layer saves for one micro-batch's backward pass, [layers].
        memory_bytes: bytes that each stage may hold, [stages]; no limit when empty.

    Returns:
        The split. Every stage has a layer.

    Raises:
        ConfigError: a number is out of range, or there are fewer layers than stages.
        InfeasibleError: no split fits in memory; the message says how much the stages lack.

    Source: Holmes, arXiv:2312.03549, section 3.3, asks for stages by speed; this is its optimum.
    """
    lists = (layer_s, speeds, state_bytes, saved_bytes, memory_bytes)
    work = _work([np.asarray(item, dtype=float) for item in lists], micro_batches)
    ends = min(_frontier(work), key=lambda item: _timed(work, item).step_s, default=None)
    if ends is None:
        raise _too_large(work)
    return _timed(work, ends)


def timed_split(
    layers: Sequence[int],
    layer_s: Sequence[float],
    *,
    speeds: Sequence[float],
    micro_batches: int = 1,
) -> StageSplit:
    """Time a split that is given.

    Args:
        layers: layers of each stage, [stages].
        layer_s: seconds of each layer for a micro-batch at speed 1, [layers].
        speeds: relative speed of each stage's devices, [stages].
        micro_batches: micro-batches of a step.

    Returns:
        The split with its times.

    Raises:
        ConfigError: a number is out of range, or the layers of the stages are not all layers.
    """
    none = np.zeros(0)
    times, rates = np.asarray(layer_s, dtype=float), np.asarray(speeds, dtype=float)
    work = _work([times, rates, none, none, none], micro_batches)
    if sum(layers) != len(times) or len(layers) != len(rates) or min(layers) < 1:
        raise ConfigError(
            f"layers {tuple(layers)} do not share {len(times)} layers among {len(rates)} stages",
            hint="give every stage at least one layer, and no layer to two",
        )
    return _timed(work, np.cumsum(layers))


def _timed(work: _Work, ends: NDArray[np.int64]) -> StageSplit:
    """Time the stages that end before the layers given."""
    edges = [0, *ends.tolist()]
    spans = list(itertools.pairwise(edges))
    times = [
        (work.before_s[to] - work.before_s[start]) / work.speeds[stage]
        for stage, (start, to) in enumerate(spans)
    ]
    held = [work.segment_bytes(stage)[span] for stage, span in enumerate(spans)]
    return StageSplit(
        layers=tuple(to - start for start, to in spans),
        times_s=tuple(map(float, times)),
        memory_bytes=tuple(map(float, held)),
        micro_batches=work.micro_batches,
    )


def proportional_layers(
    num_layers: int, speeds: Sequence[float], *, alpha: float = 1.05
) -> tuple[int, ...]:
    """Return layers by speed, the fastest stages slightly favoured: Holmes' closed form.

    Args:
        num_layers: layers of the model.
        speeds: relative speed of each stage's devices, [stages].
        alpha: how much the fastest stages get over their share.

    Returns:
        Layers of each stage, at least one each.

    Raises:
        ConfigError: there are fewer layers than stages.

    Source: Holmes, arXiv:2312.03549, section 3.3: floor(alpha N S / sum S) for the fast group, the
    rest for the others.
    """
    rates = np.asarray(speeds, dtype=float)
    if num_layers < len(rates):
        raise ConfigError(f"{num_layers} layers do not fill {len(rates)} stages")
    is_fast = rates == rates.max()
    share = rates / rates.sum()
    slow = int((~is_fast).sum())
    fast = int(alpha * num_layers * share[is_fast].sum()) if slow else num_layers
    fast = min(max(fast, int(is_fast.sum())), num_layers - slow)
    layers = np.zeros(len(rates), dtype=int)
    layers[is_fast] = _whole(fast, share[is_fast])
    if slow:
        layers[~is_fast] = _whole(num_layers - fast, share[~is_fast])
    return tuple(int(count) for count in layers)


def _whole(total: int, share: Array) -> NDArray[np.int64]:
    """Share whole layers: one each, then one by one to the stage that lacks most."""
    layers = np.ones(len(share), dtype=int)
    wanted = total * share / share.sum()
    for _ in range(total - len(share)):
        layers[np.argmax(wanted - layers)] += 1
    return layers


def _work(lists: list[Array], micro_batches: int) -> _Work:
    """Check the numbers, and sum them up along the layers."""
    layer_s, speeds, states, saved, limits = lists
    all_of(
        lambda: _positive("speeds", speeds, 0, more=True),
        lambda: _positive("layer_s", layer_s, 0),
        lambda: _enough(len(layer_s), len(speeds), micro_batches),
        lambda: _as_long("state_bytes", states, len(layer_s), "layer"),
        lambda: _as_long("saved_bytes", saved, len(layer_s), "layer"),
        lambda: _as_long("memory_bytes", limits, len(speeds), "stage"),
    )
    none = np.zeros(len(layer_s))
    before_s, state_bytes, saved_bytes = (
        np.concatenate([[0.0], np.cumsum(item if len(item) else none)])
        for item in (layer_s, states, saved)
    )
    most = limits if len(limits) else np.full(len(speeds), np.inf)
    return _Work(before_s, state_bytes, saved_bytes, speeds, most, micro_batches)


def _positive(name: str, values: Array, least: float, *, more: bool = False) -> None:
    """Refuse values that are not finite, or below the least."""
    good = np.isfinite(values) & ((values > least) if more else (values >= least))
    if not good.all() or not len(values):
        allowed = f"{'above' if more else 'at least'} {least}"
        raise ConfigError(f"{name} are {values.tolist()}, but must be finite and {allowed}")


def _enough(layers: int, stages: int, micro_batches: int) -> None:
    """Refuse more stages than layers, and steps without micro-batches."""
    if layers < stages:
        raise ConfigError(
            f"{layers} layers do not fill {stages} stages", hint=f"use at most {layers} stages"
        )
    if micro_batches < 1:
        raise ConfigError(f"micro_batches is {micro_batches}, but must be at least 1")


def _as_long(name: str, values: Array, length: int, of: str) -> None:
    """Refuse a list that is given, but not for every layer or stage."""
    if len(values) not in (0, length) or not (values >= 0).all():
        raise ConfigError(
            f"{name} are {values.tolist()}, but must be one number of at least 0 per {of}, "
            f"{length} in all"
        )


def _frontier(work: _Work) -> Iterator[NDArray[np.int64]]:
    """Find the splits of which none has both a smaller sum and a smaller maximum of times."""
    times = [work.segment_s(stage) for stage in range(len(work.speeds))]
    cap = np.inf
    while True:
        ends = _least_sum([np.where(item < cap, item, np.inf) for item in times])
        if ends is None:
            return
        yield ends
        # The next one has to be faster where this one is slowest.
        cap = _timed(work, ends).slowest_s


def _least_sum(times: list[Array]) -> NDArray[np.int64] | None:
    """Return where the stages end of the split with the least sum of times, or None."""
    places = len(times[0])
    best = np.full(places, np.inf)
    best[0] = 0.0
    chosen = []
    for stage in times:
        total = best[:, None] + stage
        chosen.append(total.argmin(axis=0))
        best = total.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    ends = [places - 1]
    for starts in reversed(chosen[1:]):
        ends.append(int(starts[ends[-1]]))
    return np.array(ends[::-1])


def _too_large(work: _Work) -> InfeasibleError:
    """Say how much memory the stages lack at least."""
    needed = sum(
        float(work.state_bytes[-1]) * share + float(work.saved_bytes[-1]) * share * flight
        for share, flight in (
            (1 / len(work.speeds), min(len(work.speeds) - stage, work.micro_batches))
            for stage in range(len(work.speeds))
        )
    )
    offered = float(work.limits.sum())
    return InfeasibleError(
        f"memory: no split of {len(work.before_s) - 1} layers fits: evenly split they need "
        f"{pretty(needed, 'byte')}, and the {len(work.speeds)} stages offer "
        f"{pretty(offered, 'byte')}",
        hint="use more stages, fewer micro-batches in flight, or devices with more memory",
    )
