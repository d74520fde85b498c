"""Rows of two tables that are one thing: candidates by LSH, and a logistic score of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.matching.grams import Grams, grams_of
from steelyard.data.sketch import MinHasher
from steelyard.data.sketch.lsh import band_keys
from steelyard.data.table.columns import is_number, is_text
from steelyard.errors import CapacityError, ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = [
    "EntityMatch",
    "EntityModel",
    "EntityPairs",
    "find_pairs",
    "fit_matches",
    "match_entities",
]

_HASHES, _ROWS = 96, 4
"""24 bands of 4 find 96 % of pairs whose runs of letters are .6 alike, and 18 % at .3."""
_MOST_PAIRS = 20_000_000
_MOST_OF_BUCKET = 100
_ALIKE, _UNLIKE = 0.85, 0.4


@dataclass(frozen=True, kw_only=True)
class EntityPairs:
    """Candidates, and how alike each is in each column.

    Attributes:
        columns: pairs of columns that are compared.
        pairs: rows of the first and second table, from 0 [P, 2].
        alike: similarity in each pair of columns, NaN where a value is missing [P, C].
        cut: buckets with so many rows that not all were paired.
    """

    columns: tuple[tuple[str, str], ...]
    pairs: NDArray[np.int64]
    alike: NDArray[np.float64]
    cut: int


@dataclass(frozen=True, kw_only=True)
class EntityModel:
    """Weights of a logistic score.

    Attributes:
        weights: of each similarity, each gap, the least similarity, and the constant [2 C + 2].
        labelled: pairs that it was fitted on.
        is_taught: whether those were told; else they are pairs that leave little doubt.
    """

    weights: NDArray[np.float64]
    labelled: int
    is_taught: bool

    def score(self, alike: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that pairs [P, C] are one thing [P]."""
        return 1 / (1 + np.exp(-np.clip(_features(alike) @ self.weights, -40, 40)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityMatch:
    """Two rows that are one thing.

    Attributes:
        left: row of the first table, from 1.
        right: row of the second.
        score: probability.
    """

    left: int
    right: int
    score: float


def find_pairs(
    left: "DataTable", right: "DataTable", columns: Sequence[tuple[str, str]]
) -> EntityPairs:
    """Find rows of two tables that may be one thing, and compare them.

    Rows are candidates that share a band of the MinHash of the letters of their texts. The columns
    that are compared are held in memory.

    Args:
        left: the first table.
        right: the second.
        columns: pairs of columns that say the same; one at least is text.

    Returns:
        The candidates.

    Raises:
        ConfigError: no such column, or none is text.
        CapacityError: there are more than 20 million candidates.
    """
    own = [_column(left, name) for name, _ in columns]
    others = [_column(right, name) for _, name in columns]
    texts = [
        at for at, (one, other) in enumerate(zip(own, others, strict=True)) if _both(one, other)
    ]
    if not texts:
        raise ConfigError("no pair of columns is text", hint="name columns of text to find rows by")
    grams = {at: (grams_of(own[at].to_pylist()), grams_of(others[at].to_pylist())) for at in texts}
    hasher = MinHasher(num_hashes=_HASHES)
    joined = [_joined([grams[at][side] for at in texts]) for side in (0, 1)]
    signed = [hasher.signatures(item.hashes, item.ends) for item in joined]
    keys = [band_keys(item, _HASHES // _ROWS, _ROWS) for item in signed]
    is_known = [np.diff(item.ends) > 0 for item in joined]
    pairs, cut = _meeting(keys, is_known)
    alike = np.full((len(pairs), len(columns)), np.nan)
    for at in range(len(columns)):
        if at in grams:
            alike[:, at] = grams[at][0].similarity(grams[at][1], pairs)
        else:
            alike[:, at] = _near(own[at], others[at], pairs)
    return EntityPairs(columns=tuple(columns), pairs=pairs, alike=alike, cut=cut)


def _column(table: "DataTable", name: str) -> "pa.ChunkedArray":
    """Return a column in memory."""
    return table.select([name]).collect()[0][name]


def _both(one: "pa.ChunkedArray", other: "pa.ChunkedArray") -> bool:
    return is_text(one.type) and is_text(other.type)


def _joined(parts: Sequence[Grams]) -> Grams:
    """Return the runs of letters of several columns of each row together."""
    rows = np.concatenate(
        [np.repeat(np.arange(len(own.ends) - 1), np.diff(own.ends)) for own in parts]
    )
    hashes = np.concatenate([own.hashes for own in parts])
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=len(parts[0].ends) - 1)
    return Grams(hashes[order], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def _meeting(
    keys: Sequence[NDArray[np.uint32]], is_known: Sequence[NDArray[np.bool_]]
) -> tuple[NDArray[np.int64], int]:
    """Return pairs of rows that share the key of a band, and buckets that were cut short."""
    left_rows, right_rows = (np.flatnonzero(item) for item in is_known)
    found, cut = [np.zeros(0, np.int64)], 0
    width = len(is_known[1])
    for one, other in zip(*keys, strict=True):
        order = right_rows[np.argsort(other[right_rows], kind="stable")]
        kept = other[order]
        first = np.searchsorted(kept, one[left_rows], side="left")
        sizes = np.searchsorted(kept, one[left_rows], side="right") - first
        cut += int((sizes > _MOST_OF_BUCKET).sum())
        sizes = np.minimum(sizes, _MOST_OF_BUCKET)
        at = np.repeat(first, sizes) + _counting(sizes)
        found.append(np.repeat(left_rows, sizes) * width + order[at])
        if sum(map(len, found)) > 4 * _MOST_PAIRS:
            found = [np.unique(np.concatenate(found))]
        if len(found[0]) > _MOST_PAIRS:
            raise CapacityError(
                f"more than {_MOST_PAIRS:,} pairs of rows are alike",
                hint="compare columns that tell rows apart, or split the tables",
            )
    codes = np.unique(np.concatenate(found))
    return np.stack([codes // max(width, 1), codes % max(width, 1)], axis=1), cut


def _counting(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, ... for each size, one after the other."""
    ends = np.cumsum(sizes)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)


def _near(one: Any, other: Any, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how near numbers are, or whether other values are equal, NaN where one is missing."""
    left, right = one.take(pairs[:, 0]), other.take(pairs[:, 1])
    if is_number(one.type) and is_number(other.type):
        values = [np.asarray(item.cast("float64"), float) for item in (left, right)]
        known = np.concatenate(values)[np.isfinite(np.concatenate(values))]
        low, high = np.quantile(known, [0.25, 0.75]) if len(known) else (0.0, 0.0)
        # A tenth of the distance of the quartiles is far: years of birth are all near 1970.
        reach = 0.1 * (high - low) or 1.0
        with np.errstate(invalid="ignore"):
            return np.exp(-np.abs(values[0] - values[1]) / reach)
    texts = [item.cast("string").to_pylist() for item in (left, right)]
    return np.array(
        [
            np.nan if mine is None or theirs is None else float(mine == theirs)
            for mine, theirs in zip(*texts, strict=True)
        ]
    )


def _features(alike: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return similarities with 0 for gaps, whether there is a gap, the least one, and 1."""
    gaps = np.isnan(alike)
    least = np.where(gaps, 1.0, alike).min(axis=1, initial=1.0)[:, None]
    parts = [np.where(gaps, 0.0, alike), gaps, least, np.ones((len(alike), 1))]
    return np.concatenate(parts, axis=1)


def fit_matches(
    found: EntityPairs,
    labels: NDArray[np.float64] | None = None,
    *,
    ridge: float = 0.01,
) -> EntityModel:
    """Fit the weights of a logistic score.

    Args:
        found: candidates.
        labels: 1 where a pair is one thing, 0 where it is not, NaN where that is not known [P];
            None takes pairs that are alike by .85 or more in the mean of all columns, and by .4 or
            less, for known.
        ridge: keeps weights small where there are few labels.

    Returns:
        The model.

    Raises:
        DataError: labels of one kind are missing.

    Source: logistic regression by Newton's steps (Hastie et al. 2009, section 4.4.1); the linear
        score of similarities is that of Fellegi and Sunter 1969, "A theory for record linkage".
    """
    is_taught = labels is not None
    if labels is None:
        mean = np.where(np.isnan(found.alike), 0.0, found.alike).sum(axis=1)
        mean = mean / np.maximum((~np.isnan(found.alike)).sum(axis=1), 1)
        labels = np.where(mean >= _ALIKE, 1.0, np.where(mean <= _UNLIKE, 0.0, np.nan))
    rows = np.flatnonzero(np.isfinite(labels))
    if len(np.unique(labels[rows])) < 2:
        raise DataError(
            f"{len(rows):,} pairs are known, and all of one kind",
            hint="label some pairs that are one thing, and some that are not",
        )
    x, y = _features(found.alike[rows]), labels[rows]
    weights = np.zeros(x.shape[1])
    keep = np.full(x.shape[1], ridge)
    keep[-1] = 1e-6
    for _ in range(50):
        share = 1 / (1 + np.exp(-np.clip(x @ weights, -40, 40)))
        slope = x.T @ (y - share) - keep * weights
        curve = (x * (share * (1 - share))[:, None]).T @ x + np.diag(keep)
        step = np.linalg.solve(curve, slope)
        weights = weights + step
        if np.abs(step).max() < 1e-8:
            break
    return EntityModel(weights=weights, labelled=len(rows), is_taught=is_taught)


def match_entities(
    found: EntityPairs, model: EntityModel, *, least: float = 0.5, one_to_one: bool = True
) -> list[EntityMatch]:
    """Return the pairs that are one thing, the surest first.

    Args:
        found: candidates.
        model: their score.
        least: least probability.
        one_to_one: whether each row is in one pair at most: surer pairs go first.

    Returns:
        The matches.
    """
    scores = model.score(found.alike)
    order = np.lexsort((found.pairs[:, 1], found.pairs[:, 0], -scores))
    lefts: set[int] = set()
    rights: set[int] = set()
    made = []
    for place in order[scores[order] >= least].tolist():
        left, right = found.pairs[place].tolist()
        if one_to_one and (left in lefts or right in rights):
            continue
        lefts.add(left)
        rights.add(right)
        made.append(EntityMatch(left=left + 1, right=right + 1, score=float(scores[place])))
    return made
