"""Loops of forests: one whole tree on codes, split by split, and rows that follow it down."""

from typing import Any

import numpy as np

from steelyard.data.sketch.hashing import mix64
from steelyard.jit import njit

__all__ = ["add_forest_values", "grow_whole_tree"]


@njit()
def _best_split(
    histogram: np.ndarray, codes: Any, outputs: Any, least: Any, left: np.ndarray, best: np.ndarray
) -> Any:
    """Find the best split of one histogram.

    Args:
        histogram: weights and weighted targets by code [256, 1 + outputs]; in place 256 their sums.
        codes: codes that there are.
        outputs: targets.
        least: weight of a side at least.
        left: room for sums [1 + outputs].
        best: gain, code and whether missing ones go left [3]; replaced where a split gains more.

    Returns:
        Whether it was.
    """
    whole, is_better = histogram[256], False
    base = 0.0
    for k in range(1, outputs + 1):
        base += whole[k] * whole[k]
    base /= whole[0]
    for missing_left in range(2):
        if missing_left and histogram[0, 0] == 0.0:
            continue
        for k in range(outputs + 1):
            left[k] = histogram[0, k] * missing_left
        for code in range(1, codes - 1):
            if histogram[code, 0] == 0.0:
                continue
            for k in range(outputs + 1):
                left[k] += histogram[code, k]
            if left[0] < least:
                continue
            right = whole[0] - left[0]
            if right < least:
                break
            gain = -base
            for k in range(1, outputs + 1):
                other = whole[k] - left[k]
                gain += left[k] * left[k] / left[0] + other * other / right
            if gain > best[0]:
                best[0], best[1], best[2] = gain, code, missing_left
                is_better = True
    return is_better


@njit()
def grow_whole_tree(
    codes: np.ndarray,
    num_codes: np.ndarray,
    weights: np.ndarray,
    targets: np.ndarray,
    outputs: Any,
    tries: Any,
    least: Any,
    seed: Any,
    features: np.ndarray,
    splits: np.ndarray,
    missing_left: np.ndarray,
    children: np.ndarray,
    values: np.ndarray,
    gains: np.ndarray,
) -> Any:
    """Grow a tree until no node can be split.

    Args:
        codes: uint8 [F, N].
        num_codes: codes of each column [F].
        weights: how often each row was drawn, 1 or more [N].
        targets: numbers of classes, or numbers [N].
        outputs: classes, or 1 for numbers.
        tries: columns that are tried at a node.
        least: weight of a leaf at least.
        seed: what columns are drawn by.
        features: column of each node, -1 for a leaf; this and what follows is filled in [M].
        splits: last code that goes left.
        missing_left: whether rows without a value go left.
        children: nodes on both sides [M, 2].
        values: shares of classes, or mean [M, outputs].
        gains: what each split gained.

    Returns:
        Nodes.
    """
    count, is_class = len(weights), outputs > 1
    rows, spare = np.arange(count), np.empty(count, np.int64)
    histogram, left = np.zeros((257, outputs + 1)), np.zeros(outputs + 1)
    order, best = np.arange(len(codes)), np.zeros(3)
    stack = np.empty((len(features), 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, count
    waiting, nodes, state = 1, 1, np.uint64(seed)
    while waiting:
        waiting -= 1
        node, first, last = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2]
        histogram[256] = 0.0
        low, high = np.inf, -np.inf
        for place in range(first, last):
            row = rows[place]
            weight, value = weights[row], targets[row]
            histogram[256, 0] += weight
            if is_class:
                histogram[256, 1 + int(value)] += weight
            else:
                histogram[256, 1] += weight * value
            low, high = min(low, value), max(high, value)
        for k in range(outputs):
            values[node, k] = histogram[256, 1 + k] / histogram[256, 0]
        features[node], gains[node] = -1, 0.0
        if histogram[256, 0] < 2 * least or low == high or nodes + 2 > len(features):
            continue
        best[:] = 0.0
        chosen, tried = -1, 0
        for turn in range(len(codes)):
            # Columns are drawn without putting them back, until enough that vary were looked at.
            state += np.uint64(0x9E3779B97F4A7C15)
            at = turn + np.int64(mix64(state) % np.uint64(len(codes) - turn))
            feature = order[at]
            order[at] = order[turn]
            order[turn] = feature
            size = num_codes[feature]
            histogram[:size] = 0.0
            column, seen = codes[feature], codes[feature, rows[first]]
            varies = False
            for place in range(first, last):
                row = rows[place]
                code, weight = column[row], weights[row]
                varies |= code != seen
                histogram[code, 0] += weight
                if is_class:
                    histogram[code, 1 + int(targets[row])] += weight
                else:
                    histogram[code, 1] += weight * targets[row]
            if not varies:
                continue
            if _best_split(histogram, size, outputs, least, left, best):
                chosen = feature
            tried += 1
            if tried == tries:
                break
        # What rounding leaves of equal sums is no gain.
        if chosen < 0 or best[0] <= 1e-9 * histogram[256, 0]:
            continue
        column, middle, right = codes[chosen], first, 0
        for place in range(first, last):
            row = rows[place]
            code = column[row]
            if (code == 0 and best[2] > 0) or 0 < code <= best[1]:
                rows[middle] = row
                middle += 1
            else:
                spare[right] = row
                right += 1
        rows[middle:last] = spare[:right]
        features[node], splits[node], missing_left[node] = chosen, int(best[1]), best[2] > 0
        gains[node] = best[0]
        children[node, 0], children[node, 1] = nodes, nodes + 1
        stack[waiting, 0], stack[waiting, 1], stack[waiting, 2] = nodes + 1, middle, last
        stack[waiting + 1, 0], stack[waiting + 1, 1] = nodes, first
        stack[waiting + 1, 2] = middle
        waiting, nodes = waiting + 2, nodes + 2
    return nodes


@njit()
def add_forest_values(
    codes: np.ndarray,
    features: np.ndarray,
    splits: np.ndarray,
    missing_left: np.ndarray,
    children: np.ndarray,
    values: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the values of one tree's leaves to sums.

    Args:
        codes: uint8 [F, N].
        features: column of each node, -1 for a leaf [M].
        splits: last code that goes left.
        missing_left: whether rows without a value go left.
        children: nodes on both sides [M, 2].
        values: [M, outputs].
        out: sums [N, outputs]; added to.
    """
    for row in range(codes.shape[1]):
        node = 0
        while features[node] >= 0:
            code = codes[features[node], row]
            is_left = (code == 0 and missing_left[node]) or (0 < code <= splits[node])
            node = children[node, 0] if is_left else children[node, 1]
        for k in range(values.shape[1]):
            out[row, k] += values[node, k]
