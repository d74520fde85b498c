"""Search of layouts by real runs: few evaluations, several at once, failures learned from.

A Gaussian process over the settings forecasts the throughput of what was not run yet; the next run
is the one whose optimistic forecast is best. Runs that fail, for want of memory say, count as slow,
so that their neighbourhood is left alone.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, require

__all__ = ["LayoutTuner"]

Array = NDArray[np.float64]

_LENGTHS = (0.15, 0.3, 0.6, 1.2, 3.0, 10.0)
"""Length scales that are tried of each setting, in units of its range."""
_MIDDLE = 0.6
_PENALTY = 0.5
"""Least distance of a failure below the slowest success, as a logarithm."""
_NOISE = 1e-3
_JITTER = 1e-9


@dataclass
class LayoutTuner:
    """Say which candidate to run next, and learn from what came of it.

    It neither runs anything nor keeps time: whoever runs the candidates asks and tells, in any
    order and with several under way.

    Attributes:
        settings: numbers that describe each candidate, [candidates, settings]; degrees are best
            given as logarithms.
        seed: seed of the first choices.
        first: candidates that are drawn before forecasts begin.
        boldness: standard deviations that the optimistic forecast lies above the expected one.

    Source: arXiv:2312.12705, section 4: asynchronous Bayesian search with a penalty for failures
        and a constant liar, over a random forest there.
    """

    settings: ArrayLike
    seed: int = 0
    first: int = 8
    boldness: float = 2.0
    _points: Array = field(init=False, repr=False)
    _values: dict[int, float | None] = field(init=False, repr=False, default_factory=dict)
    _running: dict[int, None] = field(init=False, repr=False, default_factory=dict)
    _order: list[int] = field(init=False, repr=False)
    _lengths: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Scale the settings, and draw the order of the first choices.

        Raises:
            ConfigError: there are no candidates, a setting is not finite, or a number is out of
                range.
        """
        raw = np.atleast_2d(np.asarray(self.settings, dtype=float))
        require(
            self,
            first=(self.first >= 2, "at least 2"),
            boldness=(self.boldness >= 0, "at least 0"),
        )
        if not raw.size or not np.isfinite(raw).all():
            raise ConfigError(f"settings of shape {raw.shape} are no finite numbers of candidates")
        spread = raw.max(axis=0) - raw.min(axis=0)
        self._points = (raw - raw.min(axis=0)) / np.where(spread > 0, spread, 1.0)
        self._lengths = np.full(raw.shape[1], _MIDDLE)
        rng = np.random.default_rng(self.seed)
        self._order = rng.permutation(len(raw)).tolist()

    def ask(self) -> int | None:
        """Return the candidate to run next, None when all were asked for."""
        open_ = [place for place in self._order if place not in {*self._values, *self._running}]
        if not open_:
            return None
        done = [value for value in self._values.values() if value is not None]
        # Before anything is known, and while everything failed, another draw says most.
        is_early = len(self._values) + len(self._running) < self.first
        chosen = open_[0] if is_early or not done else self._most_promising(open_)
        self._running[chosen] = None
        return chosen

    def tell(self, candidate: int, value: float | None) -> None:
        """Learn what came of a candidate.

        Args:
            candidate: what `ask` returned; one that was run elsewhere may be told too.
            value: throughput, more is better; None where the run failed.

        Raises:
            ConfigError: there is no such candidate, or the value is not above 0.
        """
        if not 0 <= candidate < len(self._points):
            raise ConfigError(f"candidate {candidate} is none of {len(self._points)}")
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ConfigError(
                f"candidate {candidate} has throughput {value}, but it must be above 0",
                hint="tell None where the run failed",
            )
        self._running.pop(candidate, None)
        self._values[candidate] = value

    @property
    def best(self) -> int | None:
        """Candidate of the largest throughput so far, None before one was told."""
        done = {place: value for place, value in self._values.items() if value is not None}
        return max(done, key=lambda place: done[place]) if done else None

    def _most_promising(self, open_: list[int]) -> int:
        """Return the open candidate with the best optimistic forecast."""
        places = [*self._values, *self._running]
        known = np.array([np.log(value) for value in self._values.values() if value is not None])
        # A failure counts as slower than the slowest. What is under way counts as the least of
        # success (a constant liar), so that the next one asks elsewhere.
        failed = known.min() - max(float(known.std()), _PENALTY)
        told = [failed if value is None else np.log(value) for value in self._values.values()]
        targets = np.array(told + [known.min()] * len(self._running))
        points = self._points[places]
        self._lengths = _likeliest(points, targets, self._lengths)
        mean, spread = _forecast(points, targets, self._points[open_], self._lengths)
        return open_[int(np.argmax(mean + self.boldness * spread))]


def _likeliest(points: Array, targets: Array, lengths: Array) -> Array:
    """Return better length scales, one setting at a time: settings that matter get short ones."""
    scaled = _standard(targets)[0]
    best = lengths.copy()
    for place in range(points.shape[1]):
        tried = []
        for length in _LENGTHS:
            best[place] = length
            # A weak pull to the middle length: with few points all lengths are about as likely.
            pull = 0.1 * np.log(length / _MIDDLE) ** 2
            tried.append(_likelihood(points, scaled, best) - pull)
        best[place] = _LENGTHS[int(np.argmax(tried))]
    return best


def _standard(targets: Array) -> tuple[Array, float, float]:
    """Return the values without their mean and scale, and these."""
    middle, scale = float(targets.mean()), max(float(targets.std()), 1e-6)
    return (targets - middle) / scale, middle, scale


def _forecast(points: Array, targets: Array, asked: Array, lengths: Array) -> tuple[Array, Array]:
    """Return expected values and their standard deviations at the points asked for."""
    scaled, middle, scale = _standard(targets)
    factor = _factor(points, lengths)
    across = np.linalg.solve(factor, _kernel(points, asked, lengths))
    mean: Array = middle + scale * (across.T @ np.linalg.solve(factor, scaled))
    variance: Array = np.maximum(1.0 - np.square(across).sum(axis=0), _JITTER)
    spread: Array = scale * np.sqrt(variance)
    return mean, spread


def _factor(points: Array, lengths: Array) -> Array:
    """Return the Cholesky factor of the points' covariance."""
    found = np.linalg.cholesky(_kernel(points, points, lengths) + _NOISE * np.eye(len(points)))
    return found.astype(np.float64, copy=False)


def _kernel(one: Array, other: Array, lengths: Array) -> Array:
    """Return the covariance of two sets of points: once differentiable (Matern 3/2)."""
    gaps = (one[:, None, :] - other[None, :, :]) / lengths
    distance = np.sqrt(3 * np.square(gaps).sum(axis=-1))
    return (1 + distance) * np.exp(-distance)


def _likelihood(points: Array, scaled: Array, lengths: Array) -> float:
    """Return the log likelihood of the values, without constants."""
    factor = _factor(points, lengths)
    white = np.linalg.solve(factor, scaled)
    return float(-0.5 * white @ white - np.log(np.diag(factor)).sum())
