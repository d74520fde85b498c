"""Which columns of two tables say the same: by their names and by their values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.data.matching.values import ValueSketch, containment

__all__ = ["ColumnMatch", "match_schemas", "name_similarity"]

_LEVELS = np.arange(1, 100) / 100
_FEW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMatch:
    """Two columns that may say the same.

    Attributes:
        left: column of the first table.
        right: column of the second.
        score: 0 to 1.
        names: how alike the names are, 0 to 1.
        values: how alike the values are, 0 to 1.
    """

    left: str
    right: str
    score: float
    names: float
    values: float


def _words(name: str) -> list[str]:
    """Return the words of a name: "customerID" and "customer_id" have the same."""
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return re.findall(r"[^\W_]+", split.lower())


def _grams(text: str) -> set[str]:
    """Return the runs of three letters of a text with its ends."""
    padded = f"  {text} "
    return {padded[place : place + 3] for place in range(len(padded) - 2)}


def name_similarity(left: str, right: str) -> float:
    """Return how alike two names are: the Dice coefficient of their runs of three letters.

    Args:
        left: a name; case, underscores and the order of words do not matter.
        right: another.

    Returns:
        0 to 1.
    """
    one, other = (
        set().union(*(_grams(word) for word in _words(name) or [""])) for name in (left, right)
    )
    return 2 * len(one & other) / (len(one) + len(other))


def value_similarity(left: ValueSketch, right: ValueSketch) -> float:
    """Return how alike the values of two columns are.

    Args:
        left: sketch of a column.
        right: of another.

    Returns:
        The larger share of different values that one has of the other; of numbers that differ in
        most rows, how near their ranks are if that is more. 0 for columns that cannot be compared.
    """
    if left.kind != right.kind or not (left.rows and right.rows):
        return 0.0
    shares = [containment(*pair)[0] for pair in ((left, right), (right, left))]
    shared = float(np.nan_to_num(shares).max())
    if left.kind != "number" or min(left.num_distinct, right.num_distinct) <= _FEW:
        return shared
    cuts = left.quantiles.quantile(_LEVELS)
    apart = float(np.abs(right.quantiles.rank(cuts) - left.quantiles.rank(cuts)).max())
    # Equal ranks are a hint, and equal values are more than that.
    return max(shared, 0.8 * (1 - apart))


def match_schemas(
    left: Mapping[str, ValueSketch], right: Mapping[str, ValueSketch], least: float = 0.4
) -> list[ColumnMatch]:
    """Pair the columns of two tables so that the sum of scores is largest.

    A score is the mean of the similarities of names and of values.

    Args:
        left: sketches of the first table.
        right: sketches of the second.
        least: least score of a pair.

    Returns:
        Pairs, each column in one at most; the most alike first.

    Source: assignment by Kuhn 1955; a mean of several matchers as in Do and Rahm 2002 (COMA).
    """
    from scipy.optimize import linear_sum_assignment

    if not (left and right):
        return []
    pairs = [[_matched(one, left[one], other, right[other]) for other in right] for one in left]
    scores = np.array(
        [[item.score if item.score >= least else 0.0 for item in row] for row in pairs]
    )
    rows, columns = linear_sum_assignment(-scores)
    found = [
        pairs[row][at]
        for row, at in zip(rows.tolist(), columns.tolist(), strict=True)
        if scores[row, at] > 0
    ]
    return sorted(found, key=lambda item: -item.score)


def _matched(left: str, one: ValueSketch, right: str, other: ValueSketch) -> ColumnMatch:
    """Score a pair of columns."""
    names, values = name_similarity(left, right), value_similarity(one, other)
    # Columns whose values cannot be compared are no match, whatever they are called.
    score = (names + values) / 2 if one.kind == other.kind else 0.0
    return ColumnMatch(left=left, right=right, score=score, names=names, values=values)
