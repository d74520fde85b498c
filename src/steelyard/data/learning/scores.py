"""How good predictions are, with the intervals that a sample of rows leaves."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scored", "auc", "score_classes", "score_numbers"]

_REACH = 1.2816
"""Standard errors to each side of 80 % of a normal distribution."""
Floats = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One measure of predictions.

    Attributes:
        name: name of the measure.
        value: its value.
        low: lower end of the 80 % interval.
        high: upper end.
        baseline: the same of a constant prediction.
    """

    name: str
    value: float
    low: float
    high: float
    baseline: float


def auc(targets: Floats, scores: Floats) -> float:
    """Return how often a row of class 1 scores above one of class 0; ties count half.

    Args:
        targets: 0 or 1 [N].
        scores: scores [N].

    Returns:
        0 to 1; NaN where a class has no row.
    """
    return _area(targets, scores)[0]


def _area(targets: Floats, scores: Floats) -> tuple[float, float]:
    """Return the AUC and its standard error.

    Source: DeLong, DeLong and Clarke-Pearson 1988, structural components.
    """
    values, places = np.unique(scores, return_inverse=True)
    is_one = targets > 0
    ones = np.bincount(places[is_one], minlength=len(values))
    zeros = np.bincount(places[~is_one], minlength=len(values))
    if not ones.any() or not zeros.any():
        return float("nan"), float("nan")
    # For each row of one class, the share of the other that it stands on the right side of.
    below = (np.cumsum(zeros) - zeros / 2) / zeros.sum()
    above = 1 - (np.cumsum(ones) - ones / 2) / ones.sum()
    of_ones, of_zeros = below[places[is_one]], above[places[~is_one]]
    variance = of_ones.var() / len(of_ones) + of_zeros.var() / len(of_zeros)
    return float(of_ones.mean()), float(np.sqrt(variance))


def score_classes(targets: Floats, shares: Floats) -> list[Scored]:
    """Return measures of predicted classes.

    Args:
        targets: numbers of classes [N].
        shares: predicted shares of the classes [N, K].

    Returns:
        AUC (of two classes), log loss and accuracy.
    """
    numbers = targets.astype(int)
    own = np.clip(shares[np.arange(len(numbers)), numbers], 1e-15, 1)
    losses = -np.log(own)
    hits = (shares.argmax(axis=1) == numbers).astype(float)
    prior = np.bincount(numbers, minlength=shares.shape[1]) / len(numbers)
    found = [
        _mean("log loss", losses, float(-np.log(np.maximum(prior[numbers], 1e-15)).mean())),
        _mean("accuracy", hits, float(prior.max())),
    ]
    if shares.shape[1] == 2:
        value, error = _area(numbers, shares[:, 1])
        low, high = max(value - _REACH * error, 0.0), min(value + _REACH * error, 1.0)
        found.insert(0, Scored(name="AUC", value=value, low=low, high=high, baseline=0.5))
    return found


def score_numbers(targets: Floats, predicted: Floats) -> list[Scored]:
    """Return measures of predicted numbers.

    Args:
        targets: true values [N].
        predicted: predictions [N].

    Returns:
        Root mean square error, mean absolute error, and share of the variance explained.
    """
    truth, said = targets.astype(np.float64), predicted.astype(np.float64)
    squares = (truth - said) ** 2
    spread = (truth - truth.mean()) ** 2
    error = _mean("squared error", squares, float(spread.mean()))
    middle = float(np.abs(truth - np.median(truth)).mean())
    total = max(float(spread.mean()), 1e-300)
    parts = (error.value, max(error.low, 0.0), error.high, error.baseline)
    root = [float(np.sqrt(part)) for part in parts]
    return [
        Scored(name="RMSE", value=root[0], low=root[1], high=root[2], baseline=root[3]),
        _mean("MAE", np.abs(truth - said), middle),
        Scored(
            name="R2",
            value=1 - error.value / total,
            low=1 - error.high / total,
            high=1 - error.low / total,
            baseline=0.0,
        ),
    ]


def _mean(name: str, values: Floats, baseline: float) -> Scored:
    """Return a mean with its interval."""
    value = float(values.mean())
    reach = _REACH * float(values.std()) / len(values) ** 0.5
    return Scored(name=name, value=value, low=value - reach, high=value + reach, baseline=baseline)
