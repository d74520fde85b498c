"""Which part of a mixture stands at a position: an even interleave with random access."""

import math
from collections.abc import Sequence

import numpy as np

from steelyard.errors import ConfigError

__all__ = ["Interleave"]

_PERIOD = 1 << 20


class Interleave:
    """An endless sequence of parts in which every stretch holds each in proportion to its rate.

    Part k's occurrence j stands at time (j + 1/2) / rate k, and times are sorted: the count of a
    part among the first P positions is within about one per part of P times its share. Rates become
    integers whose sum is at most 2^20, so the sequence repeats and is looked up in one period.

    Attributes:
        shares: share of each part as it is served, sums to 1.
        period: positions after which the sequence repeats.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        """Sort the occurrences of one period.

        Args:
            rates: relative rates, finite and above 0; one below 2^-20 of the largest is refused.

        Raises:
            ConfigError: a rate is not positive, or too small beside the others.
        """
        given = np.asarray(rates, dtype=np.float64)
        if not len(given) or not (np.isfinite(given).all() and (given > 0).all()):
            raise ConfigError(
                f"rates {given.tolist()} are not allowed", hint="give positive finite numbers"
            )
        if given.min() * _PERIOD < given.sum():
            raise ConfigError(
                f"a rate of {given.min():g} is too small beside a sum of {given.sum():g}",
                hint="leave that part out, or raise its rate",
            )
        self._counts = _whole_numbers(given / given.sum())
        self.period = int(self._counts.sum())
        self.shares = self._counts / self.period
        parts = np.repeat(np.arange(len(given)), self._counts)
        firsts = np.cumsum(self._counts) - self._counts
        ordinals = np.arange(self.period) - firsts[parts]
        order = np.lexsort((parts, (ordinals + 0.5) / self._counts[parts]))
        self._parts = parts[order].astype(np.uint16 if len(given) <= 1 << 16 else np.uint32)
        self._ordinals = ordinals[order].astype(np.uint32)

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look positions up.

        Args:
            positions: int64 [N], 0 or more, without end.

        Returns:
            The part at each position, and how often it stood before, int64 [N] each.
        """
        rounds, places = np.divmod(np.asarray(positions, dtype=np.int64), self.period)
        parts = self._parts[places].astype(np.int64)
        return parts, rounds * self._counts[parts] + self._ordinals[places]


def _whole_numbers(shares: np.ndarray) -> np.ndarray:
    """Return integers in proportion to shares: exactly where few suffice, else with sum 2^20."""
    # Plain ratios such as 3 : 1 or 0.3 : 0.7 are met exactly, by the smallest sum that does.
    for total in (*range(len(shares), 101), 1000, 10_000):
        scaled = shares * total
        if np.abs(scaled - np.rint(scaled)).max() < 1e-9 and scaled.min() > 0.5:
            counts = np.rint(scaled).astype(np.int64)
            return counts // math.gcd(*counts.tolist())
    scaled = shares * _PERIOD
    counts = np.maximum(np.floor(scaled).astype(np.int64), 1)
    # What rounding down left over goes to the parts that lost most.
    missing = _PERIOD - int(counts.sum())
    counts[np.argsort(counts - scaled, kind="stable")[: max(missing, 0)]] += 1
    return counts
