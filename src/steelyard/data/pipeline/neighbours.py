"""Missing numbers filled from other columns: by rows that are near, or by ridge regressions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.step import (
    ColumnStep,
    as_array,
    number_rows,
    with_columns,
    with_fields,
)
from steelyard.data.sketch.hashing import hash_integers
from steelyard.data.table.fitting import ROW
from steelyard.data.table.row_folds import CovarianceFold
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = [
    "KnnImpute",
    "NearestRows",
    "RegressedColumns",
    "RidgeImpute",
    "RowSample",
    "RowSampleFold",
]

_ROWS_AT_ONCE = 2048
_ROUNDS = 20


@dataclass(slots=True)
class RowSample:
    """Rows with the smallest hashes of their numbers.

    Attributes:
        hashes: ascending [N].
        rows: their values [N, columns].
    """

    hashes: NDArray[np.uint64]
    rows: NDArray[np.float64]

    def take(self, hashes: NDArray[np.uint64], rows: NDArray[np.float64], size: int) -> None:
        """Add rows, and keep those with the smallest hashes."""
        every = np.concatenate([self.hashes, hashes])
        order = np.argsort(every, kind="stable")[:size]
        self.hashes, self.rows = every[order], np.concatenate([self.rows, rows])[order]


@dataclass(frozen=True, slots=True)
class RowSampleFold:
    """A `Fold` of a sample of rows: those with the smallest hashes of their row numbers.

    Attributes:
        columns: columns of numbers.
        size: rows that are kept.
    """

    columns: tuple[str, ...]
    size: int

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"sample of {self.size} rows of {', '.join(self.columns)}"

    def init(self, schema: "pa.Schema") -> RowSample:
        """Return the state before any row."""
        return RowSample(np.zeros(0, np.uint64), np.zeros((0, len(self.columns))))

    def update(self, state: RowSample, batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        hashes = hash_integers(np.asarray(batch[ROW]))
        rows = np.arange(len(hashes))
        if len(state.hashes) == self.size:
            rows = np.flatnonzero(hashes < state.hashes[-1])
        state.take(hashes[rows], number_rows(batch, self.columns)[rows], self.size)

    def merge(self, state: RowSample, later: RowSample) -> None:
        """Take in the state of rows that come later."""
        state.take(later.hashes, later.rows, self.size)

    def finish(self, state: RowSample) -> RowSample:
        """Return the sample."""
        return state

    def sections(self, state: RowSample) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {"hashes": state.hashes, "rows": state.rows}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> RowSample:
        """Return the state of such arrays."""
        return RowSample(np.array(sections["hashes"]), np.array(sections["rows"]))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Refilled:
    """What fitted steps share that fill gaps of a row from its other numbers."""

    columns: tuple[str, ...]

    def schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Return the columns after the step: floats."""
        import pyarrow as pa

        return with_fields(schema, dict.fromkeys(self.columns, pa.float64()))

    def filled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows [N, columns] without gaps where they can be filled."""
        raise NotImplementedError

    def transform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return the batch after the step."""
        rows = number_rows(batch, self.columns)
        wanting = np.flatnonzero(np.isnan(rows).any(axis=1))
        for first in range(0, len(wanting), _ROWS_AT_ONCE):
            own = wanting[first : first + _ROWS_AT_ONCE]
            rows[own] = self.filled(rows[own])
        changed = {name: as_array(rows[:, at]) for at, name in enumerate(self.columns)}
        return with_columns(batch, changed)


@dataclass(frozen=True, eq=False, kw_only=True)
class NearestRows(_Refilled):
    """Gaps filled with the mean of the nearest rows of a sample.

    Attributes:
        columns: the columns D.
        sample: rows of the training table [S, D].
        spreads: what distances along each column are divided by [D].
        neighbours: how many rows count.
        warnings: columns that have no values.
    """

    sample: NDArray[np.float64]
    spreads: NDArray[np.float64]
    neighbours: int
    warnings: tuple[str, ...] = ()

    def filled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows [N, D] without gaps where some row of the sample has a value."""
        apart = self._distances(rows)
        made = rows.copy()
        for at in range(len(self.columns)):
            wanting = np.flatnonzero(np.isnan(rows[:, at]))
            known = np.flatnonzero(np.isfinite(self.sample[:, at]))
            if not (len(wanting) and len(known)):
                continue
            own = apart[np.ix_(wanting, known)]
            nearest = np.argsort(own, axis=1, kind="stable")[:, : self.neighbours]
            made[wanting, at] = self.sample[known, at][nearest].mean(axis=1)
        return made

    def _distances(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return mean squared distances [N, S] over columns that both have; else infinite."""
        left, right = rows / self.spreads, self.sample / self.spreads
        has, other = np.isfinite(left), np.isfinite(right)
        left, right = np.where(has, left, 0.0), np.where(other, right, 0.0)
        both = has.astype(float) @ other.T
        squares = (left**2) @ other.T - 2 * left @ right.T + has @ (right**2).T
        return np.where(both > 0, np.maximum(squares, 0) / np.maximum(both, 1), np.inf)


