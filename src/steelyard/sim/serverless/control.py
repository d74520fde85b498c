"""Decisions on pools and placement between events, for both engines."""

import copy

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.serverless.platform import Platform
from steelyard.sim.serverless.tables import Tables

__all__ = ["PlatformController"]


class PlatformController:
    """Asks the policies that decide once a step, and keeps what they are told."""

    def __init__(self, platform: Platform, tables: Tables) -> None:
        """Start without history.

        Args:
            platform: whose policies are asked.
            tables: its arrays.
        """
        self._platform = platform
        self._home, self._rtt_s = tables.functions["home"], tables.rtt_s
        self._needs = np.zeros((len(platform.regions) * len(platform.pools), 64), dtype=np.int64)
        self._num_steps = 0
        # A sizer may remember what it forecast, so each pool of each region asks a copy of its own.
        self._sizers = [
            copy.deepcopy(pool.sizer) for _ in platform.regions for pool in platform.pools
        ]
        self._start_s = np.full(len(platform.regions), np.nan)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is decided between events."""
        return not self._platform.pools and self._platform.placement is None

    def observe(
        self,
        most_taken: NDArray[np.int64],
        start_sum_s: NDArray[np.float64],
        num_starts: NDArray[np.int64],
    ) -> None:
        """Take in what a step saw.

        Args:
            most_taken: most pods needed at a time, by region and pool.
            start_sum_s: sum of start-ups by region, seconds.
            num_starts: starts by region.
        """
        if self._num_steps == self._needs.shape[1]:
            self._needs = np.concatenate((self._needs, np.zeros_like(self._needs)), axis=1)
        self._needs[:, self._num_steps] = most_taken
        self._num_steps += 1
        for region in np.flatnonzero(num_starts):
            mean_s = start_sum_s[region] / num_starts[region]
            old_s = self._start_s[region]
            self._start_s[region] = mean_s if np.isnan(old_s) else (old_s + mean_s) / 2

    def targets(self) -> NDArray[np.int64]:
        """Return pods to reserve by cell: region, cluster, pool."""
        clusters, pools = self._platform.clusters, self._platform.pools
        cells = np.zeros((len(self._platform.regions), clusters, len(pools)), dtype=np.int64)
        for row, sizer in enumerate(self._sizers):
            region, pool = divmod(row, len(pools))
            total = max(int(sizer.size(self._needs[row, : self._num_steps])), 0)
            each, rest = divmod(total, clusters)
            cells[region, :, pool] = each + (np.arange(clusters) < rest)
        return cells.ravel()

    def regions(self) -> NDArray[np.int64]:
        """Return the region in which each function's pods start."""
        if self._platform.placement is None:
            return self._home.copy()
        return self._platform.placement.place(self._home, self._start_s, self._rtt_s)
