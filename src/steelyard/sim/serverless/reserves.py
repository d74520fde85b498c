"""Reserved pools and schedulers of the reference: what a start takes, and from where."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.loop import EventLoop
from steelyard.sim.serverless.draws import draw_parts, quantile_at
from steelyard.sim.serverless.lifecycle import REFILL
from steelyard.sim.serverless.platform import Platform
from steelyard.sim.serverless.tables import Tables

__all__ = ["Reserves"]


class Reserves:
    """Pools by region, cluster and size class, and each region's schedulers."""

    def __init__(self, platform: Platform, tables: Tables, loop: EventLoop, seed: int) -> None:
        """Start with empty pools and free schedulers.

        Args:
            platform: the platform.
            tables: its arrays.
            loop: where refills are scheduled.
            seed: seed of the start-ups.
        """
        regions, pools = len(platform.regions), len(platform.pools)
        self._platform, self._tables, self._loop, self._seed = platform, tables, loop, seed
        shape = (regions, platform.clusters, pools)
        self._idle, self._filling, self._target = (np.zeros(shape, dtype=int) for _ in range(3))
        self._area, self._since_s = np.zeros(shape), np.zeros(shape)
        self._taken, self._most = (np.zeros((regions, pools), dtype=int) for _ in range(2))
        self._free_s = np.zeros((regions, getattr(platform.schedulers, "count", 1)))
        self._num_starts = np.zeros(len(tables.functions), dtype=int)
        self._start_sum_s, self._starts = np.zeros(regions), np.zeros(regions, dtype=int)

    def start(self, function: int, region: int) -> tuple[list[float], int]:
        """Return the parts of a function's next start, seconds, and its stage (-1: no pools)."""
        tables, runtime = self._tables, self._tables.functions["runtime"][function]
        parts_s = np.empty(tables.shares.shape[1])
        draws = tables.curves[runtime], tables.shares[runtime], tables.factors[runtime]
        nth = int(self._num_starts[function])
        level = draw_parts(*draws, self._seed, function, nth, parts_s)
        self._num_starts[function] += 1
        stage = -1
        if self._platform.pools:
            size = int(tables.functions["size"][function])
            stage = 2 if size < 0 else self._take(function, region, size)
            if size >= 0:
                parts_s[tables.pool_part] = quantile_at(tables.stages[stage], level)
        if self._platform.schedulers:
            parts_s[tables.queue_part] += self._queue_s(region)
        return parts_s.tolist(), stage

    def _queue_s(self, region: int) -> float:
        """Return the wait for the scheduler that is free first, and hold it."""
        now_s, free_s = self._loop.now_s, self._free_s[region]
        first = int(np.argmin(free_s))
        waited_s = max(float(free_s[first]) - now_s, 0.0)
        free_s[first] = now_s + waited_s + self._tables.service_s
        return waited_s

    def _take(self, function: int, region: int, size: int) -> int:
        """Take a pod, searching wider and wider; return the stage."""
        self._taken[region, size] += 1
        self._most[region, size] = max(self._most[region, size], self._taken[region, size])
        clusters, refill_s = self._platform.clusters, self._platform.pools[size].refill_s
        for step in range(clusters):
            cell = region, (function + step) % clusters, size
            if self._idle[cell] > 0:
                self._idle[cell] -= 1
                self._filling[cell] += 1
                self._loop.after(refill_s, partial(self._refill, cell, True), priority=REFILL)
                return min(step, 1)
        # A start from scratch brings no pod into a pool, yet it counts as needed for as long.
        self._loop.after(refill_s, partial(self._forget, region, size), priority=REFILL)
        return 2

    def _forget(self, region: int, size: int) -> None:
        self._taken[region, size] -= 1

    def _refill(self, cell: tuple[int, int, int], was_taken: bool) -> None:
        """Bring a pod in, unless the pool has shrunk."""
        if was_taken:
            self._forget(cell[0], cell[2])
        self._integrate(cell, self._loop.now_s)
        self._filling[cell] -= 1
        if self._idle[cell] + self._filling[cell] < self._target[cell]:
            self._idle[cell] += 1

    def _integrate(self, cell: tuple[int, ...], now_s: float) -> None:
        """Add up what a cell kept since it last changed."""
        kept = self._idle[cell] + self._filling[cell]
        self._area[cell] += kept * (now_s - self._since_s[cell])
        self._since_s[cell] = now_s

    def set_targets(self, targets: NDArray[np.int64]) -> None:
        """Set the pods to reserve by cell; at time 0 they are there at once."""
        now_s = self._loop.now_s
        for row, cell in enumerate(np.ndindex(self._idle.shape)):
            self._integrate(cell, now_s)
            self._target[cell] = targets[row]
            missing = int(targets[row] - self._idle[cell] - self._filling[cell])
            if now_s == 0:
                self._idle[cell] = targets[row]
            elif missing < 0:
                self._idle[cell] -= min(-missing, self._idle[cell])
            for _ in range(missing if now_s > 0 else 0):
                self._filling[cell] += 1
                act = partial(self._refill, cell, False)
                self._loop.after(self._platform.pools[cell[2]].refill_s, act, priority=REFILL)

    def count_start(self, region: int, total_s: float) -> None:
        """Count a start of `total_s` seconds in a region."""
        self._start_sum_s[region] += total_s
        self._starts[region] += 1

    def seen(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Return what the step that ends saw, and begin a new one."""
        # What is still out counts from the first moment of the next step.
        most, sums, starts = self._most.ravel(), self._start_sum_s, self._starts
        self._most = self._taken.copy()
        self._start_sum_s, self._starts = np.zeros_like(sums), np.zeros_like(starts)
        return most, sums, starts

    def pool_s(self, until_s: float) -> float:
        """Return reserved pods over time up to `until_s`, pod-seconds."""
        kept = self._idle + self._filling
        return float((self._area + kept * (until_s - self._since_s)).sum())