@dataclass(frozen=True, kw_only=True)
class KnnImpute(ColumnStep):
    """Fills a gap with the mean of the nearest rows of a sample that have a value there.

    Rows are near by the columns that both have, each divided by its deviation.

    Attributes:
        columns: names; empty for all numbers.
        neighbours: rows whose mean is taken.
        sample: rows that are kept to look among.

    Source: Troyanskaya et al. 2001, "Missing value estimation methods for DNA microarrays".
    """

    neighbours: int = 5
    sample: int = 1024
    _needs_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: no neighbour, or more than there are rows in the sample.
        """
        if not 1 <= self.neighbours <= self.sample <= 1 << 16:
            raise ConfigError(
                f"{self.neighbours} neighbours among {self.sample} rows",
                hint="give 1 to as many as the sample has, which is of 65,536 at most",
            )

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return a sample of rows."""
        return (RowSampleFold(tuple(columns), self.sample),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> NearestRows:
        """Return the sample."""
        rows = results[self.folds(columns)[0].name].rows
        known = np.where(np.isfinite(rows), rows, np.nan)
        has = np.isfinite(known).sum(axis=0)
        if not has.any():
            raise DataError("KnnImpute: no column has a value")
        means = np.nansum(known, axis=0) / np.maximum(has, 1)
        spreads = np.sqrt(np.nansum((known - means) ** 2, axis=0) / np.maximum(has, 1))
        odd = [name for name, count in zip(columns, has.tolist(), strict=True) if not count]
        return NearestRows(
            columns=tuple(columns),
            sample=rows,
            spreads=np.where(spreads > 0, spreads, 1.0),
            neighbours=self.neighbours,
            warnings=tuple(f"column {name} has no values in the sample" for name in odd),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressedColumns(_Refilled):
    """Gaps filled with what the other columns predict, until that does not change.

    Attributes:
        columns: the columns D.
        means: their means [D].
        slopes: column j from the others: row j, 0 at j [D, D].
    """

    means: NDArray[np.float64]
    slopes: NDArray[np.float64]

    def filled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows [N, D] without gaps."""
        gaps = np.isnan(rows)
        # A row with an infinite value predicts nothing.
        apart = np.where(np.isfinite(rows), rows - self.means, 0.0)
        for _ in range(_ROUNDS):
            for at in np.flatnonzero(gaps.any(axis=0)).tolist():
                own = gaps[:, at]
                apart[own, at] = apart[own] @ self.slopes[at]
        return np.where(gaps, apart + self.means, rows)


@dataclass(frozen=True, kw_only=True)
class RidgeImpute(ColumnStep):
    """Fills gaps by ridge regressions of each column on the others, again and again.

    Regressions follow from one pass: means and covariances of rows without gaps.

    Attributes:
        columns: names; empty for all numbers.
        strength: ridge over the variance of a column.

    Source: van Buuren and Groothuis-Oudshoorn 2011, "mice: Multivariate imputation by chained
        equations in R", with the mean in the place of draws.
    """

    strength: float = 1e-3

    def __post_init__(self) -> None:
        """Refuse a negative ridge.

        Raises:
            ConfigError: it is not above 0.
        """
        if not self.strength > 0:
            raise ConfigError(f"a ridge of {self.strength:g}, but it must be above 0")

    def folds(self, columns: Sequence[str]) -> "Sequence[Fold[Any]]":
        """Return covariances."""
        return (CovarianceFold(tuple(columns)),)

    def fitted(
        self, columns: Sequence[str], schema: "pa.Schema", results: Mapping[str, Any]
    ) -> RegressedColumns:
        """Return the regressions.

        Args:
            columns: the columns.
            schema: columns of the table.
            results: covariances.

        Returns:
            The step.

        Raises:
            DataError: fewer than two rows have no gaps.
        """
        found = results[self.folds(columns)[0].name]
        if found.count < 2:
            raise DataError(
                f"RidgeImpute: {found.count} rows have no gap in {len(columns)} columns",
                hint="leave out the columns with most gaps, or fill by KnnImpute",
            )
        spreads = np.sqrt(np.diag(found.matrix))
        spreads = np.where(spreads > 0, spreads, 1.0)
        alike = found.matrix / np.outer(spreads, spreads)
        slopes = np.zeros_like(alike)
        for at in range(len(columns)):
            others = np.delete(np.arange(len(columns)), at)
            if len(others):
                square = alike[np.ix_(others, others)] + self.strength * np.eye(len(others))
                slopes[at, others] = np.linalg.solve(square, alike[others, at])
        # Slopes of standardized columns, back in their own units.
        slopes *= spreads[:, None] / spreads[None, :]
        return RegressedColumns(columns=tuple(columns), means=found.mean.copy(), slopes=slopes)
