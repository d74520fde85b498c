"""How far forecasts of re-ranking were off where they were compared with measurements."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

__all__ = ["RerankErrors"]

_MEDIAN, _NORMAL_80, _TAIL = 50, 1.2816, 0.9
_LEAST_FREE = 2
"""Designs beyond the coefficients of the line, without which its spread would be a guess."""
_ASSUMED = {50: 0.05, 95: 0.10}
"""Relative error of the model by percentile where nothing was measured; not fitted."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankErrors:
    """Forecasts beside measurements of some designs, which were tried several times over.

    What a search takes grows a little with the candidates that it keeps, which profiles leave out:
    the ratio may rise or fall with them. Reads that run beside a search also share memory with it,
    late ones do not: the ratio of either has a level of its own.

    Attributes:
        ranked: documents that each design ranked; nothing was tried where there are none, and then
            5 % are assumed of the median and 10 % of the 95th percentile.
        is_late: whether each read nothing before the search was over.
        p50: measured over forecast median latency of each, over all rounds.
        p95: likewise of the 95th percentile.
        drift: standard deviation from round to round of the logarithm of a design's median: how
            much the machine's speed changes by itself.
        rounds: times that each design was tried; 1 says nothing of drift.
    """

    ranked: tuple[int, ...] = ()
    is_late: tuple[bool, ...] = ()
    p50: tuple[float, ...] = ()
    p95: tuple[float, ...] = ()
    drift: float = 0.0
    rounds: int = 1

    @property
    def is_enough(self) -> bool:
        """Whether so many designs were tried that their spread around the line says something."""
        return bool(self.ranked) and self._free() >= _LEAST_FREE

    def scale(self, percentile: int, share: float, rerank: int) -> float:
        """Return what a forecast is multiplied by; 1 where too few designs were tried.

        Args:
            percentile: 50 or 95.
            share: of the search after which reads begin; 1 for none before its end.
            rerank: documents that are ranked.

        Returns:
            The ratio at that number by the line through all, in logarithms.
        """
        if not self.is_enough:
            return 1.0
        # Between what was tried only: a line says nothing of what lies beyond.
        within = np.clip(rerank, min(self.ranked), max(self.ranked))
        line, _ = self._fitted(percentile)
        # Without a late design that was tried its level is unknown, and its coefficient 0.
        return float(np.exp(line @ [1.0, np.log(within), float(share >= 1)]))

    def half_width(self, percentile: int, spread: float, noise: float) -> float:
        """Return the half-width of an 80 % interval, relative, in logarithms.

        Args:
            percentile: 50 or 95.
            spread: of the percentile by the draw of sample queries.
            noise: of medians from one round of the profile to the next, for want of tries.

        Returns:
            Of the model, the sample and the machine's drift; wider with few designs or rounds,
            whose spread is not known well.

        Source: Satterthwaite 1946, degrees of freedom of a sum of estimated variances.
        """
        if not self.is_enough:
            assumed = _ASSUMED[percentile]
            return _NORMAL_80 * float(np.linalg.norm([spread, noise, assumed]))
        _, rest = self._fitted(percentile)
        free, count = self._free(), len(self.ranked)
        # What was measured has the spread of its own queries in it already.
        own = max(float(np.square(rest).sum()) / free * (1 + 1 / count), spread**2)
        # The level is a mean over rounds, what is forecast is another round.
        drifts = self.drift**2 * (1 + 1 / self.rounds) if self.rounds > 1 else noise**2
        of_drift = max(self.rounds - 1, 1)
        known = (own + drifts) ** 2 / max(own**2 / free + drifts**2 / of_drift, 1e-300)
        return float(stdtrit(known, _TAIL) * (own + drifts) ** 0.5)

    def _columns(self) -> Floats:
        """Return what ratios follow: a level, the documents, and being late [N, 3]."""
        late = self.is_late or (False,) * len(self.ranked)
        return np.stack(
            [np.ones(len(self.ranked)), np.log(self.ranked), np.asarray(late, float)], axis=1
        )

    def _free(self) -> int:
        """Return by how many the designs outnumber the coefficients that they can tell apart."""
        return len(self.ranked) - int(np.linalg.matrix_rank(self._columns()))

    def _fitted(self, percentile: int) -> tuple[Floats, Floats]:
        """Return the coefficients of the ratios, and what is left of each."""
        ratios, columns = np.log(self.p50 if percentile == _MEDIAN else self.p95), self._columns()
        line = np.asarray(np.linalg.lstsq(columns, ratios)[0], np.float64)
        return line, ratios - columns @ line
