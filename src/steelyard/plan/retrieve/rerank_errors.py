"""How far forecasts of re-ranking were off where they were compared with measurements."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

__all__ = ["RerankErrors"]

_MEDIAN, _NORMAL_80, _LEAST_TRIED = 50, 1.2816, 4
_ASSUMED = {50: 0.05, 95: 0.10}
"""Relative error of the model by percentile where nothing was measured; not fitted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankErrors:
    """Forecasts beside measurements of some designs.

    What a search takes grows a little with the candidates that it keeps, which profiles leave out:
    the ratio may rise or fall with them.

    Attributes:
        ranked: documents that each design ranked; nothing was tried where there are none, and then
            5 % are assumed of the median and 10 % of the 95th percentile.
        p50: measured over forecast median latency of each.
        p95: likewise of the 95th percentile.
    """

    ranked: tuple[int, ...] = ()
    p50: tuple[float, ...] = ()
    p95: tuple[float, ...] = ()

    def scale(self, percentile: int, rerank: int) -> float:
        """Return what a forecast is multiplied by; 1 with fewer than four designs.

        Args:
            percentile: 50 or 95.
            rerank: documents that are ranked.

        Returns:
            The ratio at that number by the line through all, in logarithms.
        """
        if len(self.ranked) < _LEAST_TRIED:
            return 1.0
        # Between what was tried only: a line says nothing of what lies beyond.
        within = np.clip(rerank, min(self.ranked), max(self.ranked))
        line, _ = self._fitted(percentile)
        return float(np.exp(line[0] + line[1] * np.log(within)))

    def half_width(self, percentile: int, spread: float, noise: float) -> float:
        """Return the half-width of an 80 % interval, relative, in logarithms.

        Args:
            percentile: 50 or 95.
            spread: of the percentile by the draw of sample queries.
            noise: of medians from one round of measurements to the next.

        Returns:
            Of the model, the sample and the machine; wider with few designs, whose spread is not
            known well.
        """
        if len(self.ranked) < _LEAST_TRIED:
            assumed = _ASSUMED[percentile]
            return _NORMAL_80 * float(np.linalg.norm([spread, noise, assumed]))
        _, rest = self._fitted(percentile)
        free = len(rest) - 2
        own = float(np.square(rest).sum() / free) ** 0.5 * (1 + 1 / len(rest)) ** 0.5
        # What was measured has the spread of its own queries in it already.
        return float(stdtrit(free, 0.9) * np.hypot(max(own, spread), noise))

    def _fitted(self, percentile: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return offset and slope of the ratios over the documents, and what is left of each."""
        ratios = np.log(self.p50 if percentile == _MEDIAN else self.p95)
        columns = np.stack([np.ones(len(ratios)), np.log(self.ranked)], axis=1)
        line = np.asarray(np.linalg.lstsq(columns, ratios)[0], np.float64)
        return line, ratios - columns @ line
