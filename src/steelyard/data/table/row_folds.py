"""Folds over whole rows: their number, a fingerprint of them all, and covariances of columns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import Covariance
from steelyard.data.sketch.hashing import scramble
from steelyard.data.table.columns import columns_of, is_number
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CovarianceFold", "RowCountFold", "RowHashFold"]

_BLOCK = 2048


class RowCountFold:
    """A `Fold` of the number of rows."""

    name = "rows"

    def init(self, schema: "pa.Schema") -> NDArray[np.int64]:
        """Return the state before any row."""
        return np.zeros(1, np.int64)

    def update(self, state: NDArray[np.int64], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        state += len(batch)

    def merge(self, state: NDArray[np.int64], later: NDArray[np.int64]) -> None:
        """Take in the state of rows that come later."""
        state += later

    def finish(self, state: NDArray[np.int64]) -> int:
        """Return the number."""
        return int(state[0])

    def sections(self, state: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {"rows": state}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Return the state of such arrays."""
        return np.array(sections["rows"])


class RowHashFold:
    """A `Fold` that makes 128 bits of all rows: equal for the same rows in any order.

    Tables of the same columns with equal fingerprints hold the same rows as often each, but for one
    pair of tables in 2^128.
    """

    name = "row hashes"

    def init(self, schema: "pa.Schema") -> NDArray[np.uint64]:
        """Return the state before any row."""
        return np.zeros(3, np.uint64)

    def update(self, state: NDArray[np.uint64], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        hashes = columns_of(batch).row_hashes()
        again = hashes + np.uint64(1)
        scramble(again)
        # Sums wrap, and do not depend on the order.
        state += np.array([hashes.sum(), again.sum(), len(batch)], np.uint64)

    def merge(self, state: NDArray[np.uint64], later: NDArray[np.uint64]) -> None:
        """Take in the state of rows that come later."""
        state += later

    def finish(self, state: NDArray[np.uint64]) -> str:
        """Return the fingerprint: 32 hexadecimal digits, and the number of rows."""
        return f"{int(state[0]):016x}{int(state[1]):016x}-{int(state[2])}"

    def sections(self, state: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {"sums": state}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> NDArray[np.uint64]:
        """Return the state of such arrays."""
        return np.array(sections["sums"])


@dataclass(frozen=True, slots=True)
class CovarianceFold:
    """A `Fold` of covariances; rows without a number in one of the columns are left out.

    Attributes:
        columns: names; empty for all that are numbers.
    """

    columns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"covariance of {', '.join(self.columns)}" if self.columns else "covariance"

    def _names(self, schema: "pa.Schema") -> list[str]:
        numbers = [item.name for item in schema if is_number(item.type)]
        if wrong := [name for name in self.columns if name not in numbers]:
            raise ConfigError(
                f"covariance: {wrong[0]!r} is no column of numbers",
                hint=f"columns of numbers are {', '.join(numbers) or 'none'}",
            )
        return list(self.columns) or numbers

    def init(self, schema: "pa.Schema") -> Covariance:
        """Return the state before any row."""
        return Covariance(len(self._names(schema)))

    def update(self, state: Covariance, batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        columns = columns_of(batch)
        places = [batch.schema.get_field_index(name) for name in self._names(batch.schema)]
        numbers = [columns.numbers(place) for place in places]
        # So many rows that their copies stay in the processor's cache, column after column.
        for first in range(0, len(batch), _BLOCK):
            state.update(np.stack([item[first : first + _BLOCK] for item in numbers]).T)

    def merge(self, state: Covariance, later: Covariance) -> None:
        """Take in the state of rows that come later."""
        state.merge(later)

    def finish(self, state: Covariance) -> Covariance:
        """Return the sketch; its columns are in the order of `columns`, or of the table."""
        return state

    def sections(self, state: Covariance) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return state.sections()

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> Covariance:
        """Return the state of such arrays."""
        return Covariance.of(sections)
