"""Loops of boosted trees: histograms of gradients, splits, rows that part, scores."""

from typing import Any

import numpy as np

from steelyard.jit import njit

__all__ = [
    "add_leaf_values",
    "best_splits",
    "fill_histograms",
    "logistic_gradients",
    "part_rows",
    "score_rows",
    "softmax_gradients",
    "squared_gradients",
]


@njit()
def fill_histograms(
    codes: np.ndarray,
    rows: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
    first: Any,
    last: Any,
    histograms: np.ndarray,
) -> None:
    """Sum gradients by code, for features first to before last.

    Args:
        codes: uint8 [F, N].
        rows: rows of the node.
        gradients: gradient of each row of the node, float32.
        hessians: hessian of each row of the node, float32.
        first: first feature.
        last: one past the last feature.
        histograms: sums of gradients and hessians, and counts [F, 256, 3]; overwritten.
    """
    sums, width = np.empty(1024), np.uint64(4)
    for feature in range(first, last):
        column = codes[feature]
        sums[:] = 0.0
        for place in range(len(rows)):
            # Places of unsigned numbers need no look for those counted from the end.
            at = np.uint64(column[np.uint64(rows[place])]) * width
            sums[at] += gradients[place]
            sums[at + np.uint64(1)] += hessians[place]
            sums[at + np.uint64(2)] += 1.0
        for code in range(256):
            for part in range(3):
                histograms[feature, code, part] = sums[4 * code + part]


@njit()
def best_splits(
    histograms: np.ndarray,
    num_codes: np.ndarray,
    l2: Any,
    least_rows: Any,
    found: np.ndarray,
) -> None:
    """Find the best split of each feature.

    Rows with codes up to the split go left; rows without a value go to the side that gains more.

    Args:
        histograms: [F, 256, 3].
        num_codes: codes of each feature [F].
        l2: added to the sum of hessians.
        least_rows: rows of a leaf at least.
        found: gain, code, whether missing ones go left [F, 3]; no gain for no split.

    Source: Chen and Guestrin 2016 (arXiv 1603.02754), equation 7 and algorithm 3.
    """
    for feature in range(len(histograms)):
        sums = histograms[feature]
        whole_g = whole_h = whole_n = 0.0
        for code in range(num_codes[feature]):
            whole_g += sums[code, 0]
            whole_h += sums[code, 1]
            whole_n += sums[code, 2]
        base = whole_g * whole_g / (whole_h + l2)
        found[feature, 0] = 0.0
        for missing_left in range(2):
            if missing_left and sums[0, 2] == 0.0:
                continue
            g = sums[0, 0] * missing_left
            h = sums[0, 1] * missing_left
            n = sums[0, 2] * missing_left
            for code in range(1, num_codes[feature] - 1):
                g += sums[code, 0]
                h += sums[code, 1]
                n += sums[code, 2]
                if n < least_rows:
                    continue
                if whole_n - n < least_rows:
                    break
                other = whole_g - g
                gain = g * g / (h + l2) + other * other / (whole_h - h + l2) - base
                if gain > found[feature, 0]:
                    found[feature, 0], found[feature, 1] = gain, code
                    found[feature, 2] = missing_left


@njit()
def part_rows(
    column: np.ndarray,
    rows: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
    code: Any,
    missing_left: Any,
    spare: Any,
) -> Any:
    """Move the rows of a node that go left to the front, both sides in their order.

    Every row is written to both sides and only one of them moves on: which side a row goes to
    cannot be foreseen, and a branch that is mistaken costs more than a write.

    Args:
        column: codes of the feature [N].
        rows: rows of the node; they and their gradients are reordered in place.
        gradients: their gradients.
        hessians: their hessians.
        code: last code that goes left.
        missing_left: whether rows without a value go left.
        spare: room for as many of the three.

    Returns:
        How many go left.
    """
    spare_rows, spare_g, spare_h = spare
    goes_left = np.zeros(256, np.int64)
    goes_left[1 : code + 1] = 1
    goes_left[0] = missing_left
    left = right = 0
    for place in range(len(rows)):
        row, gradient, hessian = rows[place], gradients[place], hessians[place]
        step = goes_left[column[row]]
        rows[left], gradients[left], hessians[left] = row, gradient, hessian
        spare_rows[right], spare_g[right], spare_h[right] = row, gradient, hessian
        left += step
        right += 1 - step
    rows[left:] = spare_rows[:right]
    gradients[left:] = spare_g[:right]
    hessians[left:] = spare_h[:right]
    return left


@njit()
def add_leaf_values(rows: np.ndarray, value: Any, scores: np.ndarray) -> None:
    """Add a leaf's value to the scores of its rows."""
    for row in rows:
        scores[row] += value


@njit()
def logistic_gradients(
    scores: np.ndarray,
    targets: np.ndarray,
    rows: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
) -> None:
    """Fill in the derivatives of the log loss of yes and no."""
    for place in range(len(rows)):
        row = rows[place]
        share = 1.0 / (1.0 + np.exp(-scores[row]))
        gradients[place] = share - targets[row]
        hessians[place] = share * (1.0 - share)


@njit()
def squared_gradients(
    scores: np.ndarray,
    targets: np.ndarray,
    rows: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
) -> None:
    """Fill in the derivatives of half the squared error."""
    for place in range(len(rows)):
        row = rows[place]
        gradients[place] = scores[row] - targets[row]
        hessians[place] = 1.0


@njit()
def softmax_gradients(
    scores: np.ndarray,
    targets: np.ndarray,
    number: Any,
    rows: np.ndarray,
    gradients: np.ndarray,
    hessians: np.ndarray,
) -> None:
    """Fill in the derivatives of the log loss by the score of one class; scores are [K, N]."""
    for place in range(len(rows)):
        row = rows[place]
        most = scores[0, row]
        for other in range(1, len(scores)):
            most = max(most, scores[other, row])
        total = 0.0
        for other in range(len(scores)):
            total += np.exp(scores[other, row] - most)
        share = np.exp(scores[number, row] - most) / total
        gradients[place] = share - (targets[row] == number)
        hessians[place] = share * (1.0 - share)


@njit()
def score_rows(
    codes: np.ndarray,
    features: np.ndarray,
    splits: np.ndarray,
    missing_left: np.ndarray,
    children: np.ndarray,
    values: np.ndarray,
    rows: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Add the leaf values of one tree to scores.

    Args:
        codes: uint8 [F, N].
        features: feature of each node, -1 for a leaf.
        splits: last code that goes left.
        missing_left: whether rows without a value go left.
        children: nodes on both sides [M, 2].
        values: value of each leaf.
        rows: rows to score.
        scores: scores by row; added to.
    """
    for row in rows:
        node = 0
        while features[node] >= 0:
            code = codes[features[node], row]
            is_left = (code == 0 and missing_left[node]) or (0 < code <= splits[node])
            node = children[node, 0] if is_left else children[node, 1]
        scores[row] += values[node]
