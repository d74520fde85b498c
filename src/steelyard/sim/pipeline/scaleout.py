"""Several accelerators answer one query: the slowest of them, and the network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["ScaleOut", "latency_sampler"]

Array = NDArray[np.float64]
_DRAWS = 20_000


def latency_sampler(quantiles: Mapping[float, float]) -> Callable[[Array], Array]:
    """Return the latency at levels between measured quantiles.

    Args:
        quantiles: latency by level, at least two; levels between 0 and 1.

    Returns:
        A function from levels to latencies: straight between quantiles, the first and last beyond.

    Raises:
        DataError: fewer than two, or latencies that fall with the level.
    """
    levels = np.array(sorted(quantiles))
    values = np.array([quantiles[level] for level in levels])
    if len(levels) < 2 or (np.diff(values) < 0).any():
        raise DataError("a distribution needs two quantiles or more that do not fall")
    return lambda at: np.interp(at, levels, values)


@dataclass(frozen=True, kw_only=True)
class ScaleOut:
    """A data set over accelerators: a query is sent to all, and their answers are merged.

    Attributes:
        base_s: what the network adds whatever the number.
        per_accelerator_s: what it adds for each.

    Source: Jiang et al. 2023 (arXiv 2306.11182), scale-out; Alexandrov et al. 1995 (LogGP), which
        has a constant and a gap per message.
    """

    base_s: float
    per_accelerator_s: float

    def latencies_s(
        self, single: Callable[[Array], Array], accelerators: int, *, seed: int = 0
    ) -> Array:
        """Draw latencies of queries that all accelerators answer.

        Args:
            single: latency of one accelerator by level, as `latency_sampler` returns it.
            accelerators: how many; 1 has no network between them.
            seed: seed of the draws.

        Returns:
            20,000 latencies, sorted.
        """
        levels = np.random.default_rng(seed).random((_DRAWS, accelerators))
        slowest = np.sort(single(levels.max(axis=1)))
        if accelerators == 1:
            return slowest
        return slowest + self.base_s + self.per_accelerator_s * accelerators

    @classmethod
    def fitted(
        cls,
        single: Callable[[Array], Array],
        measured_s: Mapping[int, Mapping[float, float]],
        *,
        seed: int = 0,
    ) -> "ScaleOut":
        """Fit both constants so that the largest relative error is as small as possible.

        Args:
            single: latency of one accelerator by level.
            measured_s: quantiles by level, by number of accelerators, of two numbers above 1 or
                more.
            seed: seed of the draws.

        Returns:
            The constants.

        Raises:
            DataError: fewer than two numbers of accelerators.
        """
        from scipy.optimize import linprog

        counts = sorted(count for count in measured_s if count > 1)
        if len(counts) < 2:
            raise DataError("two constants need two numbers of accelerators or more")
        bare, above, bounds = cls(base_s=0.0, per_accelerator_s=0.0), [], []
        for count in counts:
            drawn = bare.latencies_s(single, count, seed=seed)
            for level, value in measured_s[count].items():
                rest = value - float(np.quantile(drawn, level))
                # The constants must be within the error, the third variable, on both sides.
                above += [[1.0, count, -value], [-1.0, -count, -value]]
                bounds += [rest, -rest]
        found = linprog([0.0, 0.0, 1.0], above, bounds, bounds=[(None, None)] * 2 + [(0, None)])
        return cls(base_s=float(found.x[0]), per_accelerator_s=float(found.x[1]))
