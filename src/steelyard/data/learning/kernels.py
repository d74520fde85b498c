"""Loops of boosted trees: histograms of gradients, splits, rows that part, scores."""

from typing import Any

import numpy as np

from steelyard.data.learning.packing import BLOCK
from steelyard.jit import njit

__all__ = [
    "add_leaf_values",
    "best_splits",
    "fill_histograms",
    "part_rows",
    "score_rows",
    "split_features",
]


@njit()
def _flush(sums: np.ndarray, has_hessians: Any, found: np.ndarray) -> None:
    """Add packed sums to those of gradients, hessians and counts [3, 256]; they begin anew."""
    for code in range(256):
        total = sums[code]
        sums[code] = 0
        held = total & 0xFFF
        found[2, code] += held
        if has_hessians:
            found[1, code] += (total >> 12) & 0x3FFFFFF
            found[0, code] += total >> 38
        else:
            found[1, code] += held
            found[0, code] += total >> 12


@njit()
def fill_histograms(
    codes: np.ndarray,
    rows: np.ndarray,
    packed: np.ndarray,
    has_hessians: Any,
    first: Any,
    last: Any,
    histograms: np.ndarray,
) -> None:
    """Sum packed gradients by code, for features first to before last.

    Some thousand rows at a time: their numbers stay in the fastest cache for all features, and no
    part of a sum grows into the next.

    Args:
        codes: uint8 [F, N].
        rows: rows of the node, uint32.
        packed: gradient, hessian and count of each row in one number [N].
        has_hessians: whether hessians differ from 1.
        first: first feature.
        last: one past the last feature.
        histograms: sums of gradients, hessians and counts [F, 3, 256]; overwritten.
    """
    sums, numbers = np.zeros(256, np.int64), np.empty(BLOCK, np.int64)
    histograms[first:last] = 0
    for begin in range(0, len(rows), BLOCK):
        part = rows[begin : begin + BLOCK]
        for place in range(len(part)):
            numbers[place] = packed[part[place]]
        for feature in range(first, last):
            column = codes[feature]
            for place in range(len(part)):
                # Places of unsigned numbers need no look for those counted from the end.
                sums[np.uint64(column[part[place]])] += numbers[place]
            _flush(sums, has_hessians, histograms[feature])


@njit()
def best_splits(
    histograms: np.ndarray,
    num_codes: np.ndarray,
    scale_g: Any,
    scale_h: Any,
    l2: Any,
    least_rows: Any,
    first: Any,
    last: Any,
    found: np.ndarray,
) -> None:
    """Find the best split of each feature from first to before last.

    Rows with codes up to the split go left; rows without a value go to the side that gains more.

    Args:
        histograms: sums of gradients, hessians and counts in steps [F, 3, 256].
        num_codes: codes of each feature [F].
        scale_g: what a step of gradients stands for.
        scale_h: what a step of hessians stands for.
        l2: added to the sum of hessians.
        least_rows: rows of a leaf at least.
        first: first feature.
        last: one past the last feature.
        found: gain, code, whether missing ones go left [F, 3]; no gain for no split.

    Source: Chen and Guestrin 2016 (arXiv 1603.02754), equation 7 and algorithm 3.
    """
    for feature in range(first, last):
        sums = histograms[feature]
        whole_g = whole_h = whole_n = 0.0
        for code in range(num_codes[feature]):
            whole_g += sums[0, code]
            whole_h += sums[1, code]
            whole_n += sums[2, code]
        whole_g *= scale_g
        whole_h *= scale_h
        base = whole_g * whole_g / (whole_h + l2)
        found[feature, 0] = 0.0
        for missing_left in range(2):
            if missing_left and sums[2, 0] == 0:
                continue
            g = sums[0, 0] * missing_left * scale_g
            h = sums[1, 0] * missing_left * scale_h
            n = sums[2, 0] * missing_left
            for code in range(1, num_codes[feature] - 1):
                if sums[2, code] == 0:
                    continue
                g += sums[0, code] * scale_g
                h += sums[1, code] * scale_h
                n += sums[2, code]
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
def split_features(
    codes: np.ndarray,
    rows: np.ndarray,
    packed: np.ndarray,
    num_codes: np.ndarray,
    scale_g: Any,
    scale_h: Any,
    l2: Any,
    least_rows: Any,
    first: Any,
    last: Any,
    small: np.ndarray,
    large: np.ndarray,
    found: np.ndarray,
) -> None:
    """Make the histograms of two sides of a split, and find the best splits of both.

    Args:
        codes: uint8 [F, N].
        rows: rows of the smaller side, uint32.
        packed: packed numbers of all rows [N].
        num_codes: codes of each feature [F].
        scale_g: what a step of gradients stands for.
        scale_h: what a step of hessians stands for; 0 where all hessians are 1.
        l2: added to the sum of hessians.
        least_rows: rows of a leaf at least.
        first: first feature.
        last: one past the last feature.
        small: histograms of the smaller side; overwritten [F, 3, 256].
        large: histograms of both sides; turned into those of the larger one [F, 3, 256]. Empty
            where there is one side alone.
        found: best splits of the smaller and the larger side [2, F, 3].
    """
    fill_histograms(codes, rows, packed, scale_h > 0, first, last, small)
    step = scale_h if scale_h > 0 else 1.0
    best_splits(small, num_codes, scale_g, step, l2, least_rows, first, last, found[0])
    if len(large):
        for feature in range(first, last):
            for part in range(3):
                for code in range(256):
                    # The larger side is what the smaller one leaves of both.
                    large[feature, part, code] -= small[feature, part, code]
        best_splits(large, num_codes, scale_g, step, l2, least_rows, first, last, found[1])


@njit()
def part_rows(
    column: np.ndarray, rows: np.ndarray, code: Any, missing_left: Any, spare: np.ndarray
) -> Any:
    """Move the rows of a node that go left to the front, both sides in their order.

    Every row is written to both sides and only one of them moves on: which side a row goes to
    cannot be foreseen, and a branch that is mistaken costs more than a write.

    Args:
        column: codes of the feature [N].
        rows: rows of the node, uint32; reordered in place.
        code: last code that goes left.
        missing_left: whether rows without a value go left.
        spare: room for as many.

    Returns:
        How many go left.
    """
    goes_left = np.zeros(256, np.int64)
    goes_left[1 : code + 1] = 1
    goes_left[0] = missing_left
    left = right = 0
    for place in range(len(rows)):
        row = rows[place]
        step = goes_left[column[row]]
        rows[left] = row
        spare[right] = row
        left += step
        right += 1 - step
    rows[left:] = spare[:right]
    return left


@njit()
def add_leaf_values(rows: np.ndarray, value: Any, scores: np.ndarray) -> None:
    """Add a leaf's value to the scores of its rows."""
    for row in rows:
        scores[row] += value


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
