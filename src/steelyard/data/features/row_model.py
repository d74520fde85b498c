"""What was made of a table's rows, in a file, and applied to others: clusters and detectors."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.inputs import FeatureInputs
from steelyard.data.pack import Pack, write_pack
from steelyard.data.table.columns import is_text
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["FittedRows", "RowModel", "kind_of_model"]

_VERSION = 1
_FITTED = "fitted/"


class FittedRows(Protocol):
    """What was made of rows; it is kept as arrays and plain values."""

    kind: ClassVar[str]
    """What files call it."""

    def schema(self) -> "pa.Schema":
        """Return the columns of `applied`."""
        ...

    def applied(
        self, whole: NDArray[np.float32], rows: NDArray[np.float32], inputs: FeatureInputs
    ) -> "pa.RecordBatch":
        """Return what is said of rows.

        Args:
            whole: features before they were made narrower [N, D].
            rows: features as they were when this was made [N, K].
            inputs: how rows became features.

        Returns:
            A batch with the columns of `schema`.
        """
        ...

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        ...

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        ...

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> "FittedRows":
        """Return what such values and arrays were made of."""
        ...


def kind_of_model(path: Path) -> str:
    """Return what a model's file is: "table-model" of learners, "row-model" of rows.

    Args:
        path: the file.

    Returns:
        The kind; empty where the file is a pack of another sort.

    Raises:
        DataError: the file is no pack, or damaged.
    """
    try:
        pack = Pack.open(path)
    except DataError as error:
        raise DataError(
            f"{path} is no model: {error}", hint="fit one: steelyard data table fit"
        ) from error
    told = json.loads(pack["about"].tobytes()) if "about" in pack.names else {}
    return str(told.get("kind", "")) if isinstance(told, dict) else ""


@dataclass(frozen=True, kw_only=True)
class RowModel:
    """Clusters or a detector with the columns that it wants.

    Attributes:
        inputs: what columns become.
        fitted: what is said of rows.
        about: plain values that are kept beside it.
    """

    known: ClassVar[Mapping[str, type[FittedRows]]] = {}
    """What files may hold, by kind."""
    inputs: FeatureInputs
    fitted: FittedRows
    about: dict[str, Any] = field(default_factory=dict)

    def schema(self) -> "pa.Schema":
        """Return the columns of what is said of rows."""
        return self.fitted.schema()

    def predict(self, table: "DataTable") -> "Iterator[pa.RecordBatch]":
        """Say of the rows of a table what the model says.

        Args:
            table: has the columns that the model was made of.

        Returns:
            Batches in the order of the rows.

        Raises:
            DataError: a file lacks a column, or has text where there were numbers, or the reverse.
        """
        self._check(table)
        return self._applied(table)

    def _applied(self, table: "DataTable") -> "Iterator[pa.RecordBatch]":
        """Return what is said of rows, batch by batch."""
        for batch in table.batches:
            whole = self.inputs.encoder.encode(batch)
            reducer = self.inputs.reducer
            rows = whole if reducer is None else reducer.apply(whole).astype(np.float32)
            yield self.fitted.applied(whole, rows, self.inputs)

    def _check(self, table: "DataTable") -> None:
        """Refuse a table of other columns: what counts as missing there would be no answer."""
        names = table.schema.names
        for column in self.inputs.encoder.columns:
            lacking = [item.path for item in table.files if column.name not in item.columns]
            if lacking or column.name not in names:
                where = lacking[0] if lacking else "the table"
                raise DataError(
                    f"{where} has no column {column.name!r}, which the model was made of",
                    hint=f"give one with the columns {', '.join(self.inputs.names)}",
                )
            if column.is_text != is_text(table.schema.field(column.name).type):
                where = table.files[0].path if table.files else "the table"
                given, wanted = ("numbers", "text") if column.is_text else ("text", "numbers")
                raise DataError(
                    f"column {column.name!r} of {where} is {given}, the model was made of {wanted}",
                    hint=f'say what it is: --types "{column.name}={wanted.removesuffix("s")}"',
                )

    def save(self, path: Path) -> None:
        """Write the model to a file.

        Args:
            path: the file; an older one is replaced at the end.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        told = {
            "version": _VERSION,
            "kind": "row-model",
            "fitted": self.fitted.kind,
            "made": self.fitted.about(),
            "about": self.about,
        } | self.inputs.about()
        own = {_FITTED + name: values for name, values in self.fitted.sections().items()}
        head = {"about": np.frombuffer(json.dumps(told).encode(), np.uint8)}
        write_pack(path, head | own | self.inputs.sections())

    @classmethod
    def open(cls, path: Path, known: Mapping[str, type[FittedRows]] | None = None) -> "RowModel":
        """Read a model.

        Args:
            path: file of `save`.
            known: what it may hold, by kind; None for `known` of the class.

        Returns:
            The model.

        Raises:
            DataError: the file is no such model, of another version, or damaged (the section is
                named).
        """
        known, pack = cls.known if known is None else known, Pack.open(path)
        told = json.loads(pack["about"].tobytes()) if "about" in pack.names else {}
        if told.get("kind") != "row-model" or told.get("fitted") not in known:
            raise DataError(
                f"{path} is no model of {' or '.join(known)}",
                hint="make one: steelyard data table cluster or detect with --model",
            )
        if told["version"] != _VERSION:
            raise DataError(f"{path} is of version {told['version']}, this reads {_VERSION}")
        sections = {name: pack[name] for name in pack.names if name != "about"}
        parts = ((name.removeprefix(_FITTED), name) for name in sections)
        own = {short: sections[name] for short, name in parts if short != name}
        return cls(
            inputs=FeatureInputs.restored(told, sections),
            fitted=known[told["fitted"]].restored(told["made"], own),
            about=told["about"],
        )
