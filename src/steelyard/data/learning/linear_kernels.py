"""The loop of linear models: one step for each row, with rates of their own for all weights."""

from typing import Any

import numpy as np

from steelyard.jit import njit

__all__ = ["HINGE", "LOGISTIC", "SOFTMAX", "SQUARED", "descend"]

SQUARED, LOGISTIC, SOFTMAX, HINGE = range(4)


@njit(error_model="numpy")
def descend(
    features: np.ndarray,
    targets: np.ndarray,
    order: np.ndarray,
    loss: Any,
    rate: Any,
    l2: Any,
    weights: np.ndarray,
    squares: np.ndarray,
    means: np.ndarray,
    steps: Any,
) -> Any:
    """Take a step for each of some rows.

    Args:
        features: float32 [N, D].
        targets: numbers, or numbers of classes [N].
        order: rows in the order of the steps.
        loss: `SQUARED`, `LOGISTIC`, `SOFTMAX` or `HINGE`.
        rate: factor of each step.
        l2: weight of half the squared weights in the loss of a row; the constant has none.
        weights: the last of each line is the constant [K, D + 1]; moved.
        squares: sums of squared derivatives [K, D + 1]; added to.
        means: mean of the weights over all steps [K, D + 1]; moved.
        steps: steps that were taken before.

    Returns:
        Steps that were taken in all.

    Source: Duchi, Hazan and Singer 2011 (AdaGrad), figure 1; Polyak and Juditsky 1992 (averaging).
    """
    outputs, width = weights.shape[0], features.shape[1]
    scores = np.empty(outputs)
    for row in order:
        line, target = features[row], targets[row]
        for k in range(outputs):
            total = weights[k, width]
            for d in range(width):
                total += weights[k, d] * line[d]
            scores[k] = total
        if loss == SOFTMAX:
            most = scores.max()
            scores[:] = np.exp(scores - most)
            scores /= scores.sum()
        steps += 1
        share = 1.0 / steps
        for k in range(outputs):
            if loss == SQUARED:
                slope = scores[k] - target
            elif loss == LOGISTIC:
                slope = 1.0 / (1.0 + np.exp(-scores[k])) - target
            elif loss == SOFTMAX:
                slope = scores[k] - (target == k)
            else:
                # One class against all others; of two classes the second against the first.
                is_own = target == (k if outputs > 1 else 1)
                sign = 1.0 if is_own else -1.0
                slope = -sign if sign * scores[k] < 1.0 else 0.0
            for d in range(width):
                step = slope * line[d] + l2 * weights[k, d]
                squares[k, d] += step * step
                weights[k, d] -= rate * step / np.sqrt(squares[k, d] + 1e-10)
                means[k, d] += share * (weights[k, d] - means[k, d])
            squares[k, width] += slope * slope
            weights[k, width] -= rate * slope / np.sqrt(squares[k, width] + 1e-10)
            means[k, width] += share * (weights[k, width] - means[k, width])
    return steps
