"""Operations on two processor cores: each alone on both, pairs beside each other, schedules."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from threading import Condition, Event

from steelyard.errors import BackendError, ConfigError
from steelyard.plan.overlap.interference import InterferenceTable, PairTiming
from steelyard.plan.overlap.nano import NanoOperation
from steelyard.plan.overlap.operations import Operation, OperationGraph, TokenTimes
from steelyard.plan.overlap.schedule import OverlapSchedule
from steelyard.plan.overlap.search import without_overlap

__all__ = [
    "RunnableOperation",
    "measured_graph",
    "profile",
    "run_in_turn",
    "run_schedule",
    "tried",
]

_CORES = 2
_ROUNDS = 9
"""Timed runs of each operation; their median counts."""


@dataclass(frozen=True, kw_only=True)
class RunnableOperation:
    """An operation that this machine can run.

    Attributes:
        name: unique in the layer.
        kind: entry of the interference table.
        resource: what it occupies.
        work: does a part of the operation on the calling thread, without Python's lock: its layer,
            first token, token after the last, number of the part, and parts in all.
        after: operations of the same layer that it waits for.
        after_layer: operations of the layer before that it waits for.
    """

    name: str
    kind: str
    resource: str
    work: Callable[[int, int, int, int, int], None]
    after: tuple[str, ...] = ()
    after_layer: tuple[str, ...] = ()


@contextmanager
def _two_threads() -> Iterator[ThreadPoolExecutor]:
    """Give two threads, within each of which PyTorch uses one core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    started = {"max_workers": _CORES, "initializer": torch.set_num_threads, "initargs": (1,)}
    try:
        with ThreadPoolExecutor(**started) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def _alone_s(pool: ThreadPoolExecutor, operation: RunnableOperation, tokens: int) -> float:
    """Return the median seconds of an operation with half of its work on each core."""
    return median(_halves_s(pool, operation, tokens) for _ in range(_ROUNDS))


def _halves_s(pool: ThreadPoolExecutor, operation: RunnableOperation, tokens: int) -> float:
    """Return the seconds of one run with half of the work on each core."""
    begun = time.perf_counter()
    halves = [pool.submit(operation.work, 0, 0, tokens, part, _CORES) for part in range(_CORES)]
    for half in halves:
        half.result()
    return time.perf_counter() - begun


def _not_cheaper(counts: Sequence[int], seconds: Sequence[float]) -> tuple[float, ...]:
    """Return times by which no token gets cheaper in a smaller piece: that would be noise."""
    found: list[float] = []
    each = 0.0
    for count, time_s in zip(reversed(counts), reversed(seconds), strict=True):
        each = max(each, time_s / count)
        found.append(each * count)
    return tuple(reversed(found))


def measured_graph(
    operations: Sequence[RunnableOperation], *, tokens: int, unit: int, num_layers: int
) -> OperationGraph:
    """Time every operation alone on both cores, at every multiple of the unit.

    Args:
        operations: operations of one layer.
        tokens: tokens of the batch.
        unit: pieces are multiples of so many tokens.
        num_layers: how often the layer runs.

    Returns:
        The layer for `search`.

    Raises:
        ConfigError: the batch is smaller than one token or the unit.
    """
    if not 1 <= unit <= tokens:
        raise ConfigError(f"a unit of {unit} tokens does not fit a batch of {tokens}")
    counts = sorted({*range(unit, tokens, unit), tokens})
    found = []
    with _two_threads() as pool:
        for item in operations:
            _halves_s(pool, item, tokens)
            # Counts in turn, so that a disturbance of the machine hits all of them alike.
            rounds = [[_halves_s(pool, item, count) for count in counts] for _ in range(_ROUNDS)]
            seconds = _not_cheaper(counts, [median(times) for times in zip(*rounds, strict=True)])
            found.append(
                Operation(
                    name=item.name,
                    kind=item.kind,
                    resource=item.resource,
                    times=TokenTimes(tokens=tuple(counts), seconds=seconds),
                    after=item.after,
                    after_layer=item.after_layer,
                )
            )
    return OperationGraph(tokens=tokens, operations=tuple(found), unit=unit, num_layers=num_layers)


def profile(
    operations: Sequence[RunnableOperation], device: str = "cpu", *, tokens: int
) -> InterferenceTable:
    """Measure how operations of different resources slow each other, one core each.

    Args:
        operations: operations of one layer; those of "compute" are paired with every other.
        device: "cpu"; other devices have no runner of pairs.
        tokens: tokens of a piece.

    Returns:
        Performance of each kind, relative to both cores, at the share that one core is.

    Raises:
        BackendError: the device is not the processor.
        ConfigError: there is no pair of resources to measure.
    """
    if device != "cpu":
        raise BackendError(
            f"pairs of operations are run on the processor, not on {device}",
            hint="give --timings and the interference of the device, or use this-machine",
        )
    products = [item for item in operations if item.resource == "compute"]
    others = [item for item in operations if item.resource != "compute"]
    if not products or not others:
        raise ConfigError("a pair needs an operation of compute and one of another resource")
    pairs = []
    with _two_threads() as pool:
        alone = {item.name: _alone_s(pool, item, tokens) for item in operations}
        for one, other in itertools.product(products, others):
            seconds = _beside_s(pool, (one, other), tokens)
            pairs.append(
                PairTiming(
                    kind=one.kind,
                    other=other.kind,
                    performance=alone[one.name] / seconds[0],
                    other_performance=alone[other.name] / seconds[1],
                    setting="a core each",
                )
            )
    return InterferenceTable.from_pairs(
        pairs, device="this machine", source="pairs run on two cores"
    )


