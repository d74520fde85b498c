"""Principal components of a table of any length, from covariances that one pass adds up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.data.reduction.components import FittedPCA
from steelyard.data.table.columns import is_number
from steelyard.data.table.fitting import ROW
from steelyard.data.table.row_folds import CovarianceFold
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PCA"]

_MOST_COLUMNS = 5000
"""Columns beyond which the matrix of covariances takes more than 200 MB."""


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
    ) -> FittedPCA:
        """Return the directions of what a pass found."""
        found = results[CovarianceFold(tuple(columns)).name]
        return FittedPCA.of(found, columns, self.size, self.prefix)
