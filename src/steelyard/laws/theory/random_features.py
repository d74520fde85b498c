"""A student of random features on a power-law task, whose loss is known exactly."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, SteelyardWarning, require
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.mean_field.answers import (
    ComputeOptimal,
    LossCurve,
    ResourceBottleneck,
    TheoryExponents,
)
from steelyard.laws.theory.mean_field.losses import (
    Dynamics,
    learning_rate_limit,
    mean_field,
    ridge_losses,
)
from steelyard.laws.theory.simulation import SimulatedCurves, simulate_run
from steelyard.laws.theory.spectrum import Spectrum

__all__ = ["RandomFeatureModel"]

_TRUNCATION_WARNING = 0.1
_LARGEST_MOMENTUM = 0.95
"""Oscillations of more die away over thousands of steps, and no fitted contour leads through."""
_NEARBY = 0.1
"""Relative change of a resource over which a slope is taken."""


@dataclass(frozen=True, kw_only=True)
class RandomFeatureModel:
    """Gradient descent of a random-feature student on a linear task with a known spectrum.

    The target is w . psi of M independent features psi; the student sees `width` random mixtures of
    them and `samples` examples. Its test and train loss are known exactly in the limit of large
    sizes (errors of a few percent at sizes of tens). It explains the exponents of linear (lazy)
    training; networks that learn features do better than its exponents.

    Attributes:
        a: source exponent, power of the target along mode k ~ k^-a, above 1.
        b: capacity exponent, variance of mode k ~ k^-b, positive.
        modes: M; more cost little in theory, and a simulation's time in proportion.
        learning_rate: eta, in units of 1 / variance; mode 1 has variance 1 unless a spectrum is
            given.
        momentum: heavy-ball factor, 0 to 0.95.
        label_noise: variance of the noise on the training labels.
        spectrum: spectrum of a task that is no pure power law; None for variance k^-b and power
            k^-a.

    Example:
        >>> model = RandomFeatureModel(a=2.0, b=1.5, modes=300)
        >>> round(float(model.loss(10, width=40).test[0]), 4)
        0.2734

    Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), sections 2 and 3.
    """

    a: float = 2.0
    b: float = 1.5
    modes: int = 1000
    learning_rate: float = 0.4
    momentum: float = 0.0
    label_noise: float = 0.0
    spectrum: Spectrum = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        """Make the spectrum and refuse dials outside their ranges."""
        if self.spectrum is None:
            object.__setattr__(self, "spectrum", Spectrum.power_law(self.a, self.b, self.modes))
        require(
            self,
            momentum=(
                (0 <= self.momentum <= _LARGEST_MOMENTUM),
                f"between 0 and {_LARGEST_MOMENTUM}",
            ),
            label_noise=(0 <= self.label_noise < np.inf, "at least 0 and finite"),
            learning_rate=(0 < self.learning_rate < np.inf, "positive and finite"),
        )

    def loss(
        self,
        steps: ArrayLike,
        width: float = np.inf,
        samples: float = np.inf,
        batch: float | None = None,
    ) -> LossCurve:
        """Return test and train loss after given numbers of steps.

        Args:
            steps: whole numbers, not negative, [t] or one.
            width: features of the student N, positive; inf for all features.
            samples: different examples P, positive; inf for the whole population.
            batch: examples per step, drawn anew in every step from the samples; None for all of
                them.

        Returns:
            The losses, [t].

        Raises:
            ConfigError: a size is not positive, a step negative, the batch larger than the samples,
                or the learning rate at or above the limit where gradient descent diverges, which is
                named.

        Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), section 3.
        """
        dynamics = self._stable(width, samples)
        when = _steps(steps)
        if batch is None:
            test, train = mean_field(dynamics, when)[:2]
        else:
            from steelyard.laws.theory.mean_field.minibatch import minibatch_losses

            _check_batch(batch, samples)
            test, train = minibatch_losses(dynamics, when, batch)
        missing = self.spectrum.unlearned_share(test)
        if (missing > _TRUNCATION_WARNING).any():
            warnings.warn(
                f"{self.spectrum.modes:g} modes are few for these steps: up to "
                f"{missing.max():.0%} of the loss is missing; take more modes",
                SteelyardWarning,
                stacklevel=2,
            )
        return LossCurve(when, test, train, missing)

    def ensemble_loss(
        self,
        steps: ArrayLike,
        students: int,
        width: float = np.inf,
        samples: float = np.inf,
        shared: Literal["samples", "features", "nothing"] = "samples",
    ) -> Array:
        """Return the test loss of the mean prediction of several students.

        Args:
            steps: whole numbers, not negative, [t] or one.
            students: how many, at least 1.
            width: features of each student.
            samples: examples of each student.
            shared: what the students have in common: "samples" for an ensemble on one training set,
                "features" for bagging, "nothing" for both of their own.

        Returns:
            Test loss, [t]: the part students share plus the rest divided by their number.

        Raises:
            ConfigError: as for `loss`, or fewer than one student.
        """
        if students < 1:
            raise ConfigError(f"{students} students make no ensemble, at least 1 is needed")
        losses = mean_field(self._stable(width, samples), _steps(steps))
        common = {
            "samples": losses.shared_samples,
            "features": losses.shared_features,
            "nothing": losses.bias,
        }[shared]
        return common + (losses.test - common) / students

    def ridge_loss(
        self, ridge: ArrayLike, width: float = np.inf, samples: float = np.inf
    ) -> tuple[Array, Array]:
        """Return test and train loss of ridge regression, where steps with weight decay end.

        Args:
            ridge: positive penalties in units of variance, the weights minimizing mean squared
                error + ridge |weights|^2, [r].
            width: features of the student.
            samples: examples.

        Returns:
            Test loss without label noise and train loss with it, [r] each.

        Raises:
            ConfigError: a penalty or a size is not positive.
        """
        penalty = np.atleast_1d(np.asarray(ridge, dtype=np.float64))
        if not (np.isfinite(penalty) & (penalty > 0)).all():
            raise ConfigError(
                f"ridge must be positive and finite, given {ridge}",
                hint="1e-9 of the largest variance is close to none",
            )
        return ridge_losses(self._dynamics(width, samples), penalty)

    def simulate(
        self,
        steps: int,
        width: float = np.inf,
        samples: float = np.inf,
        batch: int | None = None,
        *,
        generators: Sequence[np.random.Generator],
    ) -> SimulatedCurves:
        """Train students for real, the truth that `loss` is held to.

        Args:
            steps: number of steps T.
            width: whole number of features, or inf.
            samples: whole number of examples, or inf.
            batch: examples per step, or None for all.
            generators: one per run; each draws the features, samples and batches of its run.

        Returns:
            Losses after 0 .. T steps of every run.

        Raises:
            ConfigError: as for `loss`, no generators, or too many modes for memory.
        """
        dynamics = self._stable(width, samples)
        if batch is not None:
            _check_batch(batch, samples)
        last = int(_steps(steps).max())
        if not generators:
            raise ConfigError(
                "a simulation needs one generator per run, none is given",
                hint="numpy.random.default_rng(seed) makes one",
            )
        test, train = (
            np.array(column)
            for column in zip(
                *[simulate_run(dynamics, last, batch, generator) for generator in generators],
                strict=True,
            )
        )
        return SimulatedCurves(np.arange(last + 1), test, train)

    def exponents(self) -> TheoryExponents:
        """Return the exponents that theory predicts from a and b.

        The late exponent of the samples is min(a - 1, 2 b). That of the width is min(a - 1, b): the
        paper gives 2 b there too, but its own equations and drawn projections fall as N^-b once a -
        1 is above b. Below, both are a - 1.

        Returns:
            All exponents, positive.

        Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), section 4; the width's from
            the limit of endless steps of its section 3, loss = sum of lambda w^2 / (1 + lambda x)
            with h(x) = N.
        """
        steps = (self.a - 1) / self.b
        width = min(self.a - 1, self.b)
        return TheoryExponents(
            steps=steps,
            width=width,
            samples=min(self.a - 1, 2 * self.b),
            early=1.0,
            optimal_width=steps / (steps + width),
            optimal_steps=width / (steps + width),
            compute=steps * width / (steps + width),
        )

    def compute_optimal(self, budget: float, samples: float = np.inf) -> ComputeOptimal:
        """Split a budget of width times steps so that the test loss is least.

        Args:
            budget: C = width times steps, at least 4.
            samples: examples.

        Returns:
            The best width and steps.

        Raises:
            ConfigError: the budget is below 4 or not finite, or as for `loss`.

        Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), section 4.
        """
        if not 4 <= budget < 1e18:
            raise ConfigError(
                f"a budget of {budget:g} width x steps cannot be split, allowed are 4 to 1e18"
            )
        low, high = 0.0, float(np.log(budget))
        # The loss along a budget has one valley, so a grid that closes in on its least point finds
        # it; gradients would need losses at steps that are not whole.
        for _ in range(6):
            steps = np.unique(np.round(np.exp(np.linspace(low, high, 17))).astype(np.int64))
            losses = np.array([self._loss_at(step, budget / step, samples) for step in steps])
            best = int(losses.argmin())
            low, high = np.log(steps[[max(best - 1, 0), min(best + 1, len(steps) - 1)]])
            if len(steps) <= 3 or high - low < 0.02:
                break
        return ComputeOptimal(
            budget=float(budget),
            width=float(budget) / int(steps[best]),
            steps=int(steps[best]),
            loss=float(losses[best]),
        )

    def bottleneck(
        self, steps: int, width: float = np.inf, samples: float = np.inf
    ) -> ResourceBottleneck:
        """Say which resource binds.

        Args:
            steps: number of steps, at least 2.
            width: features of the student.
            samples: examples.

        Returns:
            Slopes of the log test loss by the log of each resource, from 10 % less to 10 % more.

        Raises:
            ConfigError: as for `loss`, or fewer than 2 steps.
        """
        if steps < 2:
            raise ConfigError(f"the slope in steps needs at least 2 steps, given {steps}")
        apart = max(int(_NEARBY * steps), 1)
        here: dict[str, Any] = {"steps": steps, "width": width, "samples": samples}
        nearby: dict[str, tuple[float, float]] = {
            "steps": (steps - apart, steps + apart),
            "width": ((1 - _NEARBY) * width, (1 + _NEARBY) * width),
            "samples": ((1 - _NEARBY) * samples, (1 + _NEARBY) * samples),
        }
        slopes = {
            name: _slope([self._loss_at(**{**here, name: size}) for size in sizes], sizes)
            if np.isfinite(here[name])
            else 0.0
            for name, sizes in nearby.items()
        }
        return ResourceBottleneck(**slopes, binding=min(slopes, key=lambda name: slopes[name]))  # pyright: ignore[reportArgumentType]

    def _loss_at(self, steps: int, width: float, samples: float) -> float:
        """Return one test loss; inf where gradient descent diverges."""
        dynamics = self._dynamics(width, samples)
        if self.learning_rate >= learning_rate_limit(dynamics):
            return np.inf
        return float(mean_field(dynamics, np.array([steps])).test[0])

    def _dynamics(self, width: float, samples: float) -> Dynamics:
        """Check sizes and put the student together."""
        for name, size in (("width", width), ("samples", samples)):
            if not size > 0:
                raise ConfigError(
                    f"{name} {size:g} must be positive", hint="inf means no limit by this resource"
                )
        return Dynamics(
            spectrum=self.spectrum,
            width=float(width),
            samples=float(samples),
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            label_noise=self.label_noise,
        )

    def _stable(self, width: float, samples: float) -> Dynamics:
        """Put the student together, and refuse a learning rate that diverges."""
        dynamics = self._dynamics(width, samples)
        limit = learning_rate_limit(dynamics)
        if self.learning_rate >= limit:
            raise ConfigError(
                f"learning rate {self.learning_rate:g} diverges at width {dynamics.width:g} and "
                f"{dynamics.samples:g} samples; "
                f"the limit is {limit:.4g}",
                hint=f"take at most {0.9 * limit:.3g}; narrow students and few samples sharpen "
                f"the largest curvature",
            )
        return dynamics


def _slope(losses: list[float], sizes: tuple[float, float]) -> float:
    """Return d ln loss / d ln resource from losses at two sizes."""
    return float(np.log(losses[1] / losses[0]) / np.log(sizes[1] / sizes[0]))


def _steps(steps: ArrayLike) -> NDArray[np.int64]:
    """Turn steps into a column of whole numbers."""
    column = np.atleast_1d(np.asarray(steps, dtype=np.float64))
    if (
        column.ndim != 1
        or not len(column)
        or not (np.isfinite(column) & (column >= 0) & (column == np.round(column))).all()
    ):
        raise ConfigError(f"steps must be whole numbers, not negative, in one row; given {steps}")
    return column.astype(np.int64)


def _check_batch(batch: float, samples: float) -> None:
    """Refuse batches that cannot be drawn."""
    if not 1 <= batch <= samples or not np.isfinite(batch):
        raise ConfigError(
            f"a batch of {batch:g} cannot be drawn from {samples:g} samples; allowed are 1 to the "
            f"number of samples"
        )
