"""Search for the schedule of pieces that ends first, in two stages."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from steelyard.errors import ConfigError
from steelyard.plan.overlap.interference import InterferenceTable
from steelyard.plan.overlap.nano import Cuts, NanoOperation, cut
from steelyard.plan.overlap.operations import OperationGraph
from steelyard.plan.overlap.order import shortest_order
from steelyard.plan.overlap.schedule import OverlapSchedule
from steelyard.plan.overlap.shares import SharedPieces, choose_shares

__all__ = ["search", "without_overlap"]

_LEAST_GAIN = 1.02
"""Gain below which whole operations run one after the other: a schedule is not exact to 2 %."""
_KEPT = 3
"""Cuts of each choice of rewrites that stage 2 looks at: those that stage 1 ends first."""
_FEW, _MANY = 30000, 100000
"""Changes of shares that are tried for a structure, and for the one that is chosen."""
_TIMED = 4
"""Layers on which shares are chosen; several, so that a layer's end beside the next one counts."""


@dataclass(frozen=True, kw_only=True)
class _Structure:
    """Pieces of one layer, ordered by stage 1.

    Attributes:
        graph: the layer, rewritten.
        cuts: where its operations are cut.
        rank: start of each piece of a layer, [p].
        period: seconds of a layer.
        shared: what stage 2 chose, once it has.
        end_s: seconds of all layers with that.
    """

    graph: OperationGraph
    cuts: Cuts
    rank: list[float]
    period: float
    shared: SharedPieces | None = None
    end_s: float = float("inf")

    def pieces(self, layers: int) -> list[NanoOperation]:
        """Return the pieces of some layers."""
        return cut(self.graph, self.cuts, layers)


def search(
    graph: OperationGraph, table: InterferenceTable, max_nano: int = 4, *, seed: int = 0
) -> OverlapSchedule:
    """Find when each piece of each operation runs, and with which share of the device.

    Stage 1 chooses rewrites, the cut and the order as if operations did not slow each other; stage
    2 chooses shares for the best of these. Operations are then cut again, one at a time, while that
    helps. Whole operations one after the other are the answer where nothing gains 2 %.

    Args:
        graph: the layer, its batch and how often it is repeated.
        table: performance of each kind of operation by share.
        max_nano: most pieces of an operation, at least 1.
        seed: seed of the changes that stage 2 tries.

    Returns:
        The schedule of two layers (one where there is only one), and the time of all.

    Raises:
        ConfigError: the graph has a cycle or unknown names, the table lacks a kind, or the batch
            has fewer tokens than pieces.

    Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 4.1.
    """
    ordered = graph.ordered()
    if max_nano < 1 or graph.tokens < max_nano:
        raise ConfigError(
            f"a batch of {graph.tokens} tokens cannot be cut into {max_nano} pieces",
            hint="give a larger batch, or max_nano of at least 1 and at most the tokens",
        )
    for operation in (*ordered, *(item for one in graph.rewrites for item in one.by)):
        table.points(operation.kind)
    tuned = _Stage2(table, np.random.default_rng(seed), min(_TIMED, graph.num_layers))
    # Without any cut different operations of a layer may still overlap, as branches do.
    whole = [_structure(variant, {}) for variant in _variants(graph)]
    places = range(graph.unit, graph.tokens, graph.unit) if max_nano > 1 else ()
    halves: list[_Structure] = []
    for variant in _variants(graph):
        cuts = [_structure(variant, dict.fromkeys(_names(variant), (at,))) for at in places]
        halves += sorted(cuts, key=lambda item: item.period)[:_KEPT]
    best = min(map(tuned.few, [*whole, *halves]), key=lambda item: item.end_s)
    return _schedule(graph, tuned.many(_refined(best, tuned, max_nano)))


@dataclass(frozen=True)
class _Stage2:
    """Chooses shares of structures.

    Attributes:
        table: performance by share.
        generator: source of the changes.
        layers: layers on which shares are chosen.
    """

    table: InterferenceTable
    generator: np.random.Generator
    layers: int

    def few(self, item: _Structure) -> _Structure:
        """Choose shares quickly."""
        return self._chosen(item, _FEW)

    def many(self, item: _Structure) -> _Structure:
        """Choose shares thoroughly; what was chosen before stays unless it is beaten."""
        return min(item, self._chosen(item, _MANY), key=lambda one: one.end_s)

    def _chosen(self, item: _Structure, moves: int) -> _Structure:
        found = choose_shares(
            item.pieces(self.layers),
            item.rank,
            item.period,
            self.table,
            self.generator,
            moves=moves,
        )
        end_s = float(found.run(item.pieces(item.graph.num_layers))[1].max())
        return replace(item, shared=found, end_s=end_s)


def _names(graph: OperationGraph) -> list[str]:
    return [item.name for item in graph.operations]


def _variants(graph: OperationGraph) -> Iterator[OperationGraph]:
    """Yield the graph with every choice of rewrites."""
    for count in range(len(graph.rewrites) + 1):
        for chosen in itertools.combinations(graph.rewrites, count):
            found = graph
            for rewrite in chosen:
                found = found.rewritten(rewrite)
            yield found


