"""Missing values filled: with a constant, the mean, the median, or the most frequent value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.pipeline.scaling import SKETCH_SIZE, SKETCH_WHOLE, told_odd
from steelyard.data.pipeline.step import (
    ColumnStep,
    as_array,
    number_rows,
    with_columns,
    with_fields,
)
from steelyard.data.table.columns import is_number, is_text
from steelyard.data.table.folds import frequent, moments, quantiles
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["FilledNumbers", "FilledTexts", "Impute"]


@dataclass(frozen=True, eq=False, kw_only=True)
class FilledNumbers:
    """Numbers with a value where there was none.

    Attributes:
        columns: the columns.
        values: what is put in each; NaN leaves gaps as they are [columns].
        marked: whether columns "NAME.missing" tell where it was put.
        warnings: columns that have no values.
    """

    columns: tuple[str, ...]
    values: NDArray[np.float64]
    marked: bool = False
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: floats, and marks."""
        import pyarrow as pa

        made = dict.fromkeys(self.columns, pa.float64())
        marks = [f"{name}.missing" for name in self.columns] if self.marked else []
        return with_fields(schema, made | dict.fromkeys(marks, pa.int8()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step."""
        import pyarrow as pa

        rows = number_rows(batch, self.columns)
        gaps = np.isnan(rows)
        filled = np.where(gaps, self.values, rows)
        changed = {name: as_array(filled[:, at]) for at, name in enumerate(self.columns)}
        if self.marked:
            marks = gaps.astype(np.int8)
            changed |= {
                f"{name}.missing": pa.array(marks[:, at]) for at, name in enumerate(self.columns)
            }
        return with_columns(batch, changed)


@dataclass(frozen=True, eq=False, kw_only=True)
class FilledTexts:
    """Texts with a value where there was none.

    Attributes:
        columns: the columns.
        values: what is put in each; None leaves gaps as they are.
        marked: whether columns "NAME.missing" tell where it was put.
        warnings: columns that have no values.
    """

    columns: tuple[str, ...]
    values: tuple[str | None, ...]
    marked: bool = False
    warnings: tuple[str, ...] = ()

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step."""
        import pyarrow as pa

        marks = [f"{name}.missing" for name in self.columns] if self.marked else []
        return with_fields(schema, dict.fromkeys(marks, pa.int8()))

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step."""
        import pyarrow as pa

        pc = compute()
        changed = {}
        for name, value in zip(self.columns, self.values, strict=True):
            given = batch[name]
            filled = given if value is None else pc.fill_null(given, pa.scalar(value, given.type))
            changed[name] = filled
            if self.marked:
                changed[f"{name}.missing"] = given.is_null().cast(pa.int8())
        return with_columns(batch, changed)


@dataclass(frozen=True, kw_only=True)
class Impute(ColumnStep):
    """Fills missing values.

    A column without any value is left as it is, and warned of.

    Attributes:
        columns: names; empty for all numbers, or all texts where the method is for texts.
        method: "mean", "median" or "mode" (most frequent) of the training rows, or "constant".
        value: the constant, a number or a text.
        mark: whether columns "NAME.missing" tell where values were missing.
    """

    method: Literal["mean", "median", "mode", "constant"] = "median"
    value: float | str = 0.0
    mark: bool = False
    wants: ClassVar[str] = "numbers, or texts for a mode and a constant text"

    def __post_init__(self) -> None:
        """Refuse other methods.

        Raises:
            ConfigError: there is none of the name.
        """
        if self.method not in ("mean", "median", "mode", "constant"):
            raise ConfigError(f"no filling {self.method!r}: mean, median, mode or constant")

    @property
    def adds(self) -> bool:
        """Whether columns come."""
        return self.mark

    @property
    def _is_text(self) -> bool:
        return self.method == "mode" or (self.method == "constant" and isinstance(self.value, str))

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column can be filled so."""
        return is_text(kind) if self._is_text else is_number(kind)

    def resolved(self, schema: "pa.Schema") -> tuple[str, ...]:
        """Return its columns in a table; a mode is of texts, or of numbers that are named."""
        if self.method == "mode" and self.columns:
            return _Moded(columns=self.columns).resolved(schema)
        return super().resolved(schema)

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return what is asked of the columns."""
        if self.method == "mean":
            return (moments(*columns),)
        if self.method == "median":
            return (quantiles(*columns, k=SKETCH_SIZE, whole=SKETCH_WHOLE),)
        return (frequent(*columns, size=1024),) if self.method == "mode" else ()

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> FilledNumbers | FilledTexts:
        """Return what is put in each column."""
        if self.method == "mode":
            return self._moded(columns, schema, results)
        if self._is_text:
            values = (str(self.value),) * len(columns)
            return FilledTexts(columns=tuple(columns), values=values, marked=self.mark)
        if self.method == "constant":
            numbers = np.full(len(columns), float(self.value))
            return FilledNumbers(columns=tuple(columns), values=numbers, marked=self.mark)
        (fold,) = self.folds(columns)
        found = results[fold.name]
        is_mean = self.method == "mean"
        numbers = np.array(
            [found[name].mean if is_mean else float(found[name].quantile(0.5)) for name in columns]
        )
        odd = [told_odd(name, value, np.inf) for name, value in zip(columns, numbers, strict=True)]
        return FilledNumbers(
            columns=tuple(columns),
            values=numbers,
            marked=self.mark,
            warnings=tuple(line for line in odd if "no values" in line),
        )

    def _moded(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> FilledNumbers | FilledTexts:
        """Return the most frequent value of each column."""
        (fold,) = self.folds(columns)
        most = [results[fold.name][name].entries(1) for name in columns]
        texts = [own[0][0] if own else None for own in most]
        odd = tuple(
            f"column {name} has no values"
            for name, text in zip(columns, texts, strict=True)
            if text is None
        )
        if is_text(schema.field(columns[0]).type):
            return FilledTexts(
                columns=tuple(columns), values=tuple(texts), marked=self.mark, warnings=odd
            )
        words = {"True": 1.0, "False": 0.0}
        numbers = [np.nan if text is None else words.get(text) for text in texts]
        values = [
            float(text) if number is None else number  # pyright: ignore[reportArgumentType]
            for text, number in zip(texts, numbers, strict=True)
        ]
        return FilledNumbers(
            columns=tuple(columns), values=np.array(values), marked=self.mark, warnings=odd
        )


@dataclass(frozen=True, kw_only=True)
class _Moded(ColumnStep):
    """Finds columns of which a mode can be taken: all texts, or all numbers."""

    wants: ClassVar[str] = "numbers or texts"

    def fits(self, kind: "pa.DataType") -> bool:
        """Return whether a column can have a most frequent value."""
        return is_text(kind) or is_number(kind)

    def resolved(self, schema: "pa.Schema") -> tuple[str, ...]:
        """Return the columns, all of one kind."""
        names = super().resolved(schema)
        if len({is_text(schema.field(name).type) for name in names}) > 1:
            raise ConfigError("Impute: columns of texts and of numbers", hint="make it two steps")
        return names
