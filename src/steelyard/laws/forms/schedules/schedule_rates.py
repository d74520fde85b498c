"""Learning rates by step: the input of a law that knows the schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = ["CooldownShape", "LearningRates"]

CooldownShape = Literal["1-sqrt", "linear", "cosine", "1-square", "exponential"]


@dataclass(frozen=True, eq=False, slots=True)
class LearningRates:
    """The learning rate of every step of a run, warm-up included.

    Attributes:
        rates: learning rates of steps 0, 1, ..., T - 1; finite, not negative, at least one
            positive, [T].
    """

    rates: Array

    def __post_init__(self) -> None:
        """Turn the rates into float64 and refuse what no run can have."""
        rates = np.atleast_1d(np.asarray(self.rates, dtype=np.float64))
        bad = (
            np.flatnonzero(~(np.isfinite(rates) & (rates >= 0))) if rates.ndim == 1 else np.zeros(0)
        )
        if rates.ndim != 1 or len(rates) < 2 or len(bad) or not rates.max() > 0:
            where = f"; step {bad[0]} has {rates[bad[0]]:g}" if len(bad) else ""
            raise FitError(
                f"learning rates must be [T] with T >= 2, finite, not negative and not all zero, "
                f"given shape {rates.shape}{where}",
                hint="give the rate of every step from step 0 on, warm-up included",
            )
        object.__setattr__(self, "rates", rates)

    @property
    def steps(self) -> int:
        """Length T of the run."""
        return len(self.rates)

    @property
    def peak(self) -> float:
        """Largest rate."""
        return float(self.rates.max())

    @classmethod
    def of(cls, multiplier: Callable[[int], float], steps: int, peak: float) -> "LearningRates":
        """Sample a schedule given as a function of the step, such as those of `steelyard.train`.

        Args:
            multiplier: multiplier of the peak rate, by step.
            steps: length of the run, at least 2.
            peak: rate where the multiplier is 1, positive.

        Returns:
            The rates.
        """
        return cls(np.array([peak * multiplier(step) for step in range(steps)]))

    @classmethod
    def constant(cls, steps: int, peak: float, warmup: int = 0) -> "LearningRates":
        """Rise linearly from 0 over `warmup` steps, then stay.

        Args:
            steps: length of the run.
            peak: the constant rate, positive.
            warmup: steps of the rise, fewer than `steps`.

        Returns:
            The rates.

        Raises:
            FitError: the warm-up does not fit into the run.
        """
        return cls(_warmed(np.full(_body(steps, warmup), float(peak)), peak, warmup))

    @classmethod
    def cosine(
        cls, steps: int, peak: float, warmup: int = 0, final: float = 0.1
    ) -> "LearningRates":
        """Rise linearly, then fall along half a cosine.

        Args:
            steps: length of the run.
            peak: rate after the warm-up, positive.
            warmup: steps of the rise.
            final: rate at the end as a fraction of the peak, 0..1.

        Returns:
            The rates.

        Raises:
            FitError: the warm-up does not fit into the run.
        """
        body = _body(steps, warmup)
        fall = final + (1 - final) * 0.5 * (1 + np.cos(np.pi * np.arange(body) / body))
        return cls(_warmed(peak * fall, peak, warmup))

    @classmethod
    def trapezoid(
        cls,
        steps: int,
        peak: float,
        warmup: int = 0,
        cooldown: float = 0.2,
        shape: CooldownShape = "1-sqrt",
        final: float = 0.0,
    ) -> "LearningRates":
        """Rise linearly, stay, and cool down over the last part of the run.

        Args:
            steps: length of the run.
            peak: the constant rate, positive.
            warmup: steps of the rise.
            cooldown: fraction of all steps that cool down, 0..1.
            shape: form of the fall, with x from 0 to 1 over the cooldown: 1 - sqrt(x), 1 - x, (1 +
                cos pi x) / 2, 1 - x^2, or final^x.
            final: rate at the end as a fraction of the peak, 0..1; positive for "exponential".

        Returns:
            The rates.

        Raises:
            FitError: warm-up and cooldown do not fit into the run, or an exponential one is to end
                at 0.

        Source: Haegele et al. 2024 (arXiv 2405.18392), equations 1 and 2 and appendix A.
        """
        # The fraction is of the whole run, as the paper counts it, and the last step is one step
        # short of the final rate: x stays below 1.
        falling = round(cooldown * steps)
        if not 0 <= cooldown <= 1 or falling + warmup > steps:
            raise FitError(
                f"a cooldown of {cooldown:g} of {steps} steps does not fit beside {warmup} "
                f"warm-up steps",
                hint="cooldown is a fraction of the whole run; warm-up and cooldown together are "
                "at most the run",
            )
        if shape == "exponential" and not final > 0:
            raise FitError(
                "an exponential cooldown cannot end at 0", hint="give final, such as 0.1"
            )
        x = np.arange(falling) / max(falling, 1)
        fall = final**x if shape == "exponential" else final + (1 - final) * _shapes(x)[shape]
        body = np.concatenate([np.ones(_body(steps, warmup) - falling), fall])
        return cls(_warmed(peak * body, peak, warmup))

    @classmethod
    def two_stage(
        cls, steps: int, first: float, second: float, switch: int, warmup: int = 0
    ) -> "LearningRates":
        """Rise linearly to one rate and drop to another at a step.

        Args:
            steps: length of the run.
            first: rate before the switch.
            second: rate from the switch on.
            switch: step of the drop, between warm-up and end.
            warmup: steps of the rise.

        Returns:
            The rates.

        Raises:
            FitError: the switch lies outside the run.
        """
        if not warmup < switch < steps:
            raise FitError(
                f"the switch at step {switch} must lie between warm-up ({warmup}) and end ({steps})"
            )
        body = np.where(np.arange(warmup, steps) < switch, float(first), float(second))
        return cls(_warmed(body, first, warmup))

    def until(self, step: int) -> "LearningRates":
        """Cut the run after its first `step` steps."""
        return LearningRates(self.rates[:step])

    def at(self, steps: ArrayLike) -> Array:
        """Return the rates of some steps, [n]."""
        return self.rates[np.asarray(steps, dtype=np.int64)]


def _shapes(x: Array) -> dict[str, Array]:
    """Return the fall from 1 to 0 by name."""
    return {
        "1-sqrt": 1 - np.sqrt(x),
        "linear": 1 - x,
        "cosine": 0.5 * (1 + np.cos(np.pi * x)),
        "1-square": 1 - x**2,
    }


def _body(steps: int, warmup: int) -> int:
    """Count the steps after the warm-up; there must be some."""
    if warmup < 0 or warmup >= steps:
        raise FitError(
            f"a run of {steps} steps cannot hold {warmup} warm-up steps",
            hint="the warm-up is shorter than the run",
        )
    return steps - warmup


def _warmed(body: Array, peak: float, warmup: int) -> Array:
    """Put a linear rise from 0 to the peak before the body."""
    return np.concatenate([np.linspace(0.0, peak, warmup), body])
