"""A step that replaces columns of numbers by their principal components."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features import PrincipalComponents
from steelyard.data.table.columns import columns_of, is_number
from steelyard.data.table.fitting import ROW
from steelyard.data.table.row_folds import CovarianceFold
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PCA", "ComponentColumns"]

_MOST_COLUMNS = 5000
"""Columns beyond which the matrix of covariances takes more than 200 MB."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ComponentColumns:
    """Directions of largest variance, which take the place of the columns they are made of.

    Attributes:
        columns: the columns D.
        mean: their means [D].
        directions: unit vectors, the largest variance first [K, D].
        variances: variance along each [K].
        total: variance along all directions there are.
        prefix: begins the names of the new columns.
    """

    columns: tuple[str, ...]
    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    variances: NDArray[np.float64]
    total: float
    prefix: str = "pc"

    @property
    def components(self) -> PrincipalComponents:
        """The directions without names."""
        return PrincipalComponents(
            mean=self.mean, directions=self.directions, variances=self.variances, total=self.total
        )

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns that a table has after it: the others, then the new ones."""
        import pyarrow as pa

        kept = [item for item in schema if item.name not in self.columns]
        made = [
            pa.field(f"{self.prefix}{place + 1}", pa.float64())
            for place in range(len(self.directions))
        ]
        return pa.schema([*kept, *made])

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return a batch with components in place of its columns; missing where one is."""
        import pyarrow as pa

        columns = columns_of(batch)
        places = [batch.schema.get_field_index(name) for name in self.columns]
        rows = np.stack([columns.numbers(place) for place in places], axis=1)
        made = self.components.apply(rows)
        kept = [batch[item.name] for item in batch.schema if item.name not in self.columns]
        new = [pa.array(values, from_pandas=True) for values in made.T]
        return pa.RecordBatch.from_arrays([*kept, *new], schema=self.schema(batch.schema))


def _can_vary(item: "pa.Field") -> bool:
    """Return whether a column is one of numbers that say something of a row."""
    return is_number(item.type) and item.name != ROW


@dataclass(frozen=True, kw_only=True)
class PCA:
    """A step of a pipeline that replaces columns of numbers by their principal components.

    Attributes:
        size: components that are kept.
        columns: names; empty for all numbers.
        prefix: begins the names of the new columns.
    """

    size: int
    columns: tuple[str, ...] = ()
    prefix: str = "pc"

    def __post_init__(self) -> None:
        """Refuse no components.

        Raises:
            ConfigError: there are none.
        """
        if self.size < 1:
            raise ConfigError(f"{self.size} components, but it must be 1 or more")

    @property
    def adds(self) -> bool:
        """Whether columns come or go: they do."""
        return True

    @property
    def rejects(self) -> bool:
        """Whether rows are set aside: none are."""
        return False

    @property
    def needs_rows(self) -> bool:
        """Whether it reads the numbers of rows: it does not."""
        return False

    def resolved(self, schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns that it reads.

        Args:
            schema: columns of the table.

        Returns:
            Names.

        Raises:
            ConfigError: too few or too many columns of numbers.
        """
        names = self.columns or tuple(item.name for item in schema if _can_vary(item))
        if not self.size <= len(names) <= _MOST_COLUMNS:
            raise ConfigError(
                f"{self.size} components of {len(names)} columns",
                hint=f"keep at most as many as there are columns, of {_MOST_COLUMNS} at most",
            )
        return names

    def reads(self, columns: Sequence[str], schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns whose values it needs."""
        return tuple(columns)

    def folds(self, columns: Sequence[str]) -> list[Any]:
        """Return what one pass adds up for it."""
        return [CovarianceFold(tuple(columns))]

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> ComponentColumns:
        """Return the directions of what a pass found."""
        found = results[CovarianceFold(tuple(columns)).name]
        if found.count < 2:
            raise DataError(
                f"{found.count} rows have a number in all of {len(columns)} columns, and "
                "components need two",
                hint="fill missing values before, or leave columns out",
            )
        made = PrincipalComponents.of(found, self.size)
        return ComponentColumns(
            columns=tuple(columns),
            mean=made.mean.copy(),
            directions=made.directions,
            variances=made.variances,
            total=made.total,
            prefix=self.prefix,
        )
