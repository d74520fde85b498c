"""Losses of scores, and the scores of the best constant prediction."""

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.targets import TargetColumn
from steelyard.errors import DataError

__all__ = ["mean_loss", "scores_of_shares", "start_scores"]

_BLOCK = 1 << 18
_LEAST_SHARE = 1e-6


def mean_loss(
    target: TargetColumn, targets: NDArray[np.floating], scores: NDArray[np.floating]
) -> float:
    """Return the mean loss of scores.

    Args:
        target: what is predicted.
        targets: true numbers, or numbers of classes [N].
        scores: [K, N].

    Returns:
        Squared error of numbers, log loss of classes; NaN without rows.
    """
    if not len(targets):
        return float("nan")
    if target.task == "regress":
        return float(((targets - scores[0]) ** 2).mean())
    if target.width == 1:
        return float((np.logaddexp(0, scores[0]) - targets * scores[0]).mean())
    top = scores.max(axis=0)
    total = np.log(np.exp(scores - top).sum(axis=0)) + top
    own = scores[targets.astype(int), np.arange(len(targets))]
    return float((total - own).mean())


def start_scores(
    targets: NDArray[np.floating], is_held: NDArray[np.bool_], target: TargetColumn
) -> NDArray[np.float32]:
    """Return the scores of the best constant prediction of rows that are not kept aside.

    Args:
        targets: [N].
        is_held: [N].
        target: what is predicted.

    Returns:
        Scores [K].

    Raises:
        DataError: no rows are left, or a class has none among them.
    """
    counts, total, rows = np.zeros(max(len(target.classes), 1), np.int64), 0.0, 0
    for first in range(0, len(targets), _BLOCK):
        part = slice(first, first + _BLOCK)
        values = targets[part][~is_held[part]]
        if target.task == "classify":
            counts += np.bincount(values.astype(int), minlength=len(counts))
        total, rows = total + float(values.sum(dtype=np.float64)), rows + len(values)
    if not rows:
        raise DataError("no rows are left to learn from", hint="keep fewer rows aside")
    if target.task == "regress":
        return np.array([total / rows], np.float32)
    if (counts == 0).any():
        name = target.classes[int(counts.argmin())]
        raise DataError(
            f"no row of class {name!r} is left to learn from", hint="keep fewer rows aside"
        )
    logs = np.log(counts / counts.sum())
    return (logs[1:] - logs[:1] if target.width == 1 else logs).astype(np.float32)


def scores_of_shares(target: TargetColumn, shares: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the scores of predicted shares of classes, or of predicted numbers.

    Args:
        target: what is predicted.
        shares: shares of the classes, or numbers [N, K].

    Returns:
        Scores [K, N], or [1, N] for numbers and for two classes.
    """
    if target.task == "regress":
        return shares.T.astype(np.float32)
    logs = np.log(np.maximum(shares, _LEAST_SHARE)).T
    return (logs[1:] - logs[:1] if target.width == 1 else logs).astype(np.float32)
