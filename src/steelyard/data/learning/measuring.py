"""What rows kept aside say of a model, and what is odd about columns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import FeatureStore
from steelyard.data.learning.codes import CodeStore
from steelyard.data.learning.inputs import CodeInputs
from steelyard.data.learning.model import TableModel
from steelyard.data.learning.preparing import PreparedRows
from steelyard.data.learning.scores import Scored, score_classes, score_numbers
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.learning.telling import telling_columns

__all__ = ["column_warnings", "measured", "part_of", "scored"]

_MOST_CHECKED = 200_000


def part_of(store: CodeStore | FeatureStore, rows: NDArray[np.integer]) -> NDArray[Any]:
    """Return the inputs of some rows, as learners take them."""
    if isinstance(store, CodeStore):
        return np.ascontiguousarray(store.codes[:, rows])
    return np.asarray(store.features[rows])


def measured(
    model: TableModel,
    store: CodeStore | FeatureStore,
    rows: NDArray[np.integer] | None = None,
) -> list[Scored]:
    """Return measures of rows.

    Args:
        model: the model.
        store: rows.
        rows: those that are measured; None for those kept aside, up to 200,000 of them.

    Returns:
        Measures; none without rows.
    """
    if rows is None:
        rows = np.flatnonzero(store.is_held)[:_MOST_CHECKED]
    if not len(rows):
        return []
    return scored(model.target, store.targets[rows], model.learner.scores(part_of(store, rows)))


def scored(
    target: TargetColumn, truth: NDArray[np.floating], scores: NDArray[np.floating]
) -> list[Scored]:
    """Return measures of scores.

    Args:
        target: what is predicted.
        truth: true numbers, or numbers of classes [N].
        scores: [K, N].

    Returns:
        Measures.
    """
    if target.task == "regress":
        return score_numbers(np.asarray(truth), scores[0])
    return score_classes(np.asarray(truth), target.shares(scores))


def column_warnings(prepared: PreparedRows) -> list[str]:
    """Return what is odd about columns: constant and empty ones, and those that tell the target.

    Args:
        prepared: rows; the first 200,000 that are learned from are looked at.

    Returns:
        Sentences.
    """
    begin = np.asarray(prepared.store.is_held[: 2 * _MOST_CHECKED])
    rows = np.flatnonzero(~begin)[:_MOST_CHECKED]
    inputs, store = prepared.inputs, prepared.store
    found = []
    if isinstance(inputs, CodeInputs) and isinstance(store, CodeStore):
        for place, column in enumerate(inputs.bins):
            codes = np.asarray(store.codes[place][rows])
            if (codes == codes[0]).all():
                what = "constant" if codes.any() else "empty"
                found.append(f"column {column.name} is {what}")
    return found + telling_columns(inputs, store, rows, prepared.target)
