"""Measured steps of an engine, and the step-time model that is fitted to them."""

from dataclasses import dataclass

import numpy as np

from steelyard.cost.step_time import ServeStepTime

__all__ = ["StepSamples"]

_HICCUP = 4.0
"""Most that a single step counts for, as a multiple of its prediction: one that waited for another
program would else move the scale of the whole table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSamples:
    """Measured steps.

    Attributes:
        features: [n, F] features in the order of `steelyard.cost.step_time.FEATURES`.
        round_seconds: [n, rounds] seconds of each step in each round.
    """

    features: np.ndarray
    round_seconds: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Median of each step over the rounds, [n]."""
        return np.median(self.round_seconds, axis=1)

    @property
    def relative_spread(self) -> np.ndarray:
        """(Largest - smallest) / median of each step over the rounds, [n]."""
        return np.ptp(self.round_seconds, axis=1) / self.seconds

    def fit(self) -> ServeStepTime:
        """Fit a step-time model to the medians, then scale it to the mean of all rounds.

        A median leaves out what other work on the machine costs now and then, but a trace of
        thousands of steps pays it on average. A single step counts for at most `_HICCUP` times its
        prediction.
        """
        from steelyard.cost.step_time import ServeStepTime

        shape = ServeStepTime.fit(self.features, self.seconds)
        predicted = shape.predict(self.features)[:, None]
        scale = float(np.minimum(self.round_seconds / predicted, _HICCUP).mean())
        return shape.scaled(scale)
