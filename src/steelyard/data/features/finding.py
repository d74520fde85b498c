"""Which features the columns of a table have: one pass of moments and frequent values."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.features.encoder import FeatureColumn, FeatureEncoder
from steelyard.data.features.far_out import trimmed_scale
from steelyard.data.features.odd_numbers import OddNumbersFold
from steelyard.data.table.columns import is_text
from steelyard.data.table.folds import frequent, moments, quantiles
from steelyard.data.table.row_folds import RowCountFold
from steelyard.errors import DataError

if TYPE_CHECKING:
    from steelyard.data.sketch import KllQuantiles, Moments
    from steelyard.data.table import DataTable
    from steelyard.data.table.frequent_texts import FrequentTexts

__all__ = ["FoundFeatures", "find_features"]

_COUNTERS, _QUANTILES = 1024, 1024
_MOST_FLAGS = 32
"""Flags of a column of text at most."""
_LEAST_SHARE = 1e-3
"""Share of rows that a value needs for a flag, and missing numbers for theirs."""


@dataclass(frozen=True, kw_only=True)
class FoundFeatures:
    """What one pass found.

    Attributes:
        encoder: how rows become features.
        rows: rows of the table.
        warnings: columns that are constant or empty, and infinite values.
        frequent: most frequent values of columns that were asked for besides.
    """

    encoder: FeatureEncoder
    rows: int
    warnings: list[str]
    frequent: "dict[str, FrequentTexts]"


def find_features(
    table: "DataTable",
    names: Sequence[str],
    *,
    also: Sequence[str] = (),
    flags_missing: bool = True,
    trims: bool = False,
    memory: str = "",
    done: Callable[[float], None] = lambda _: None,
) -> FoundFeatures:
    """Look at a table once, and say how its columns become features.

    Args:
        table: the table.
        names: columns that can be turned into numbers.
        also: columns whose frequent values are wanted besides.
        flags_missing: whether missing numbers have a flag.
        trims: whether columns with numbers far out are scaled by the others, and cut off; rows that
            are looked for because they are far out would not be found then.
        memory: most bytes that the pass may take, such as "200MB"; empty for no bound.
        done: is told the share that was read.

    Returns:
        The features; a column that is empty or constant has none.

    Raises:
        DataError: no column has a feature.
    """
    texts = [name for name in names if is_text(table.schema.field(name).type)]
    numbers = [name for name in names if name not in texts]
    folds: list[Any] = [RowCountFold()]
    counted, spread = frequent(*texts, *also, size=_COUNTERS), moments(*numbers)
    odd = OddNumbersFold(tuple(numbers))
    sketched = quantiles(*numbers, k=_QUANTILES, whole=1 << 16)
    if texts or also:
        folds.append(counted)
    if numbers:
        folds += [spread, odd, *([sketched] if trims else [])]
    read = [0]

    def count(num_bytes: int) -> None:
        read[0] += num_bytes
        done(read[0] / max(table.num_bytes, 1))

    found = table.fold(*folds, memory=memory or None, done=count).results
    rows, columns, warnings = int(found["rows"]), [], []
    for name in names:
        if name in texts:
            made = _of_text(name, found[counted.name][name], rows)
        else:
            gaps = _gaps(name, found[odd.name][name], rows, warnings)
            moved = found[spread.name][name]
            made = _of_numbers(name, moved, gaps if flags_missing else 0.0)
            made = _trimmed(made, found[sketched.name][name], moved, warnings) if trims else made
        if made is None:
            is_empty = name not in texts and not found[spread.name][name].count
            warnings.append(f"column {name} is {'empty' if is_empty else 'constant'}: left out")
        else:
            columns.append(made)
    if not columns:
        raise DataError(
            "no column varies, so there is nothing to look at",
            hint=f"columns that could be used are {', '.join(names) or 'none'}",
        )
    besides = {name: found[counted.name][name] for name in also}
    encoder = FeatureEncoder(columns=tuple(columns))
    return FoundFeatures(encoder=encoder, rows=rows, warnings=warnings, frequent=besides)


def _gaps(name: str, odd: tuple[int, int], rows: int, warnings: list[str]) -> float:
    """Return the share of rows without a finite number; infinite ones are told."""
    missing, infinite = odd
    if infinite:
        warnings.append(f"column {name} has {infinite:,} infinite values: they count as missing")
    return (missing + infinite) / max(rows, 1)


def _trimmed(
    column: FeatureColumn | None, sketch: "KllQuantiles", spread: "Moments", warnings: list[str]
) -> FeatureColumn | None:
    """Return a column scaled by its usual numbers where some are far out, which is told."""
    near = trimmed_scale(sketch, spread)
    if near is None or column is None:
        return column
    warnings.append(
        f"column {column.name} has values far out: it is scaled by the others and cut off at "
        f"{near.low:.4g} and {near.high:.4g}"
    )
    return replace(column, **asdict(near))


def _of_text(name: str, texts: "FrequentTexts", rows: int) -> FeatureColumn | None:
    """Return the column of a text; None where all rows have the same value."""
    by_text = texts.hashes_by_text()
    counts = texts.counts(_MOST_FLAGS)
    kept = [(by_text[text], count / rows) for text, count in counts if count < rows]
    kept = [(value, share) for value, share in kept if share >= _LEAST_SHARE]
    if not kept:
        return None
    hashes, shares = zip(*kept, strict=True)
    return FeatureColumn(
        name=name,
        scale=len(hashes) ** 0.5,
        hashes=np.array(hashes, np.uint64),
        shares=np.array(shares, np.float64),
        is_text=True,
    )


def _of_numbers(name: str, spread: "Moments", gaps: float) -> FeatureColumn | None:
    """Return the column of numbers; None where they are constant or all missing."""
    # What rounding leaves of equal values is no variance.
    least = 1e-12 * max(abs(spread.mean), 1e-290) if spread.count else 0.0
    # Squares of numbers near the largest there are overflow, which is much variance.
    varies = spread.count > 1 and (spread.std > least or not np.isfinite(spread.std))
    has_flag = _LEAST_SHARE <= gaps <= 1 - _LEAST_SHARE
    if not varies:
        return None
    return FeatureColumn(
        name=name,
        mean=spread.mean,
        scale=spread.std,
        hashes=np.empty(0, np.uint64),
        shares=np.array([gaps] if has_flag else []),
        flags_missing=has_flag,
    )
