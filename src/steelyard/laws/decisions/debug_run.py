"""Tell how far a run lies off the learning curve, and the likely reason."""

import math
from dataclasses import dataclass
from typing import Literal

from steelyard.laws.fitting.points import check_positive
from steelyard.laws.forms.learning_curves.learning_curve import CurveFit

__all__ = ["Diagnosis", "debug_run"]

_OFF = 2.0
_LEVEL = 0.6826894921
"""Probability within one standard deviation of a normal distribution."""

Hint = Literal["on the line", "capacity", "optimization", "label noise", "leak"]

_ADVICE: dict[Hint, str] = {
    "on the line": "nothing to do: the run does what the curve promises",
    "capacity": "the model is smaller than the curve asks for at this number of samples: train a "
    "larger one",
    "optimization": "the model is large enough but does not even fit its training data: tune the "
    "learning rate, look for a bug",
    "label noise": "the training data is fitted but does not carry over: look for wrong labels or "
    "a shift to the validation data",
    "leak": "better than the curve allows: look for validation examples in the training set",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a run looks like beside the curve.

    Attributes:
        z: log error above the curve in standard deviations of one more run; negative for better
            than the curve.
        expected_error: error the curve expects.
        hint: the likely reason.
        advice: what to do about it.
    """

    z: float
    expected_error: float
    hint: Hint
    advice: str


def debug_run(
    curve: CurveFit,
    samples: float,
    error: float,
    *,
    size: float | None = None,
    training_error: float | None = None,
) -> Diagnosis:
    """Compare a run with the learning curve.

    Args:
        curve: learning curve of earlier runs.
        samples: number of samples the run was trained on, within two decades of the curve's.
        error: error on the validation set, positive.
        size: parameters of the run; without them, or without a model-size curve, capacity is not
            questioned.
        training_error: error on the training set; without it a run above the line with enough
            capacity counts as badly optimized.

    Returns:
        The diagnosis; "on the line" within two standard deviations.

    Raises:
        FitError: numbers that are not positive, or samples too far from the curve.

    Source: Hestness et al. 2017 (arXiv 1712.00409), section 6.1 (debugging models by their learning
        curves).
    """
    check_positive("a diverged run needs no curve", samples=samples, error=error)
    said = curve.fit.predict({"samples": float(samples)}, _LEVEL).first
    expected = said.value
    above = math.log(error / expected)
    spread = math.log(said.high / expected) if above > 0 else math.log(expected / said.low)
    z = above / max(spread, 1e-6)
    hint = _reason(curve, z, samples, expected, size, training_error)
    return Diagnosis(z=z, expected_error=expected, hint=hint, advice=_ADVICE[hint])


def _reason(
    curve: CurveFit,
    z: float,
    samples: float,
    expected: float,
    size: float | None,
    training_error: float | None,
) -> Hint:
    """Choose the hint."""
    if abs(z) <= _OFF:
        return "on the line"
    if z < 0:
        return "leak"
    if size is not None and curve.size_fit is not None and size < curve.model_size(samples).low:
        return "capacity"
    return (
        "label noise"
        if training_error is not None and training_error < expected
        else "optimization"
    )
