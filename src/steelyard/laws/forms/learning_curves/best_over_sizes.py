"""The best error over model sizes at each number of samples, which obeys the law."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.points import positive_columns
from steelyard.laws.fitting.terms import Array

__all__ = ["BestOverSizes", "best_over_sizes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOverSizes:
    """One point per shard, by rising samples.

    Attributes:
        samples: number of samples of each shard, [n].
        error: least error over sizes, the mean of its seeds in log space, [n].
        size: parameters of the smallest model within the tolerance of it, [n].
        at_largest: samples of the shards whose best model is the largest one tried, so that a
            larger one may do better.
        at_smallest: samples of the shards whose best model is the smallest one tried.
    """

    samples: Array
    error: Array
    size: Array
    at_largest: tuple[float, ...]
    at_smallest: tuple[float, ...]


def best_over_sizes(
    samples: ArrayLike,
    size: ArrayLike,
    error: ArrayLike,
    seed: ArrayLike | None = None,
    *,
    tolerance: float = 0.01,
) -> BestOverSizes:
    """Reduce a grid of runs to the best error per shard and the smallest model that reaches it.

    One model's own curve ends on a floor of its capacity; only the best over sizes shows the
    irreducible one.

    Args:
        samples: number of training samples of each run, [n].
        size: parameters, [n].
        error: validation error or loss at its minimum, [n], positive.
        seed: labels of repetitions of one cell, [n]; without them each cell may be given once.
        tolerance: relative error above the best within which a smaller model counts as equal.

    Returns:
        The envelope; it warns of shards whose best model is the largest tried.

    Raises:
        FitError: columns of different lengths, values that are not positive, or cells given twice.

    Source: Hestness et al. 2017 (arXiv 1712.00409), section 3 (the training procedure's best-fit
        models).
    """
    amount, parameters, value = positive_columns(
        {"samples": samples, "size": size, "error": error}
    ).values()
    cells = np.stack([amount, parameters], axis=1)
    _refuse_repeats(cells, seed)
    unique, row = np.unique(cells, axis=0, return_inverse=True)
    row = row.reshape(-1)
    # Seeds are averaged before the best size is chosen: the least of single runs is biased down by
    # the noise, most where most sizes were tried.
    mean = np.exp(np.bincount(row, np.log(value)) / np.bincount(row))
    shards = np.unique(unique[:, 0])
    rows = []
    for shard in shards:
        inside = unique[:, 0] == shard
        sizes, errors = unique[inside, 1], mean[inside]
        near = sizes[errors <= (1 + tolerance) * errors.min()]
        rows.append((errors.min(), near[0], sizes[0], sizes[-1]))
    best, chosen, first, last = np.array(rows).T
    largest = shards[(first < last) & (chosen == last)].tolist()
    if largest:
        shown = ", ".join(f"{shard:g}" for shard in largest)
        message = (
            f"the best model of {shown} samples is the largest tried: these errors may be "
            f"bound by capacity, try larger ones"
        )
        warnings.warn(message, SteelyardWarning, stacklevel=2)
    return BestOverSizes(
        samples=shards,
        error=best,
        size=chosen,
        at_largest=tuple(largest),
        at_smallest=tuple(shards[(first < last) & (chosen == first)].tolist()),
    )


def _refuse_repeats(cells: Array, seed: ArrayLike | None) -> None:
    """Refuse runs that stand for the same cell."""
    labels = np.zeros(len(cells)) if seed is None else np.asarray(seed).astype(str)
    keys = np.column_stack([cells, np.unique(labels, return_inverse=True)[1]])
    _, number, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    number = number.reshape(-1)
    again = np.flatnonzero(counts[number] > 1)
    if len(again):
        first, second = np.flatnonzero(number == number[again[0]])[:2]
        raise FitError(
            f"rows {first + 1} and {second + 1} are the same cell: {cells[first, 0]:g} samples, "
            f"{cells[first, 1]:g} parameters",
            hint="drop one of them, or name the repetitions with seed=",
        )