def _beside_s(
    pool: ThreadPoolExecutor, pair: Sequence[RunnableOperation], tokens: int
) -> list[float]:
    """Return the median seconds of each of two operations while the other runs all the time."""
    enough = [Event() for _ in pair]

    def repeat(index: int) -> float:
        found: list[float] = []
        while not all(item.is_set() for item in enough):
            begun = time.perf_counter()
            pair[index].work(0, 0, tokens, 0, 1)
            found.append(time.perf_counter() - begun)
            if len(found) >= _ROUNDS:
                enough[index].set()
        # The last run may have had the device to itself when the other had ended.
        return median(found)

    return [item.result() for item in [pool.submit(repeat, index) for index in range(len(pair))]]


class _Progress:
    """Which pieces have ended, for two threads that wait for each other."""

    def __init__(self, parts: list[int]) -> None:
        self._left = parts
        self._changed = Condition()

    def wait_for(self, places: Sequence[int]) -> None:
        """Wait until pieces have ended."""
        with self._changed:
            self._changed.wait_for(lambda: all(self._left[place] == 0 for place in places))

    def ended(self, place: int) -> None:
        """Say that a part of a piece has ended."""
        with self._changed:
            self._left[place] -= 1
            self._changed.notify_all()


def run_schedule(
    schedule: OverlapSchedule, operations: Sequence[RunnableOperation], *, rounds: int = 1
) -> list[float]:
    """Run the layers of a schedule on two cores: full shares on both, others on one.

    Args:
        schedule: what `search` found for a graph of these operations.
        operations: what to run.
        rounds: how often.

    Returns:
        Seconds of each round.
    """
    order = sorted(range(len(schedule.pieces)), key=lambda item: schedule.start_s[item])
    return _timed(schedule.pieces, order, schedule.shares.tolist(), operations, rounds)


def tried(
    schedule: OverlapSchedule,
    graph: OperationGraph,
    operations: Sequence[RunnableOperation],
    *,
    rounds: int = 5,
) -> OverlapSchedule:
    """Run a schedule and whole operations in turn, and keep the schedule only if it is faster.

    Args:
        schedule: what `search` found.
        graph: what it was searched for.
        operations: what to run.
        rounds: runs of both, alternating; medians are compared.

    Returns:
        The schedule, or whole operations in turn.
    """
    if not schedule.is_overlapped:
        return schedule
    ran, turns = [], []
    for _ in range(rounds):
        ran += run_schedule(schedule, operations)
        turns += run_in_turn(graph, schedule.layers, operations)
    over = median(turns) / median(ran)
    if over >= 1:
        return schedule
    return without_overlap(schedule, graph, f"a trial ran at {over:.3f}x of one after the other")


def run_in_turn(
    graph: OperationGraph,
    layers: int,
    operations: Sequence[RunnableOperation],
    *,
    rounds: int = 1,
) -> list[float]:
    """Run whole operations one after the other, each on both cores.

    Args:
        graph: the layer.
        layers: layers to run.
        operations: what to run.
        rounds: how often.

    Returns:
        Seconds of each round.
    """
    from steelyard.plan.overlap.nano import cut

    pieces = cut(graph, {}, layers)
    return _timed(pieces, range(len(pieces)), [1.0] * len(pieces), operations, rounds)


def _timed(
    pieces: Sequence[NanoOperation],
    order: Sequence[int],
    shares: Sequence[float],
    operations: Sequence[RunnableOperation],
    rounds: int,
) -> list[float]:
    """Run pieces in an order, and return the seconds of each round."""
    work = {item.name: item.work for item in operations}
    whole = [share >= 1 for share in shares]

    def follow(core: int, progress: _Progress) -> None:
        for place in order:
            item = pieces[place]
            own = 0 if item.operation.resource == "compute" else 1
            if not whole[place] and own != core:
                continue
            progress.wait_for(item.after)
            part, parts = (core, _CORES) if whole[place] else (0, 1)
            work[item.operation.name](item.layer, item.first, item.last, part, parts)
            progress.ended(place)

    found = []
    with _two_threads() as pool:
        for _ in range(rounds):
            progress = _Progress([_CORES if item else 1 for item in whole])
            begun = time.perf_counter()
            for item in [pool.submit(follow, core, progress) for core in range(_CORES)]:
                item.result()
            found.append(time.perf_counter() - begun)
    return found
