"""Queries on their way through the stages of a vector search that is built in hardware."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.vector_search.options import SearchPoint
from steelyard.jit import njit
from steelyard.sim.pipeline.systolic import systolic_select

__all__ = ["PipelineRun", "SearchPipeline", "run_tandem"]

Array = NDArray[np.float64]
_FILL = 3 + 5 + 2
"""Cycles that a queue is filled and read ahead of its values."""
_SCAN_START, _CODE_DEPTH = 2 + 256 - 1, 63
"""Cycles to bring the tables of a cell in, without one per unit; depth of the adders."""


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """What queries saw.

    Attributes:
        latency_s: seconds from arrival to answer of each query [Q].
        queries_per_s: rate of the answers of the second half.
        stage_s: time in each stage [Q, stages].
    """

    latency_s: Array
    queries_per_s: float
    stage_s: Array


def run_tandem(arrivals_s: Array, stage_s: Array, *, depth: int = 1) -> Array:
    """Send queries through stages that each work on one at a time.

    Args:
        arrivals_s: times in order [Q].
        stage_s: time of each query in each stage [Q, stages].
        depth: finished queries that may wait between two stages, at least 1; where there is no
            place left, a stage waits with what it finished.

    Returns:
        Time at which each query leaves each stage [Q, stages].
    """
    return _tandem(arrivals_s, stage_s, depth)


@njit()
def _tandem(arrivals_s: np.ndarray, stage_s: np.ndarray, depth: int) -> np.ndarray:
    queries, stages = stage_s.shape
    left = np.zeros((queries, stages))
    begun = np.zeros((queries, stages))
    for query in range(queries):
        ready = arrivals_s[query]
        for stage in range(stages):
            free = left[query - 1, stage] if query else 0.0
            begun[query, stage] = max(ready, free)
            done = begun[query, stage] + stage_s[query, stage]
            earlier = query - depth
            # There is a place behind this stage once an earlier query was taken from there.
            if stage + 1 < stages and earlier >= 0:
                done = max(done, begun[earlier, stage + 1])
            left[query, stage] = ready = done
    return left


class SearchPipeline:
    """A design whose scanning and selection run cycle by cycle on cells of random sizes.

    The other stages do the same for every query; their cycles are those of the model.
    """

    def __init__(
        self,
        point: SearchPoint,
        config: Mapping[str, Any],
        fixed_s: Mapping[str, float],
        *,
        hz: float,
    ) -> None:
        """Take a design.

        Args:
            point: index and query.
            config: what the stages are built as: `scan_units`, `selection_queues` or
                `sorting_networks`.
            fixed_s: time of a query in the stages before the scan, by name, in order.
            hz: clock.
        """
        self.point, self.config, self.hz = point, config, hz
        self.fixed_s = np.array(list(fixed_s.values()))

    def run(
        self, queries: int, *, rate_per_s: float = 0.0, depth: int = 1, seed: int = 0
    ) -> PipelineRun:
        """Answer queries.

        Args:
            queries: how many, at least 2.
            rate_per_s: mean rate of Poisson arrivals; 0 sends each as soon as one is taken, so the
                rate of the answers is the most there is.
            depth: queries that may wait between two stages.
            seed: seed of cells, distances and arrivals.

        Returns:
            Latencies, and the rate of the answers.
        """
        rng = np.random.default_rng(seed)
        cycles = np.array([self._query_cycles(rng) for _ in range(queries)])
        stage_s = np.column_stack([np.tile(self.fixed_s, (queries, 1)), cycles / self.hz])
        arrivals = np.zeros(queries)
        if rate_per_s:
            arrivals = np.cumsum(rng.exponential(1 / rate_per_s, queries))
        left = run_tandem(arrivals, stage_s, depth=depth)[:, -1]
        half = queries // 2
        rate = (queries - 1 - half) / (left[-1] - left[half])
        return PipelineRun(latency_s=left - arrivals, queries_per_s=float(rate), stage_s=stage_s)

    def _query_cycles(self, rng: np.random.Generator) -> tuple[float, float]:
        """Return the cycles of scanning and of selection of one query."""
        units = int(self.config["scan_units"])
        codes = [-(-int(size) // units) for size in self._cell_sizes(rng)]
        scan = sum(_SCAN_START + units + _CODE_DEPTH + count for count in codes)
        if "sorting_networks" in self.config:
            return scan, float(sum(codes))
        return scan, self._selection_cycles(sum(codes), rng)

    def _cell_sizes(self, rng: np.random.Generator) -> Array:
        """Draw the sizes of cells that a query comes to.

        A cell is probed in proportion to its size: among sizes with a squared variation of c the
        mean of the probed ones is 1 + c times that of all.
        """
        variation = self.point.scan_ratio - 1.0
        mean = self.point.num_vectors / self.point.nlist
        # Gamma sizes, drawn in proportion to size: the shape grows by one.
        return rng.gamma(1 / variation + 1, mean * variation, self.point.nprobe)

    def _selection_cycles(self, values: int, rng: np.random.Generator) -> float:
        """Run the queues of each level; those of a level work at once, so one stands for them."""
        k, levels = self.point.k, self.config["selection_queues"]
        # Two queues share one unit's values, each taking one in two cycles.
        _, slowest = systolic_select(rng.random(-(-values // 2), dtype=np.float32), k)
        for above, here in itertools.pairwise(levels):
            passed = rng.random(-(-above * k // here), dtype=np.float32)
            slowest = max(slowest, systolic_select(passed, k)[1])
        return float(_FILL + slowest)