def _structure(graph: OperationGraph, cuts: Cuts) -> _Structure:
    """Run stage 1 on a pair of layers; the first one's order is that of every layer."""
    layers = min(2, graph.num_layers)
    pieces = cut(graph, cuts, layers)
    seconds = [item.alone_s for item in pieces]
    start = shortest_order(
        seconds,
        [item.after for item in pieces],
        [item.operation.resource for item in pieces],
        max_nodes=200,
    )
    size = len(pieces) // layers
    end_s = max(a + b for a, b in zip(start, seconds, strict=True))
    return _Structure(graph=graph, cuts=cuts, rank=start[:size], period=end_s / layers)


def _refined(best: _Structure, tuned: _Stage2, max_nano: int) -> _Structure:
    """Cut single operations once more, or not at all, while the schedule gets shorter."""
    improved = bool(best.cuts)
    while improved:
        improved = False
        for name in _names(best.graph):
            now = best.cuts.get(name, ())
            for inner in {_halved(best.graph, name, now), ()} - {now}:
                if len(inner) + 1 > max_nano:
                    continue
                found = tuned.few(_structure(best.graph, {**best.cuts, name: inner}))
                if found.end_s < best.end_s * (1 - 1e-3):
                    best, improved = found, True
    return best


def _halved(graph: OperationGraph, name: str, inner: tuple[int, ...]) -> tuple[int, ...]:
    """Return an operation's cuts with its largest piece cut in two at a multiple of the unit."""
    operation = next(item for item in graph.operations if item.name == name)
    first, last = graph.extent(operation)
    edges = [first, *sorted(item for item in inner if first < item < last), last]
    low, high = max(itertools.pairwise(edges), key=lambda item: item[1] - item[0])
    middle = round((low + high) / 2 / graph.unit) * graph.unit
    return tuple(sorted({*inner, middle})) if low < middle < high else inner


def _schedule(given: OperationGraph, best: _Structure) -> OverlapSchedule:
    """Time all layers, and fall back where the best does not gain enough."""
    assert best.shared is not None
    every = best.pieces(given.num_layers)
    split_s = sum(item.alone_s for item in every)
    sequential_s = sum(item.alone_s for item in cut(given, {}, 1)) * given.num_layers
    taken = sequential_s / best.end_s >= _LEAST_GAIN
    shown = best if taken else _in_turn(given)
    assert shown.shared is not None
    layers = min(2, given.num_layers)
    pieces = shown.pieces(layers)
    start_s, end_s = shown.shared.run(pieces)
    return OverlapSchedule(
        graph=shown.graph,
        cuts={name: tuple(items) for name, items in shown.cuts.items()},
        pieces=tuple(pieces),
        start_s=start_s,
        end_s=end_s,
        shares=np.tile(shown.shared.shares, layers),
        layers=layers,
        iteration_s=best.end_s if taken else sequential_s,
        sequential_s=sequential_s,
        split_s=split_s,
        searched_s=best.end_s,
        is_overlapped=taken,
        why=_why(bool(best.cuts), sequential_s / best.end_s, sequential_s / split_s, taken=taken),
    )


def without_overlap(schedule: OverlapSchedule, graph: OperationGraph, why: str) -> OverlapSchedule:
    """Return whole operations one after the other in place of a schedule.

    Args:
        schedule: what was found for the graph.
        graph: what it was searched for.
        why: why it is not taken, a sentence.

    Returns:
        The same search with nothing overlapped.
    """
    shown = _in_turn(graph)
    assert shown.shared is not None
    pieces = shown.pieces(schedule.layers)
    start_s, end_s = shown.shared.run(pieces)
    return replace(
        schedule,
        graph=graph,
        cuts={},
        pieces=tuple(pieces),
        start_s=start_s,
        end_s=end_s,
        shares=np.ones(len(pieces)),
        iteration_s=schedule.sequential_s,
        is_overlapped=False,
        why=why,
    )


def _in_turn(graph: OperationGraph) -> _Structure:
    """Return whole operations one after the other."""
    seconds = [item.alone_s for item in cut(graph, {}, 1)]
    starts, ones = np.cumsum([0.0, *seconds])[:-1], np.ones(len(seconds))
    shared = SharedPieces(rank=starts, period=sum(seconds), shares=ones, speeds=ones)
    return _Structure(
        graph=graph, cuts={}, rank=starts.tolist(), period=sum(seconds), shared=shared
    )


def _why(is_cut: bool, gain: float, split_gain: float, *, taken: bool) -> str:
    """Say in a sentence what decided."""
    cost = f"cutting operations alone costs {1 - split_gain:.1%} of the rate"
    if not is_cut:
        return f"no cut of the batch helps; the best schedule reaches {gain:.3f}x"
    if taken:
        return f"overlap gains {gain - 1:.1%} although {cost}"
    return f"the best schedule reaches {gain:.3f}x of one after the other, as {cost}"
