"""What folding needs of a table."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from steelyard.data.table.partitions import TableFile, TablePart
from steelyard.data.table.quarantine import Quarantine
from steelyard.data.table.reading import ReadLimits

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FoldableTable"]


class FoldableTable(Protocol):
    """What folding needs of a table: its files, its parts, and their rows."""

    @property
    def schema(self) -> "pa.Schema":
        """Columns with their types."""
        ...

    @property
    def files(self) -> Sequence[TableFile]:
        """The files."""
        ...

    @property
    def partitions(self) -> Sequence[TablePart]:
        """Parts that are read at once."""
        ...

    @property
    def limits(self) -> ReadLimits:
        """How much is read at once."""
        ...

    @property
    def steps(self) -> Sequence[Any]:
        """What is done to each batch."""
        ...

    def read(self, partition: TablePart, quarantine: Quarantine) -> "Iterator[pa.RecordBatch]":
        """Read a part."""
        ...

    def with_limits(self, limits: ReadLimits) -> "FoldableTable":
        """Return the table whose batches are bounded so."""
        ...
