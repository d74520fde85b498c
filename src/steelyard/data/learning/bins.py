"""Columns as codes of one byte: 0 where a value is missing, else the number of its bin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.table.columns import columns_of, has_numbers, is_text
from steelyard.jit import njit

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.sketch import KllQuantiles
    from steelyard.data.table import DataTable
    from steelyard.data.table.frequent_texts import FrequentTexts

__all__ = ["MISSING", "FeatureBins", "column_bins", "feature_names"]

MISSING = 0
_MOST_BINS = 254
_LEVELS = 1021


@njit()
def _place(values: np.ndarray, cuts: np.ndarray, out: np.ndarray) -> None:
    """Write one more than the number of cuts below each value, 0 for NaN.

    Eight halvings without a loop or a branch, which could not be foreseen: six times as fast as a
    search that branches.

    Args:
        values: [N].
        cuts: ascending, with infinity behind them up to 256.
        out: uint8 [N].
    """
    one = np.uint64(1)
    for row in range(len(values)):
        value = values[row]
        at = np.uint64(128) * np.uint64(cuts[np.uint64(127)] < value)
        at += np.uint64(64) * np.uint64(cuts[at + np.uint64(63)] < value)
        at += np.uint64(32) * np.uint64(cuts[at + np.uint64(31)] < value)
        at += np.uint64(16) * np.uint64(cuts[at + np.uint64(15)] < value)
        at += np.uint64(8) * np.uint64(cuts[at + np.uint64(7)] < value)
        at += np.uint64(4) * np.uint64(cuts[at + np.uint64(3)] < value)
        at += np.uint64(2) * np.uint64(cuts[at + one] < value)
        at += np.uint64(cuts[at] < value)
        out[row] = 0 if np.isnan(value) else at + one


@dataclass(frozen=True, kw_only=True)
class FeatureBins:
    """How one column becomes codes.

    Attributes:
        name: the column.
        cuts: upper ends of the bins of numbers, ascending; a value equal to a cut is below it.
        hashes: hashes of the values that have a code of their own, ascending; of text only. Others
            share the code behind the last.
        codes: code of each hash.
    """

    name: str
    cuts: NDArray[np.float64]
    hashes: NDArray[np.uint64]
    codes: NDArray[np.uint8]
    is_text: bool = False

    @property
    def num_codes(self) -> int:
        """Codes that values can have, that of missing ones among them."""
        return (len(self.hashes) if self.is_text else len(self.cuts)) + 2

    def encode(self, batch: "pa.RecordBatch") -> NDArray[np.uint8]:
        """Return the codes of a batch; a column that the batch lacks is missing throughout."""
        place = batch.schema.get_field_index(self.name)
        if place < 0:
            return np.full(len(batch), MISSING, np.uint8)
        columns = columns_of(batch)
        if not self.is_text:
            values = columns.numbers(place)
            found = np.empty(len(values), np.uint8)
            cuts = np.full(256, np.inf)
            cuts[: len(self.cuts)] = self.cuts
            _place(np.ascontiguousarray(values), cuts, found)
            return found
        hashes = columns.hashes(place)
        other = np.uint8(len(self.hashes) + 1)
        if not len(self.hashes):
            found = np.full(len(batch), other)
        else:
            at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            found = np.where(self.hashes[at] == hashes, self.codes[at], other)
        is_missing = np.asarray(batch.column(place).is_null())
        return np.where(is_missing, MISSING, found).astype(np.uint8)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"cuts": self.cuts, "hashes": self.hashes, "codes": self.codes}

    @classmethod
    def restored(
        cls, name: str, arrays: Mapping[str, NDArray[Any]], *, text: bool
    ) -> "FeatureBins":
        """Return bins of arrays by name."""
        return cls(name=name, is_text=text, **{key: np.asarray(arrays[key]) for key in arrays})


def feature_names(table: "DataTable", left_out: Sequence[str]) -> list[str]:
    """Return the columns that can be learned from: numbers, yes and no, times and text."""
    names = (item.name for item in table.schema if has_numbers(item.type))
    return [name for name in names if name not in left_out]


def column_bins(
    table: "DataTable",
    names: Sequence[str],
    quantiles: "Mapping[str, KllQuantiles]",
    frequent: "Mapping[str, FrequentTexts]",
) -> list[FeatureBins]:
    """Return the bins of columns.

    Args:
        table: the table.
        names: the columns.
        quantiles: sketches of columns of numbers and times.
        frequent: most frequent values of columns of text, which get codes in this order.

    Returns:
        Bins in the order of the names; a constant column has one.
    """
    found = []
    for name in names:
        if is_text(table.schema.field(name).type):
            texts = frequent[name]
            by_text = texts.hashes_by_text()
            kept = [by_text[text] for text, _ in texts.counts(_MOST_BINS - 1)]
            hashes = np.array(kept, np.uint64)
            order = np.argsort(hashes)
            codes = (order + 1).astype(np.uint8)
            found.append(
                FeatureBins(
                    name=name,
                    cuts=np.empty(0),
                    hashes=hashes[order],
                    codes=codes,
                    is_text=True,
                )
            )
        else:
            cuts = _cuts(quantiles[name])
            none = np.empty(0, np.uint64), np.empty(0, np.uint8)
            found.append(FeatureBins(name=name, cuts=cuts, hashes=none[0], codes=none[1]))
    return found


def _cuts(sketch: "KllQuantiles") -> NDArray[np.float64]:
    """Return cuts between bins that hold about as many rows each."""
    if not sketch.count:
        return np.empty(0)
    values = np.unique(sketch.quantile(np.linspace(0, 1, _LEVELS)))
    values = values[np.isfinite(values)]
    if len(values) > _MOST_BINS:
        levels = np.linspace(0, 1, _MOST_BINS + 1)[1:-1]
        values = np.unique(sketch.quantile(levels))
        return values[np.isfinite(values)]
    # Few different values: a bin for each, cut half way between them.
    return values[:-1] + np.diff(values) / 2
