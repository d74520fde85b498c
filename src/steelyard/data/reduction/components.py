"""Directions of largest variance, and rows along them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import Covariance
from steelyard.data.table.columns import columns_of
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FittedPCA"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedPCA:
    """Directions of largest variance, which take the place of the columns they are made of.

    Attributes:
        columns: the columns D.
        mean: their means [D].
        components: unit vectors, the largest variance first [K, D]; the largest entry of each is
            positive, so that signs do not depend on the machine.
        variances: variance along each [K].
        shares: share of all variance that each explains [K].
        prefix: begins the names of the new columns.
    """

    columns: tuple[str, ...]
    mean: NDArray[np.float64]
    components: NDArray[np.float64]
    variances: NDArray[np.float64]
    shares: NDArray[np.float64]
    prefix: str = "pc"

    @classmethod
    def of(
        cls, covariance: Covariance, columns: Sequence[str], size: int, prefix: str = "pc"
    ) -> "FittedPCA":
        """Find the directions.

        Args:
            covariance: of the columns.
            columns: their names.
            size: directions K that are kept, at most as many as columns.
            prefix: begins the names of the new columns.

        Returns:
            The directions.

        Raises:
            DataError: fewer than two rows are whole.

        Source: Pearson 1901; eigenvectors of the covariance matrix.
        """
        if covariance.count < 2:
            raise DataError(
                f"{covariance.count} rows have a number in all of {len(columns)} columns, and "
                "components need two",
                hint="fill missing values before, or leave columns out",
            )
        variances, vectors = np.linalg.eigh(covariance.matrix)
        order = np.argsort(-variances, kind="stable")[:size]
        kept = vectors[:, order].T
        largest = kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)]
        total = max(float(variances.clip(0).sum()), np.finfo(float).tiny)
        return cls(
            columns=tuple(columns),
            mean=covariance.mean.copy(),
            components=kept * np.where(largest < 0, -1.0, 1.0)[:, None],
            variances=variances[order].clip(0),
            shares=variances[order].clip(0) / total,
            prefix=prefix,
        )

    def project(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows [N, D] along the directions [N, K]; NaN where a row has a gap."""
        return (rows - self.mean) @ self.components.T

    def residual(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squared distance of rows [N, D] from the space of the directions [N]."""
        apart = rows - self.mean
        along = apart @ self.components.T
        return np.maximum((apart**2).sum(axis=1) - (along**2).sum(axis=1), 0.0)

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns that a table has after it: the others, then the new ones."""
        import pyarrow as pa

        kept = [item for item in schema if item.name not in self.columns]
        made = [
            pa.field(f"{self.prefix}{place + 1}", pa.float64())
            for place in range(len(self.components))
        ]
        return pa.schema([*kept, *made])

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return a batch with components in place of its columns; missing where one is."""
        import pyarrow as pa

        columns = columns_of(batch)
        places = [batch.schema.get_field_index(name) for name in self.columns]
        made = self.project(np.stack([columns.numbers(place) for place in places], axis=1))
        kept = [batch[item.name] for item in batch.schema if item.name not in self.columns]
        new = [pa.array(values, from_pandas=True) for values in made.T]
        return pa.RecordBatch.from_arrays([*kept, *new], schema=self.schema(batch.schema))
