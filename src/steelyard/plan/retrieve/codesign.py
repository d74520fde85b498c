"""Index and hardware searched together: the fastest design that fits, for a goal of recall."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.vector_search.options import SearchPoint, StageModel, StageOptions

__all__ = ["Codesign", "SearchDesign", "codesign"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SearchDesign:
    """One way to serve one index.

    Attributes:
        point: the index and its query.
        queries_per_s: rate of the slowest stage, or of all stages in turn.
        latency_s: sum over the stages.
        stage_s: time of a query in each stage, by its name.
        config: what each stage is built as.
        taken: what the design takes of each resource, with what was taken before.
        designs: combinations of options that there are, those that do not fit among them.
    """

    point: SearchPoint
    queries_per_s: float
    latency_s: float
    stage_s: Mapping[str, float]
    config: Mapping[str, Any]
    taken: Mapping[str, float]
    designs: float

    @property
    def bottleneck(self) -> str:
        """Name of the slowest stage."""
        return max(self.stage_s, key=lambda name: self.stage_s[name])


@dataclass(frozen=True, kw_only=True)
class Codesign:
    """The best design of each index, and why others have none.

    Attributes:
        designs: designs ordered by queries per second, the most first.
        rejected: reason by index that does not fit.
    """

    designs: Sequence[SearchDesign]
    rejected: Mapping[SearchPoint, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Partial:
    """Combinations of the first stages that may still become the best.

    Attributes:
        cost: time, then resources [combinations, 1 + resources].
        picks: option of each stage so far [combinations, stages].
    """

    cost: Array
    picks: NDArray[np.int64]


def codesign(points: Iterable[SearchPoint], model: StageModel) -> Codesign:
    """Find the fastest design of each index, and rank them.

    Options of a stage, and combinations of stages, that another one beats in time and in every
    resource are left out before the next stage is added: none of them is part of a better whole.

    Args:
        points: indexes that reach the goal, each with its fewest cells to scan.
        model: hardware with its limits.

    Returns:
        Designs, fastest first; of equal ones that with fewer of the first resource, then of the
        last. Indexes that do not fit are rejected with the resource that ran out.

    Source: Jiang et al. 2023 (arXiv 2306.11182), which tries all combinations.
    """
    found: list[tuple[tuple[float, ...], SearchDesign]] = []
    rejected: dict[SearchPoint, str] = {}
    for point in points:
        stages = model.stages(point)
        best = _best(stages, model)
        if best is None:
            rejected[point] = _shortage(stages, model)
        else:
            found.append((tuple(best.cost[0][[0, 1, -1]]), _design(point, stages, best, model)))
    found.sort(key=lambda item: item[0])
    return Codesign(designs=[design for _, design in found], rejected=rejected)


def _best(stages: Sequence[StageOptions], model: StageModel) -> _Partial | None:
    """Return the best combination, None where none fits."""
    front = _Partial(np.concatenate([[0.0], model.used])[None], np.zeros((1, 0), np.int64))
    for stage in stages:
        kept = _undominated(np.column_stack([stage.times_s, stage.resources]))
        options = np.column_stack([stage.times_s, stage.resources])[kept]
        cost = front.cost[:, None, :] + options[None]
        if model.is_pipelined:
            cost[..., 0] = np.maximum(front.cost[:, None, 0], options[None, :, 0])
        fits = (cost[..., 1:] <= model.capacity).all(axis=-1)
        left, right = np.nonzero(fits)
        if not len(left):
            return None
        picks = np.column_stack([front.picks[left], kept[right]])
        alive = _undominated(cost[left, right])
        front = _Partial(cost[left, right][alive], picks[alive])
    order = np.lexsort((front.cost[:, -1], front.cost[:, 1], front.cost[:, 0]))
    return _Partial(front.cost[order[:1]], front.picks[order[:1]])


def _undominated(cost: Array) -> NDArray[np.int64]:
    """Return the rows that no other row beats or equals in every column; of equal ones one."""
    order = np.lexsort(cost.T[::-1])
    kept: list[int] = []
    front = np.empty((0, cost.shape[1]))
    for row in order.tolist():
        # A row that beats this one comes before it in this order.
        if not (front <= cost[row]).all(axis=1).any():
            kept.append(row)
            front = np.vstack([front, cost[row]])
    return np.array(kept, dtype=np.int64)


def _design(
    point: SearchPoint, stages: Sequence[StageOptions], best: _Partial, model: StageModel
) -> SearchDesign:
    """Put names on the numbers."""
    chosen = list(zip(stages, best.picks[0].tolist(), strict=True))
    config: dict[str, Any] = {}
    parts_s: dict[str, float] = {}
    for stage, pick in chosen:
        config |= stage.configs[pick]
        parts_s |= stage.parts_s[pick]
    return SearchDesign(
        point=point,
        queries_per_s=float(1 / best.cost[0, 0]),
        latency_s=sum(parts_s.values()),
        stage_s=parts_s,
        config=config,
        taken=dict(zip(model.resources, best.cost[0, 1:].tolist(), strict=True)),
        designs=float(np.prod([len(stage.times_s) for stage in stages], dtype=np.float64)),
    )


def _shortage(stages: Sequence[StageOptions], model: StageModel) -> str:
    """Return which resource even the smallest options run out of."""
    empty = [stage.name for stage in stages if not len(stage.times_s)]
    if empty:
        return f"no way to build the {empty[0]}"
    least = model.used + sum(stage.resources.min(axis=0) for stage in stages)
    over = [
        f"{name}: {need:,.0f} of {most:,.0f}"
        for name, need, most in zip(model.resources, least, model.capacity, strict=True)
        if need > most
    ]
    return ", ".join(over) or "each resource suffices alone, but no design has enough of all"
