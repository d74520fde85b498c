"""What shards are asked: decayed rates, a daily profile, classes by use, and the load to come."""

from collections.abc import Mapping, Sequence

import numpy as np

from steelyard.data.kmeans import kmeans
from steelyard.operate.shards.policy import Adaptive

__all__ = ["COLD", "HOT", "WARM", "ShardLoads"]

COLD, WARM, HOT = 0, 1, 2
_HOT_SHARE = 0.8
_STEADY_WINDOWS = 3
_LEVEL_GAIN, _TREND_GAIN, _DAMPING = 0.5, 0.2, 0.9
_NUM_PHASES = 8
"""Groups of shards of like phase: as many again as the quarters of a day, for those without one."""


class ShardLoads:
    """Rates of shards, window by window.

    A class changes only after three windows that ask for it. The forecast adds a damped trend
    (Holt) and, once a whole period has been seen, takes what the same time of the period had
    beside the present, where each shard's profile is that of its group of like phase.

    Attributes:
        ids: numbers of the shards, in the order of all columns.
        rates: accesses per second, decayed, float64 [V].
        classes: `HOT`, `WARM` or `COLD`, int64 [V].

    Source: arXiv 2405.00004, sections on temporal sharding and predictive re-sharding, made
        definite; Holt 1957; Gardner and McKenzie 1985 (damped trend).
    """

    def __init__(self, ids: Sequence[int], policy: Adaptive) -> None:
        """Start with shards that nobody has asked for.

        Args:
            ids: their numbers.
            policy: windows, half-life, period.
        """
        self._policy = policy
        self.ids: list[int] = list(ids)
        count = len(self.ids)
        self.rates, self._level, self._trend = np.zeros(count), np.zeros(count), np.zeros(count)
        self._profile = np.zeros((count, policy.num_bins))
        self._seen = np.zeros(policy.num_bins, np.int64)
        self.classes = np.full(count, WARM)
        self._asked_for, self._for_windows = self.classes.copy(), np.zeros(count, np.int64)
        self._last_used_s = np.zeros(count)

    def follow(self, parents: Mapping[int, tuple[int, float]], ids: Sequence[int]) -> None:
        """Take other shards: those that were split share what their parent had.

        Args:
            parents: parent of each new shard by number, and its share of the load.
            ids: all shards from now on.
        """
        place = {number: column for column, number in enumerate(self.ids)}
        source = [place[parents.get(number, (number, 1.0))[0]] for number in ids]
        share = np.array([parents.get(number, (number, 1.0))[1] for number in ids])
        for name in ("rates", "_level", "_trend"):
            setattr(self, name, getattr(self, name)[source] * share)
        self._profile = self._profile[source] * share[:, None]
        for name in ("classes", "_asked_for", "_for_windows", "_last_used_s"):
            setattr(self, name, getattr(self, name)[source].copy())
        self.ids = list(ids)

    def observe(self, now_s: float, counts: np.ndarray) -> None:
        """Take the accesses of one window.

        Args:
            now_s: its end.
            counts: reads and writes by shard, [V].
        """
        policy = self._policy
        rate = counts / policy.window_s
        keep = 0.5 ** (policy.window_s / policy.half_life_s)
        self.rates = keep * self.rates + (1 - keep) * rate
        before = self._level
        self._level = (1 - _LEVEL_GAIN) * (before + _DAMPING * self._trend) + _LEVEL_GAIN * rate
        change = self._level - before
        self._trend = (1 - _TREND_GAIN) * _DAMPING * self._trend + _TREND_GAIN * change
        place = self._bin(now_s)
        # The newest period counts half: a profile follows a drift, and no odd day makes it.
        weight = 0.5 if self._seen[place] else 1.0
        self._profile[:, place] += weight * (rate - self._profile[:, place])
        self._seen[place] += 1
        self._last_used_s[counts > 0] = now_s
        self._classify(now_s, rate)

    def _bin(self, time_s: float) -> int:
        """Return the bin of the period that a time falls in."""
        share = time_s / self._policy.period_s % 1.0
        return min(int(share * self._policy.num_bins), self._policy.num_bins - 1)

    def _classify(self, now_s: float, rate: np.ndarray) -> None:
        """Say hot, warm or cold, and change the class of shards that ask for it long enough."""
        order = np.argsort(-rate, kind="stable")
        before = np.cumsum(rate[order]) - rate[order]
        wanted = np.full(len(rate), WARM)
        wanted[order[(before < _HOT_SHARE * rate.sum()) & (rate[order] > 0)]] = HOT
        wanted[now_s - self._last_used_s >= self._policy.cold_after_s] = COLD
        self._for_windows = np.where(wanted == self._asked_for, self._for_windows + 1, 1)
        self._asked_for = wanted
        self.classes = np.where(self._for_windows >= _STEADY_WINDOWS, wanted, self.classes)

    def now(self) -> np.ndarray:
        """Return the load of the present, accesses per second [V]."""
        return self._level.copy()

    def forecast(self, now_s: float) -> np.ndarray:
        """Return the load one horizon ahead, accesses per second [V], none below 0."""
        policy = self._policy
        steps = policy.horizon_s / policy.window_s
        damped = _DAMPING * (1 - _DAMPING**steps) / (1 - _DAMPING)
        ahead = np.maximum(self._level + damped * self._trend, 0.0)
        if not self._seen.all():
            return ahead
        profile = self._smoothed()
        then = profile[:, self._bin(now_s + policy.horizon_s)]
        here = profile[:, self._bin(now_s)]
        ratio = np.divide(then, here, out=np.ones_like(then), where=here > 0)
        return np.maximum(self._level * np.clip(ratio, 0.1, 10.0), 0.0)

    def _smoothed(self) -> np.ndarray:
        """Return each shard's profile as the mean of its phase, scaled to its own sum."""
        total = self._profile.sum(axis=1)
        used = np.flatnonzero(total > 0)
        if len(used) < 4 * _NUM_PHASES:
            return self._profile
        shapes = self._profile[used] / total[used, None]
        groups = kmeans(shapes, _NUM_PHASES, metric="euclidean", iterations=10)
        smoothed = self._profile.copy()
        smoothed[used] = groups.centers[groups.labels] * total[used, None]
        return smoothed
