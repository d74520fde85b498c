"""Columns that are left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from steelyard.data.pipeline.step import ColumnStep, with_columns, with_fields
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Drop", "DroppedColumns"]


@dataclass(frozen=True, eq=False, kw_only=True)
class DroppedColumns:
    """Columns that go.

    Attributes:
        columns: their names.
    """

    columns: tuple[str, ...]

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step."""
        return with_fields(schema, {}, self.columns)

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step."""
        return with_columns(batch, {}, self.columns)


@dataclass(frozen=True, kw_only=True)
class Drop(ColumnStep):
    """Leaves columns out, such as a key.

    Attributes:
        columns: names.
    """

    _adds: ClassVar[bool] = True
    wants: ClassVar[str] = "any kind"

    def __post_init__(self) -> None:
        """Refuse to drop all.

        Raises:
            ConfigError: no column is named.
        """
        if not self.columns:
            raise ConfigError("a step that drops columns has to name them")

    def fits(self, kind: "pa.DataType") -> bool:
        """Return true: every column can go."""
        return True

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> DroppedColumns:
        """Return the step; it learns nothing."""
        return DroppedColumns(columns=tuple(columns))
