"""Features of a table's rows, narrower ones if wanted, as learners and detectors see them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.encoder import FeatureEncoder
from steelyard.data.features.reducing import REDUCTIONS, FeatureReducer, directions_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FeatureInputs"]


@dataclass(frozen=True, kw_only=True)
class FeatureInputs:
    """Features of columns.

    Attributes:
        encoder: how columns become features.
        reducer: what makes them narrower; None for nothing.
    """

    needs: ClassVar[Literal["codes", "features"]] = "features"
    encoder: FeatureEncoder
    reducer: FeatureReducer | None = None

    @property
    def names(self) -> list[str]:
        """Columns that are used."""
        return self.encoder.names

    @property
    def count(self) -> int:
        """Features of a row, as learners see them."""
        return self.encoder.width if self.reducer is None else len(directions_of(self.reducer))

    def encode(self, batch: "pa.RecordBatch") -> NDArray[Any]:
        """Return features float32 [N, K]."""
        found = self.encoder.encode(batch)
        return found if self.reducer is None else self.reducer.apply(found).astype(np.float32)

    def shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what features count, by column."""
        own = weights if self.reducer is None else np.abs(directions_of(self.reducer)).T @ weights
        found = self.encoder.by_column(own)
        return found / max(float(found.sum()), 1e-300)

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        kind = next((k for k, one in REDUCTIONS.items() if isinstance(self.reducer, one)), "")
        return {"columns": self.encoder.about(), "reduce": kind}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        found = self.encoder.sections()
        if self.reducer is not None:
            found |= {f"reduce/{name}": part for name, part in self.reducer.sections().items()}
        return found

    @classmethod
    def restored(
        cls, about: Mapping[str, Any], sections: dict[str, NDArray[Any]]
    ) -> "FeatureInputs":
        """Return the inputs of values and arrays."""
        encoder, reducer = FeatureEncoder.restored(about["columns"], sections), None
        if about["reduce"]:
            own = {
                name.removeprefix("reduce/"): part
                for name, part in sections.items()
                if name.startswith("reduce/")
            }
            reducer = REDUCTIONS[about["reduce"]].restored(own)
        return cls(encoder=encoder, reducer=reducer)
