"""A Fold of values that are no finite number: how many are missing, and how many infinite."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.table.columns import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OddNumbersFold"]


@dataclass(frozen=True, slots=True)
class OddNumbersFold:
    """A `Fold` of what columns hold in place of finite numbers.

    Attributes:
        columns: names of columns that can be turned into numbers.
    """

    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"odd numbers of {', '.join(self.columns)}"

    def init(self, schema: "pa.Schema") -> NDArray[np.int64]:
        """Return the state before any row: missing and infinite ones by column."""
        return np.zeros((len(self.columns), 2), np.int64)

    def update(self, state: NDArray[np.int64], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        columns = columns_of(batch)
        for at, name in enumerate(self.columns):
            values = columns.numbers(batch.schema.get_field_index(name))
            # One value that is not finite makes the sum so; most columns have none.
            with np.errstate(invalid="ignore", over="ignore"):
                if np.isfinite(values.sum()):
                    continue
            state[at, 0] += np.count_nonzero(np.isnan(values))
            state[at, 1] += np.count_nonzero(np.isinf(values))

    def merge(self, state: NDArray[np.int64], later: NDArray[np.int64]) -> None:
        """Take in the state of rows that come later."""
        state += later

    def finish(self, state: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
        """Return missing and infinite values by column."""
        return {
            name: (int(missing), int(infinite))
            for name, (missing, infinite) in zip(self.columns, state.tolist(), strict=True)
        }

    def sections(self, state: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {"counts": state}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Return the state of such arrays."""
        return np.array(sections["counts"])
