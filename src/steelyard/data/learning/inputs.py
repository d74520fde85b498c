"""What a learner is given of a table: codes of columns, or features, narrower ones if wanted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.inputs import FeatureInputs
from steelyard.data.learning.bins import FeatureBins
from steelyard.data.learning.learners import Needs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["INPUTS", "CodeInputs", "FeatureInputs", "TableInputs"]


class TableInputs(Protocol):
    """What batches of a table become before a learner scores them."""

    needs: ClassVar[Needs]

    @property
    def names(self) -> list[str]:
        """Columns that are used."""
        ...

    @property
    def count(self) -> int:
        """Inputs of a row."""
        ...

    def encode(self, batch: "pa.RecordBatch") -> NDArray[Any]:
        """Return the inputs of a batch, as learners take them."""
        ...

    def shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what inputs count, by column, as shares."""
        ...

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        ...

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        ...


@dataclass(frozen=True, kw_only=True)
class CodeInputs:
    """A code for each column.

    Attributes:
        bins: how columns become codes.
    """

    needs: ClassVar[Needs] = "codes"
    bins: list[FeatureBins]

    @property
    def names(self) -> list[str]:
        """Columns that are used."""
        return [column.name for column in self.bins]

    @property
    def count(self) -> int:
        """Codes of a row."""
        return len(self.bins)

    def encode(self, batch: "pa.RecordBatch") -> NDArray[Any]:
        """Return codes uint8 [F, N]."""
        if not self.bins:
            return np.empty((0, len(batch)), np.uint8)
        return np.stack([column.encode(batch) for column in self.bins])

    def shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what inputs count, by column."""
        return weights

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {"columns": [{"name": item.name, "is_text": item.is_text} for item in self.bins]}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {
            f"{place}/{name}": values
            for place, column in enumerate(self.bins)
            for name, values in column.arrays().items()
        }

    @classmethod
    def restored(cls, about: Mapping[str, Any], sections: dict[str, NDArray[Any]]) -> "CodeInputs":
        """Return the inputs of values and arrays."""
        bins = []
        for place, item in enumerate(about["columns"]):
            begins = f"{place}/"
            own = [name for name in sections if name.startswith(begins)]
            arrays = {name.removeprefix(begins): sections[name] for name in own}
            bins.append(FeatureBins.restored(item["name"], arrays, text=item["is_text"]))
        return cls(bins=bins)


INPUTS: dict[str, Any] = {"codes": CodeInputs, "features": FeatureInputs}
"""Inputs by what learners need."""
