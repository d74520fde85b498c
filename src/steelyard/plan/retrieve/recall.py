"""Measured recall of indexes: the fewest cells to scan for a goal."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.cost.vector_search.options import SearchPoint
from steelyard.errors import ConfigError, DataError

__all__ = ["RecallRow", "RecallTable"]

_COLUMNS = ("nlist", "opq", "k", "recall_at_k", "min_nprobe")


@dataclass(frozen=True, slots=True)
class RecallRow:
    """What one index needs for one goal.

    Attributes:
        nlist: cells.
        opq: whether vectors are rotated before they are quantized.
        k: neighbours that are returned.
        recall: share of queries whose true nearest vector is among them.
        min_nprobe: fewest cells to scan, None where no number reaches the recall.
    """

    nlist: int
    opq: bool
    k: int
    recall: float
    min_nprobe: int | None


@dataclass(frozen=True)
class RecallTable:
    """Rows of one data set.

    Attributes:
        rows: one per index and goal.
    """

    rows: Sequence[RecallRow]

    @classmethod
    def read(cls, path: Path, *, where: dict[str, str] | None = None) -> "RecallTable":
        """Read a CSV file.

        Args:
            path: file with the columns nlist, opq (0 or 1), k, recall_at_k and min_nprobe (empty
                where the recall is out of reach).
            where: values that other columns must have, such as {"dataset": "SIFT100M"}.

        Returns:
            The rows.

        Raises:
            DataError: the file cannot be read, lacks a column, has no such row, a row holds no
                number, or two rows are of one index and goal; row 1 is the first below the names.
        """
        try:
            with path.open(newline="") as file:
                reader = csv.DictReader(file)
                columns = list(reader.fieldnames or [])
                given = list(reader)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(
                f"cannot read the recalls in {path}: {reason}", hint="give a CSV file"
            ) from error
        lacking = [name for name in (*_COLUMNS, *(where or {})) if name not in columns]
        if lacking:
            raise DataError(
                f"{path} has no column {lacking[0]!r}", hint=f"it has {', '.join(columns)}"
            )
        rows = [
            (_row(values, f"{path} row {number}"), number)
            for number, values in enumerate(given, start=1)
            if all(values[name] == wanted for name, wanted in (where or {}).items())
        ]
        if not rows:
            told = ", ".join(f"{name}={wanted}" for name, wanted in (where or {}).items())
            raise DataError(
                f"{path} has no row{f' with {told}' if told else ''}",
                hint="give values that stand there" if told else "give a row for each index",
            )
        _require_one_set(rows, path)
        return cls([row for row, _ in rows])

    def points(self, num_vectors: int, k: int, recall: float) -> list[SearchPoint]:
        """Return the indexes that reach a goal.

        Args:
            num_vectors: vectors that one accelerator holds.
            k: neighbours that are returned.
            recall: share of queries whose true nearest vector must be among them.

        Returns:
            One point per index, with its fewest cells to scan.

        Raises:
            ConfigError: the goal was not measured, or no index reaches it; the ceiling is named.
        """
        same_k = [row for row in self.rows if row.k == k]
        rows = [row for row in same_k if abs(row.recall - recall) < 1e-9]
        if not rows:
            goals = sorted({(row.k, row.recall) for row in self.rows})
            told = ", ".join(f"{goal:g} of {count}" for count, goal in goals)
            raise ConfigError(f"no index was measured at {recall:g} of {k}", hint=f"goals: {told}")
        reached = [row for row in rows if row.min_nprobe is not None]
        if not reached:
            ceiling = max((row.recall for row in same_k if row.min_nprobe), default=0.0)
            raise ConfigError(
                f"no index of these codes reaches {recall:g} of {k}",
                hint=f"the highest measured goal that one reaches is {ceiling:g}; take longer codes"
                " or rank the best again by the vectors themselves",
            )
        return [
            SearchPoint(
                num_vectors=num_vectors, nlist=row.nlist, nprobe=row.min_nprobe, k=k, opq=row.opq
            )
            for row in reached
            if row.min_nprobe is not None
        ]


def _require_one_set(rows: Sequence[tuple[RecallRow, int]], path: Path) -> None:
    """Refuse rows of several data sets: an index would need other cells in each."""
    first: dict[tuple[int, bool, int, float], int] = {}
    for row, number in rows:
        before = first.setdefault((row.nlist, row.opq, row.k, row.recall), number)
        if before != number:
            raise DataError(
                f"{path}: rows {before} and {number} are of one index and goal",
                hint='choose the rows of one data set, such as --where "dataset=SIFT100M"',
            )


def _row(values: dict[str, str], where: str) -> RecallRow:
    """Read one row."""
    try:
        found = RecallRow(
            nlist=int(values["nlist"]),
            opq=bool(int(values["opq"])),
            k=int(values["k"]),
            recall=float(values["recall_at_k"]),
            min_nprobe=int(values["min_nprobe"]) if values["min_nprobe"] else None,
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} holds no numbers: {error}") from error
    if found.nlist < 1 or found.k < 1 or not 0 < found.recall <= 1:
        raise DataError(
            f"{where}: nlist {found.nlist}, k {found.k}, recall {found.recall:g}",
            hint="give at least 1 cell and neighbour, and a recall above 0 to 1",
        )
    return found
