"""The noise scale from gradient norms at two batch sizes, with its interval."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

__all__ = ["NoiseEstimate", "NoiseHistory", "unbiased_parts"]

_Array = NDArray[np.float64]
_MOST_BLOCKS = 16
_LEAST_BLOCKS = 4
_LEVEL = 0.8


def unbiased_parts(
    small: _Array, big: _Array, unit_size: float, batch_size: float
) -> tuple[_Array, _Array]:
    """Split the norms of gradients at two batch sizes into signal and noise.

    Args:
        small: mean of |g|^2 over gradients of `unit_size` examples.
        big: |g|^2 of their mean, over `batch_size` examples.
        unit_size: examples of one gradient.
        batch_size: examples of all, more than `unit_size`.

    Returns:
        Unbiased estimates of the true gradient's squared norm, and of the trace of the covariance
        of one example's gradient; either may be negative by chance.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1, equations A.2 and A.3.
    """
    signal = (batch_size * big - unit_size * small) / (batch_size - unit_size)
    noise = (small - big) / (1 / unit_size - 1 / batch_size)
    return signal, noise


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """A noise scale in examples.

    Attributes:
        value: B_simple = tr(Sigma) / |G|^2; NaN before the first measurement.
        low: lower end of the 80 % interval; NaN with too few measurements.
        high: its upper end; infinite where the gradient is lost in its noise.
        is_lower_bound: whether the gradient is lost in its noise, so that `value` is only a bound.
        measured: steps it stands on.
        skipped: steps left out because a norm was not finite.
    """

    value: float
    low: float
    high: float
    is_lower_bound: bool
    measured: int
    skipped: int


@dataclass(slots=True)
class NoiseHistory:
    """Signal and noise of every measured step, and their exponential averages.

    Attributes:
        decay: part of an average that a measurement keeps.
        steps: step of each measurement.
        signals: estimates of |G|^2, over all layers.
        noises: estimates of tr(Sigma), over all layers.
        layer_signals: averages of |G|^2 by layer, not corrected for their start, [P].
        layer_noises: the same of tr(Sigma), [P].
        skipped: measurements left out.
    """

    decay: float
    steps: list[int] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)
    noises: list[float] = field(default_factory=list)
    layer_signals: _Array = field(default_factory=lambda: np.zeros(0))
    layer_noises: _Array = field(default_factory=lambda: np.zeros(0))
    skipped: int = 0

    def add(self, step: int, signals: _Array, noises: _Array) -> None:
        """Take in a measurement by layer; one that is not finite is counted and left out."""
        if not (np.isfinite(signals).all() and np.isfinite(noises).all()):
            self.skipped += 1
            return
        if not len(self.layer_signals):
            self.layer_signals, self.layer_noises = np.zeros((2, len(signals)))
        self.layer_signals = self.decay * self.layer_signals + (1 - self.decay) * signals
        self.layer_noises = self.decay * self.layer_noises + (1 - self.decay) * noises
        self.steps.append(step)
        self.signals.append(float(signals.sum()))
        self.noises.append(float(noises.sum()))

    def estimate(self) -> NoiseEstimate:
        """Divide the averages, and take the interval from blocks of measurements left out.

        Averages come before the ratio: a mean of ratios is biased, and a single signal may be
        negative. The common start of both averages cancels.
        """
        count = len(self.steps)
        weights = self.decay ** np.arange(count - 1, -1, -1.0)
        signal, noise = float(weights @ self.signals), float(weights @ self.noises)
        if not count:
            return NoiseEstimate(math.nan, math.nan, math.nan, False, 0, self.skipped)
        left_out = self._left_out(weights)
        blocks = len(left_out)
        if signal <= 0:
            error = _jackknife_error(left_out[:, 0]) if blocks else math.nan
            bound = noise / (2 * error) if error else math.nan
            return NoiseEstimate(bound, bound, math.inf, True, count, self.skipped)
        value = noise / signal
        if not blocks:
            return NoiseEstimate(value, math.nan, math.nan, False, count, self.skipped)
        reach = float(stdtrit(blocks - 1, (1 + _LEVEL) / 2))  # of Student's t
        # The signal is what the ratio is uncertain by: its inverse is nearer to normal, so the
        # interval is made there, and reaches to infinity where the signal may be none.
        error = _jackknife_error(left_out[:, 0] / left_out[:, 1]) if noise > 0 else math.nan
        inverse = signal / noise if noise > 0 else math.nan
        high = inverse - reach * error
        return NoiseEstimate(
            value,
            1 / (inverse + reach * error),
            1 / high if high > 0 else math.inf,
            False,
            count,
            self.skipped,
        )

    def _left_out(self, weights: _Array) -> _Array:
        """Return weighted sums of signal and noise without one block each, [blocks, 2]."""
        # Old measurements hardly count any more: blocks are cut among those that do.
        recent = min(len(weights), math.ceil(3 / (1 - self.decay)))
        blocks = min(_MOST_BLOCKS, recent // 2)
        if blocks < _LEAST_BLOCKS:
            return np.zeros((0, 2))
        pairs = np.array([self.signals, self.noises]) * weights
        parts = np.array_split(pairs[:, -recent:], blocks, axis=1)
        return np.array([pairs.sum(1) - part.sum(1) for part in parts])

    def curve(self) -> list[tuple[int, float]]:
        """Return (step, noise scale so far) pairs; NaN where the signal was not positive."""
        found = []
        signal = noise = 0.0
        for step, one, other in zip(self.steps, self.signals, self.noises, strict=True):
            signal = self.decay * signal + (1 - self.decay) * one
            noise = self.decay * noise + (1 - self.decay) * other
            found.append((step, noise / signal if signal > 0 else math.nan))
        return found


def _jackknife_error(left_out: _Array) -> float:
    """Return the standard error from estimates that each leave one block out."""
    count = len(left_out)
    return float(np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()))
