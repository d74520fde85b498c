"""What a step of a pipeline is: what it learns in one pass, and what it then makes of a batch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.table.columns import columns_of, is_number
from steelyard.data.table.fitting import ROW
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = [
    "ColumnStep",
    "FittedStep",
    "PipelineStep",
    "RejectedRows",
    "as_array",
    "number_rows",
    "with_columns",
    "with_fields",
]


class RejectedRows(NamedTuple):
    """Rows that a step sets aside.

    Attributes:
        rows: their places in the batch, ascending [R].
        column: the column that is wrong; empty where the whole row is.
        values: text of what is wrong, [R].
        reason: why they are set aside.
    """

    rows: NDArray[np.int64]
    column: str
    values: list[str]
    reason: str


class FittedStep(Protocol):
    """What a step makes of batches once it knows what it had to learn.

    It is a dataclass of arrays and plain values, which is how it is written to files. One that
    reads more than its columns of training rows names those in `others`; one that sets rows aside
    has `reject(batch)`, which returns a list of `RejectedRows`, and `is_for_training` where it does
    so for the rows alone that it was fitted on; one that makes something else of those has
    `transform_training(batch)`.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads and changes."""
        ...

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step."""
        ...

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step; its columns are those of `schema`."""
        ...


class PipelineStep(Protocol):
    """A step before it has seen rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names; empty for all that it can be applied to."""
        ...

    @property
    def adds(self) -> bool:
        """Whether columns come or go, or become columns of another kind."""
        ...

    @property
    def rejects(self) -> bool:
        """Whether rows are set aside."""
        ...

    @property
    def needs_rows(self) -> bool:
        """Whether it reads the column of row numbers, `ROW`."""
        ...

    def resolved(self, schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns that it changes, in a table of these columns."""
        ...

    def reads(self, columns: Sequence[str], schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns whose values it needs."""
        ...

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return what one pass has to find out; nothing for a step that learns nothing."""
        ...

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> FittedStep:
        """Return the step as learned; `results` are those of its folds, by name."""
        ...


@dataclass(frozen=True, kw_only=True)
class ColumnStep:
    """What steps on columns of one kind share; see `PipelineStep`.

    Attributes:
        columns: names; empty for all of the kind.
    """

    columns: tuple[str, ...] = ()
    _adds: ClassVar[bool] = False
    _rejects: ClassVar[bool] = False
    _needs_rows: ClassVar[bool] = False
    wants: ClassVar[str] = "numbers"

    @property
    def adds(self) -> bool:
        """Whether columns come or go, or become columns of another kind."""
        return self._adds

    @property
    def rejects(self) -> bool:
        """Whether rows are set aside."""
        return self._rejects

    @property
    def needs_rows(self) -> bool:
        """Whether it reads the column of row numbers, `ROW`."""
        return self._needs_rows

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether columns of a type are of the kind."""
        return is_number(kind)

    def resolved(self, schema: "pa.Schema") -> tuple[str, ...]:
        """Return its columns in a table.

        Args:
            schema: columns of the table.

        Returns:
            Names, those given or all that fit.

        Raises:
            ConfigError: there is none, or one that was named is missing or of another kind.
        """
        fitting = [item.name for item in schema if item.name != ROW and self.fits(item.type)]
        told = type(self).__name__
        if missing := [name for name in self.columns if name not in schema.names]:
            names = [name for name in schema.names if name != ROW]
            raise ConfigError(
                f"{told}: no column {missing[0]!r}", hint=f"columns are {', '.join(names)}"
            )
        if wrong := [name for name in self.columns if name not in fitting]:
            raise ConfigError(
                f"{told}: column {wrong[0]!r} is {schema.field(wrong[0]).type}, and the step is "
                f"for columns of {self.wants}",
                hint=f"such columns are {', '.join(fitting) or 'none'}",
            )
        if not fitting:
            raise ConfigError(f"{told}: the table has no columns of {self.wants}")
        return self.columns or tuple(fitting)

    def reads(self, columns: Sequence[str], schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns whose values it needs."""
        return tuple(columns)

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return what one pass has to find out: nothing."""
        return ()


def number_rows(batch: "pa.RecordBatch", names: Sequence[str]) -> NDArray[np.float64]:
    """Return columns as floats, NaN where a value is missing [rows, columns]."""
    columns = columns_of(batch)
    places = [batch.schema.get_field_index(name) for name in names]
    return np.stack([columns.numbers(place) for place in places], axis=1)


def as_array(values: NDArray[np.float64]) -> "pa.Array":
    """Return floats as an Arrow array, missing where they are NaN."""
    import pyarrow as pa

    return pa.array(values, pa.float64(), from_pandas=True)


def with_columns(
    batch: "pa.RecordBatch", changed: "Mapping[str, pa.Array]", removed: Iterable[str] = ()
) -> "pa.RecordBatch":
    """Return a batch with some columns replaced in their places, new ones last.

    Args:
        batch: the rows.
        changed: arrays by name.
        removed: columns that go.

    Returns:
        The batch.
    """
    import pyarrow as pa

    gone = set(removed)
    found = {
        name: changed.get(name, values)
        for name, values in zip(batch.schema.names, batch.columns, strict=True)
        if name not in gone
    }
    found |= changed
    return pa.RecordBatch.from_arrays(list(found.values()), list(found))


def with_fields(
    schema: "pa.Schema", changed: "Mapping[str, pa.DataType]", removed: Iterable[str] = ()
) -> "pa.Schema":
    """Return columns as `with_columns` leaves them."""
    import pyarrow as pa

    gone = set(removed)
    found = {
        item.name: changed.get(item.name, item.type) for item in schema if item.name not in gone
    }
    found |= changed
    return pa.schema([pa.field(name, kind) for name, kind in found.items()])
