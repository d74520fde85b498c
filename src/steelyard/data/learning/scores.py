"""How good predictions are, with intervals from rows drawn again."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scored", "auc", "score_classes", "score_numbers"]

_DRAWS, _MOST_ROWS, _TAIL = 100, 200_000, 0.1
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


def auc(targets: Floats, scores: Floats, weights: Floats | None = None) -> float:
    """Return how often a row of class 1 scores above one of class 0; ties count half.

    Args:
        targets: 0 or 1 [N].
        scores: scores [N].
        weights: how often each row counts; once when None.

    Returns:
        0 to 1; NaN where a class has no row.
    """
    weight = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores)[order]
    ones = np.where(targets[order] > 0, weight[order], 0.0)
    zeros = weight[order] - ones
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    one, zero = np.add.reduceat(ones, starts), np.add.reduceat(zeros, starts)
    below = np.cumsum(zero) - zero
    pairs = one.sum() * zero.sum()
    return float((one * (below + zero / 2)).sum() / pairs) if pairs else float("nan")


def score_classes(targets: Floats, shares: Floats, seed: int = 0) -> list[Scored]:
    """Return measures of predicted classes.

    Args:
        targets: numbers of classes [N].
        shares: predicted shares of the classes [N, K].
        seed: seed of the draws.

    Returns:
        AUC (of two classes), log loss and accuracy.
    """
    kept = _drawn_rows(len(targets), seed)
    numbers, shares = targets[kept].astype(int), shares[kept]
    own = np.clip(shares[np.arange(len(numbers)), numbers], 1e-15, 1)
    losses = -np.log(own)
    hits = (shares.argmax(axis=1) == numbers).astype(float)
    prior = np.bincount(numbers, minlength=shares.shape[1]) / len(numbers)
    found = [
        _mean("log loss", losses, float(-np.log(np.maximum(prior[numbers], 1e-15)).mean()), seed),
        _mean("accuracy", hits, float(prior.max()), seed),
    ]
    if shares.shape[1] == 2:
        draws = [auc(numbers, shares[:, 1], weight) for weight in _weights(len(numbers), seed)]
        low, high = np.nanquantile(draws, [_TAIL, 1 - _TAIL]).tolist()
        value = auc(numbers, shares[:, 1])
        found.insert(0, Scored(name="AUC", value=value, low=low, high=high, baseline=0.5))
    return found


def score_numbers(targets: Floats, predicted: Floats, seed: int = 0) -> list[Scored]:
    """Return measures of predicted numbers.

    Args:
        targets: true values [N].
        predicted: predictions [N].
        seed: seed of the draws.

    Returns:
        Root mean square error, mean absolute error, and share of the variance explained.
    """
    kept = _drawn_rows(len(targets), seed)
    truth, said = targets[kept].astype(np.float64), predicted[kept].astype(np.float64)
    squares = (truth - said) ** 2
    spread = (truth - truth.mean()) ** 2
    error = _mean("squared error", squares, float(spread.mean()), seed)
    middle = float(np.abs(truth - np.median(truth)).mean())
    total = max(float(spread.mean()), 1e-300)
    root = [float(np.sqrt(part)) for part in (error.value, error.low, error.high, error.baseline)]
    return [
        Scored(name="RMSE", value=root[0], low=root[1], high=root[2], baseline=root[3]),
        _mean("MAE", np.abs(truth - said), middle, seed),
        Scored(
            name="R2",
            value=1 - error.value / total,
            low=1 - error.high / total,
            high=1 - error.low / total,
            baseline=0.0,
        ),
    ]


def _drawn_rows(count: int, seed: int) -> NDArray[np.int64]:
    """Return the rows that are measured."""
    if count <= _MOST_ROWS:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, _MOST_ROWS, replace=False))


def _weights(count: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often rows are drawn, draw by draw."""
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        yield rng.poisson(1.0, count).astype(np.float64)


def _mean(name: str, values: Floats, baseline: float, seed: int) -> Scored:
    """Return a mean with its interval."""
    draws = [float(np.average(values, weights=w)) for w in _weights(len(values), seed)]
    low, high = np.quantile(draws, [_TAIL, 1 - _TAIL])
    return Scored(
        name=name, value=float(values.mean()), low=float(low), high=float(high), baseline=baseline
    )
