"""The optimum of every cell of a sweep, ready to be fitted by a law of the optimum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.optimum import Optimum, optimum
from steelyard.laws.fitting.terms import Array

__all__ = ["Optima", "optima"]


@dataclass(frozen=True, slots=True)
class Optima:
    """Optima by cell.

    Attributes:
        x: name of the swept column.
        cells: values of the columns that make the cells, [n] each, sorted.
        found: the optimum of each cell, [n].
        refused: cells without one, each with the reason.
    """

    x: str
    cells: dict[str, Array]
    found: tuple[Optimum, ...]
    refused: tuple[tuple[dict[str, float], str], ...]

    def __len__(self) -> int:
        """Count the cells that have an optimum."""
        return len(self.found)

    @property
    def columns(self) -> dict[str, Array]:
        """Columns of the cells, best values, "least" losses and "sd" of the best values, [n]."""
        own = {self.x: "value", "least": "least", "sd": "sd"}
        return {
            **self.cells,
            **{
                name: np.array([getattr(item, part) for item in self.found])
                for name, part in own.items()
            },
        }

    def weights(self, floor: float = 0.1) -> Array:
        """Return 1 / (sd^2 + floor^2), scaled to mean 1, [n]."""
        # A law of the optimum is itself off by about the floor, in the unit of sd; without it a few
        # cells whose valley happens to be very sharp would decide the fit alone.
        weight = 1 / (self.columns["sd"] ** 2 + floor**2)
        return weight / weight.mean()

    def where(self, rows: ArrayLike) -> "Optima":
        """Keep the cells that a mask [n] or row numbers choose."""
        chosen = np.arange(len(self))[np.asarray(rows)]
        cells = {name: column[chosen] for name, column in self.cells.items()}
        return Optima(self.x, cells, tuple(self.found[row] for row in chosen), self.refused)


def optima(
    table: Mapping[str, ArrayLike],
    x: str,
    target: str,
    by: Sequence[str],
    *,
    same: Sequence[str] = (),
    **options: Any,
) -> Optima:
    """Find the optimum of each cell of a sweep.

    Args:
        table: columns, [n] each.
        x: name of the swept column, such as "learning_rate".
        target: name of the column to be least, such as "loss".
        by: names of the columns whose values make a cell.
        same: names of columns that must have one value in a cell, such as "schedule" or
            "final_fraction"; runs of mixed schedules have no common optimum.
        **options: options of `optimum`; an edge is refused unless `at_edge="keep"`.

    Returns:
        The optima, and the cells that have none with the reason.

    Raises:
        FitError: a column is missing, a cell mixes what must be the same, or no cell has an
            optimum.
    """
    missing = [name for name in (x, target, *by, *same) if name not in table]
    if missing:
        raise FitError(
            f"the table has no column {', '.join(missing)}", hint=f"it has {', '.join(table)}"
        )
    columns = {name: np.asarray(table[name], dtype=np.float64) for name in (x, target, *by)}
    keys = (
        np.stack([columns[name] for name in by], axis=1) if by else np.zeros((len(columns[x]), 1))
    )
    cells, member = np.unique(keys, axis=0, return_inverse=True)
    kept, found, refused = [], [], []
    for index, cell in enumerate(cells):
        rows = member.ravel() == index
        _refuse_mixed(table, same, rows, dict(zip(by, cell.tolist(), strict=True)))
        try:
            found.append(optimum(columns[x][rows], columns[target][rows], **options))
            kept.append(cell)
        except FitError as error:
            refused.append((dict(zip(by, cell.tolist(), strict=True)), str(error)))
    if not found:
        raise FitError(f"none of the {len(cells)} cells has an optimum; the first: {refused[0][1]}")
    values = np.array(kept)
    return Optima(
        x, {name: values[:, index] for index, name in enumerate(by)}, tuple(found), tuple(refused)
    )


def _refuse_mixed(
    table: Mapping[str, ArrayLike],
    same: Sequence[str],
    rows: NDArray[np.bool_],
    cell: dict[str, float],
) -> None:
    """Refuse a cell whose runs differ in more than the swept column."""
    for name in same:
        values = np.unique(np.asarray(table[name])[rows])
        if len(values) > 1:
            where = ", ".join(f"{key} {value:g}" for key, value in cell.items())
            shown = ", ".join(str(value) for value in values[:4])
            raise FitError(
                f"{name} is mixed in the cell {where}: {shown}",
                hint=f"make {name} one of the columns of a cell, or drop runs",
            )
