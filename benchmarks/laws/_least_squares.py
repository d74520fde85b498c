"""Training runs of known critical batch: one-pass SGD on least squares, computed exactly.

Inputs are Gaussian with eigenvalues i^-a, the target's power in direction i is i^-b, and labels
carry noise. The expected excess risk of the averaged iterate follows from second moments, which
obey a linear recursion per eigenvalue; nothing is sampled.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.jit import njit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.spectrum import Spectrum

__all__ = ["LeastSquares", "StepsTable", "averaged_risk"]

_MODES = 1_000_000
_STABLE = 2.0
"""Rate times curvature at which gradient descent on a quadratic turns unstable."""
_RATES_PER_OCTAVE = 2
_OCTAVES = 10
_SAMPLES_PER_OCTAVE = 60
_SAFE = 0.98
_BLOWN_UP = 1e6
"""A run whose risk has grown this many times over its start has diverged."""


@dataclass(frozen=True, slots=True)
class StepsTable:
    """Fewest steps to targets, learning rate tuned for each batch and target.

    Attributes:
        examples: D of each target, which is the loss that the smallest batch reaches after so many
            examples, [T].
        targets: excess risks, [T].
        batches: [K], rising.
        steps: fewest steps to each target with each batch, [T, K]; infinite where the cap came
            first.
        caps: most steps allowed, [T, K].
    """

    examples: Array
    targets: Array
    batches: Array
    steps: Array
    caps: Array

    def critical_batches(self, overhead: float = 0.2) -> Array:
        """Read the critical batches off the table, without a law of steps.

        Between batches the excess is taken as linear in both logs.

        Args:
            overhead: allowed excess of examples over the smallest batch, positive.

        Returns:
            Per target the largest batch within the allowance, [T]; infinite when even the largest
            batch is.
        """
        excess = (
            np.log(self.steps * self.batches)
            - np.log(self.steps[:, :1] * self.batches[0])
            - math.log1p(overhead)
        )
        found = []
        for row in excess:
            beyond = np.flatnonzero(row > 0)
            if not len(beyond):
                found.append(math.inf)
                continue
            last = int(beyond[0])
            share = -row[last - 1] / (row[last] - row[last - 1])
            found.append(
                float(
                    self.batches[last - 1] * (self.batches[last] / self.batches[last - 1]) ** share
                )
            )
        return np.array(found)


@dataclass(frozen=True)
class LeastSquares:
    """The problem.

    Attributes:
        spectrum_exponent: a, above 1: eigenvalue i is i^-a.
        source_exponent: b, above 1: eigenvalue times squared target weight i is i^-b.
        noise_variance: variance of the label noise, positive.
    """

    spectrum_exponent: float
    source_exponent: float
    noise_variance: float = 1.0

    def __post_init__(self) -> None:
        """Refuse sums that do not converge."""
        if not (
            self.spectrum_exponent > 1 and self.source_exponent > 1 and self.noise_variance > 0
        ):
            raise FitError(
                f"least squares with a {self.spectrum_exponent:g}, b {self.source_exponent:g}, "
                f"noise {self.noise_variance:g}: "
                "exponents must exceed 1 and the noise be positive"
            )

    @property
    def critical_exponent(self) -> float:
        """Exponent c of the critical batch, which grows like examples^c.

        It is max {0, 1 - a / min(b, 2 a + 1)}.

        Source: Zhang et al. 2024 (arXiv 2410.21676), theory of mini-batch SGD on power-law least
        squares.
        """
        a, b = self.spectrum_exponent, self.source_exponent
        return max(0.0, 1 - a / min(b, 2 * a + 1))

    @cached_property
    def spectrum(self) -> Spectrum:
        """A million directions, those far down in bins."""
        return Spectrum.power_law(
            source=self.source_exponent, capacity=self.spectrum_exponent, modes=_MODES
        )

    def excess_risk(self, batch: float, learning_rate: float, steps: ArrayLike) -> Array:
        """Compute the expected excess risk of the average of all iterates.

        Args:
            batch: examples per step, at least 1; need not be whole.
            learning_rate: constant, positive.
            steps: rising positive whole numbers, [n].

        Returns:
            Excess risks, [n]; infinite once the run has diverged.

        Raises:
            FitError: a batch below 1, a learning rate that is not positive, or steps that do not
                rise.
        """
        at = np.atleast_1d(np.asarray(steps, dtype=np.int64))
        if not (
            batch >= 1 and learning_rate > 0 and len(at) and at[0] > 0 and (np.diff(at) > 0).all()
        ):
            raise FitError(
                f"batch {batch:g} must be at least 1, learning rate {learning_rate:g} positive, "
                f"steps positive and rising"
            )
        own = self.spectrum
        risk = np.empty(len(at))
        start = own.power / own.variance
        averaged_risk(
            own.variance,
            own.count,
            start,
            self.noise_variance,
            float(batch),
            float(learning_rate),
            at,
            risk,
        )
        return risk

    def best_risk(self, batch: float, steps: NDArray[np.int64]) -> Array:
        """Return the least excess risk over constant learning rates at each of `steps`, [n].

        Args:
            batch: examples per step, at least 1.
            steps: rising positive whole numbers, [n].

        Returns:
            The least risk over rates from just below divergence to ten octaves lower, [n].
        """
        top = self.spectrum.variance[0]
        stable = _SAFE * _STABLE / (top + (top + self.spectrum.trace) / batch)
        rates = stable * 2.0 ** -(np.arange(_OCTAVES * _RATES_PER_OCTAVE) / _RATES_PER_OCTAVE)
        return np.min([self.excess_risk(batch, float(rate), steps) for rate in rates], axis=0)

    def steps_table(
        self, examples: ArrayLike, batches: ArrayLike, *, cap_factor: float = 3.0
    ) -> StepsTable:
        """Run the sweep.

        The smallest batch sets the targets, the others are stopped at `cap_factor` times linear
        scaling.

        Args:
            examples: D of the targets, rising, each a multiple of the smallest batch, [T].
            batches: rising, at least 1, [K].
            cap_factor: steps allowed over those of the smallest batch divided by the ratio of
                batches, above 1.

        Returns:
            Fewest steps by target and batch.

        Raises:
            FitError: fewer than two batches, or numbers that do not rise.
        """
        size = np.asarray(examples, dtype=np.float64)
        sweep = np.asarray(batches, dtype=np.float64)
        if (
            len(sweep) < 2
            or not (np.diff(sweep) > 0).all()
            or not (np.diff(size) > 0).all()
            or not size[0] > sweep[0]
        ):
            raise FitError(
                "a sweep needs at least two rising batches and rising numbers of examples above "
                "the smallest batch"
            )
        caps = np.maximum(cap_factor * size[:, None] / sweep, 1.0)
        curves = [
            self._curve(batch, math.ceil(caps[-1, column]) + 1)
            for column, batch in enumerate(sweep)
        ]
        targets = np.exp(
            np.interp(np.log(size / sweep[0]), np.log(curves[0][0]), np.log(curves[0][1]))
        )
        steps = np.array([[_first_below(*curve, target) for curve in curves] for target in targets])
        return StepsTable(size, targets, sweep, np.where(steps >= caps, np.inf, steps), caps)

    def _curve(self, batch: float, last: int) -> tuple[Array, Array]:
        """Return steps, evenly in their log, and the least risk up to each."""
        count = _SAMPLES_PER_OCTAVE * max(1, int(math.log2(last)))
        steps = np.unique(np.round(np.geomspace(1, last, count)).astype(np.int64))
        return steps.astype(np.float64), np.minimum.accumulate(self.best_risk(batch, steps))


def _first_below(steps: Array, risk: Array, target: float) -> float:
    """Interpolate in both logs the step that reaches the target; infinite when none does."""
    reached = np.flatnonzero(risk <= target)
    if not len(reached):
        return math.inf
    row = int(reached[0])
    if row == 0:
        return float(steps[0])
    share = math.log(risk[row - 1] / target) / math.log(risk[row - 1] / risk[row])
    return float(steps[row - 1] * (steps[row] / steps[row - 1]) ** share)


@njit()
def averaged_risk(values, counts, squares, noise_variance, batch, learning_rate, at_steps, risk):
    """Fill `risk` [n] with the excess risk of the average of all iterates at steps `at_steps` [n].

    The steps rise. Per eigenvalue (`values`, `counts` of them [G]) three moments advance: of the
    error, of error times averaged error, and of the averaged error, all starting at `squares` [G].
    Risks of a diverging run are infinite.
    """
    size = len(values)
    error, cross, averaged = squares.copy(), squares.copy(), squares.copy()
    start = 0.0
    for index in range(size):
        start += counts[index] * values[index] * squares[index]
    row = 0
    for step in range(1, at_steps[-1] + 1):
        # The gradient noise of a step grows with the risk before it, so the eigenvalues are coupled
        # by this one sum and by nothing else.
        last = 0.0
        for index in range(size):
            last += counts[index] * values[index] * error[index]
        if not last < _BLOWN_UP * start:
            risk[row:] = np.inf
            return
        keep = step / (step + 1.0)
        take = 1.0 - keep
        scale = learning_rate * learning_rate / batch
        total = 0.0
        for index in range(size):
            value = values[index]
            decay = 1.0 - learning_rate * value
            moment = decay * decay * error[index] + scale * value * (
                value * error[index] + last + noise_variance
            )
            mixed = keep * decay * cross[index] + take * moment
            averaged[index] = (
                keep * keep * averaged[index]
                + 2.0 * keep * take * decay * cross[index]
                + take * take * moment
            )
            error[index] = moment
            cross[index] = mixed
            total += counts[index] * value * averaged[index]
        if step == at_steps[row]:
            risk[row] = total
            row += 1
