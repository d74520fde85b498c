"""Columns that alone tell what is to be predicted: they may hold it, under another name."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import FeatureStore
from steelyard.data.learning.bins import FeatureBins
from steelyard.data.learning.codes import CodeStore
from steelyard.data.learning.inputs import CodeInputs, FeatureInputs, TableInputs
from steelyard.data.learning.scores import auc
from steelyard.data.learning.targets import TargetColumn

__all__ = ["telling_columns"]

_SUSPECT = 0.999
_MOST_ROWS, _LEAST_ROWS = 20_000, 20
"""Rows that columns are ranked by, and known values that a column needs."""
_CODES, _ROWS_OF_CODE = 254, 5
Codes = NDArray[np.uint8]
Floats = NDArray[np.floating]


def telling_columns(
    inputs: TableInputs,
    store: CodeStore | FeatureStore,
    rows: NDArray[np.integer],
    target: TargetColumn,
) -> list[str]:
    """Return warnings of columns that alone tell a target.

    Two classes: the AUC of the column. More: the mean of the AUCs of each class against the others,
    by their rows. Numbers: the rank correlation. For more than two classes and for numbers, values
    of text are judged on every other row by what the rows between say, so that values that few rows
    have tell nothing; numbers are joined until each part has five rows.

    Args:
        inputs: what columns became.
        store: codes or features.
        rows: those that are looked at.
        target: what is predicted.

    Returns:
        Sentences.
    """
    if target.task == "classify" and target.width == 1:
        told, measure = _of_two(inputs, store, rows), "AUC"
    else:
        rows = rows[:: max(len(rows) // _MOST_ROWS, 1)]
        known = np.asarray(store.targets[rows])
        is_number = target.task == "regress"
        measure = "rank correlation" if is_number else "AUC of each class"
        tells = _tells_numbers if is_number else _tells_classes
        coded = _coded(inputs, store, rows)
        told = [(name, tells(codes, known, text=is_text)) for name, codes, is_text in coded]
    return [
        f"column {name} alone tells {target.name} ({measure} {value:.4f}): it may hold what is to "
        "be predicted"
        for name, value in told
        if value > _SUSPECT
    ]


def _of_two(
    inputs: TableInputs, store: CodeStore | FeatureStore, rows: NDArray[np.integer]
) -> list[tuple[str, float]]:
    """Return the AUC of each column, or of each flag, for two classes."""
    targets = np.asarray(store.targets[rows])
    if isinstance(inputs, CodeInputs) and isinstance(store, CodeStore):
        return [
            (column.name, _alone(column, np.asarray(store.codes[place][rows]), targets))
            for place, column in enumerate(inputs.bins)
        ]
    found = []
    if isinstance(inputs, FeatureInputs) and isinstance(store, FeatureStore):
        # Narrower features are of no column alone.
        owners = inputs.encoder.owners if inputs.reducer is None else []
        for owner, values in zip(owners, store.features[rows].T, strict=inputs.reducer is None):
            area = auc(targets, values)
            found.append((inputs.names[owner], max(area, 1 - area)))
    return found


def _alone(column: FeatureBins, codes: Codes, targets: Floats) -> float:
    """Return the AUC of one column."""
    if (codes == codes[0]).all():
        return 0.0
    if column.is_text:
        sums = np.bincount(codes, targets, 256)
        shares = sums / np.maximum(np.bincount(codes, minlength=256), 1)
        # Values of one row tell that row and no other.
        if (np.bincount(codes, minlength=256) < 2).sum() > len(codes) / 2:
            return 0.0
        return auc(targets, shares[codes])
    value = auc(targets, codes.astype(np.float64))
    return max(value, 1 - value)


def _coded(
    inputs: TableInputs, store: CodeStore | FeatureStore, rows: NDArray[np.integer]
) -> Iterator[tuple[str, Codes, bool]]:
    """Return columns as codes, 0 where missing, and whether they are text."""
    if isinstance(inputs, CodeInputs) and isinstance(store, CodeStore):
        for place, column in enumerate(inputs.bins):
            yield column.name, np.asarray(store.codes[place][rows]), column.is_text
    elif isinstance(inputs, FeatureInputs) and isinstance(store, FeatureStore):
        if inputs.reducer is not None:
            return
        features, first = np.asarray(store.features[rows]), 0
        for column in inputs.encoder.columns:
            own = features[:, first : first + column.width]
            first += column.width
            if column.is_text:
                # The flag of a row's value is the one above its mean; rare values have none.
                codes = np.where(own.max(axis=1) > 0, own.argmax(axis=1) + 1, column.width + 1)
                yield column.name, codes.astype(np.uint8), True
            else:
                yield column.name, (_ranks(own[:, 0]) * _CODES + 1).astype(np.uint8), False


def _ranks(values: Floats) -> NDArray[np.float64]:
    """Return ranks of values from 0 to below 1, the same for equal ones."""
    from scipy.stats import rankdata

    return (rankdata(values) - 1) / len(values)


def _by_code(codes: Codes, amounts: Floats, *, text: bool) -> NDArray[np.float64]:
    """Return the mean amount of rows with each odd row's code.

    Args:
        codes: [N].
        amounts: [N].
        text: whether codes have no order: the even rows alone say what is known of them; others are
            joined with the next ones until they have five rows, of all.

    Returns:
        Means for the odd rows.
    """
    shown = codes[::2] if text else _joined(codes)
    given = amounts[::2] if text else amounts
    counts = np.bincount(shown, minlength=256)
    means = np.bincount(shown, given, 256) / np.maximum(counts, 1)
    means[counts == 0] = float(given.mean())
    return means[codes[1::2] if text else shown[1::2]]


def _joined(codes: Codes) -> NDArray[np.integer]:
    """Return codes that were joined with the next ones until each has five rows."""
    before = np.concatenate([[0], np.bincount(codes, minlength=256).cumsum()[:-1]])
    return (before // _ROWS_OF_CODE)[codes] if len(codes) < _CODES * _ROWS_OF_CODE else codes


def _tells_classes(codes: Codes, targets: Floats, *, text: bool) -> float:
    """Return the mean AUC of classes against the others, by their rows."""
    if len(codes) < _LEAST_ROWS or (codes == codes[0]).all():
        return 0.0
    areas, weights = [], []
    for number in np.unique(targets):
        is_own = (targets == number).astype(np.float64)
        area = auc(is_own[1::2], _by_code(codes, is_own, text=text))
        if not np.isnan(area):
            areas.append(area)
            weights.append(is_own[1::2].sum())
    return float(np.average(areas, weights=weights)) if areas else 0.0


def _tells_numbers(codes: Codes, targets: Floats, *, text: bool) -> float:
    """Return the size of the rank correlation of a column and numbers, of rows that have both."""
    from scipy.stats import rankdata

    is_known = codes > 0
    # Of a column that is mostly missing, few rows say what the others would.
    if is_known.sum() < max(_LEAST_ROWS, len(codes) / 2):
        return 0.0
    codes, ranks = codes[is_known], rankdata(targets[is_known])
    if (codes == codes[0]).all() or (ranks == ranks[0]).all():
        return 0.0
    of_means = _correlation(_by_code(codes, ranks, text=text), ranks[1::2])
    if text:
        return of_means
    return max(of_means, abs(_correlation(rankdata(codes), ranks)))


def _correlation(one: Floats, other: Floats) -> float:
    """Return the correlation of numbers; 0 where either is constant."""
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
