"""What is to be predicted: one of some classes, or a number."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.table.columns import columns_of, is_number
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable
    from steelyard.data.table.frequent_texts import FrequentTexts

__all__ = ["TargetColumn", "Task", "find_target"]

Task = Literal["classify", "regress"]
_MOST_CLASSES = 100
_LEAST_ROWS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetColumn:
    """The column that is predicted.

    Attributes:
        name: its name.
        task: "classify" or "regress".
        classes: values in the order of their numbers; none for numbers.
        hashes: hashes of the classes' values, by number.
    """

    name: str
    task: Task
    classes: tuple[str, ...] = ()
    hashes: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Scores of a row: one, or one per class where there are more than two."""
        return len(self.classes) if len(self.classes) > 2 else 1

    def values(self, batch: "pa.RecordBatch") -> NDArray[np.float32]:
        """Return numbers, or numbers of classes, of a batch; NaN where missing or of no class."""
        place = batch.schema.get_field_index(self.name)
        if self.task == "regress":
            found = columns_of(batch).numbers(place).astype(np.float32)
            found[~np.isfinite(found)] = np.nan
            return found
        order = np.argsort(np.array(self.hashes, np.uint64))
        known = np.array(self.hashes, np.uint64)[order]
        hashes = columns_of(batch).hashes(place)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[at] == hashes, order[at], np.nan).astype(np.float32)

    def shares(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the predicted share of each class [N, classes] from scores [K, N]."""
        if self.width == 1:
            share = 1 / (1 + np.exp(-scores[0].astype(np.float64)))
            return np.stack([1 - share, share], axis=1)
        parts = np.exp(scores.astype(np.float64) - scores.max(axis=0))
        return (parts / parts.sum(axis=0)).T

    def plain(self) -> dict[str, Any]:
        """Return the target as plain values."""
        hashes = [str(value) for value in self.hashes]
        return {"name": self.name, "task": self.task, "classes": self.classes, "hashes": hashes}

    @classmethod
    def of(cls, told: dict[str, Any]) -> "TargetColumn":
        """Return the target of plain values."""
        return cls(
            name=told["name"],
            task=told["task"],
            classes=tuple(told["classes"]),
            hashes=tuple(int(value) for value in told["hashes"]),
        )


def find_target(
    table: "DataTable", name: str, task: Task | None, frequent: "FrequentTexts"
) -> TargetColumn:
    """Return how a column is predicted.

    Args:
        table: the table.
        name: the column.
        task: what is predicted; None takes classes for text, yes and no, and whole numbers of two
            values, and numbers for others.
        frequent: its most frequent values.

    Returns:
        The target.

    Raises:
        ConfigError: text is to be predicted as a number.
        DataError: there is one class, a class of one row, or more than 100.
    """
    import pyarrow as pa

    kind = table.schema.field(name).type
    counts = frequent.counts(_MOST_CLASSES + 1, singles=True)
    is_text = not is_number(kind)
    if task is None:
        two = pa.types.is_integer(kind) and len(counts) == 2
        task = "classify" if is_text or pa.types.is_boolean(kind) or two else "regress"
    if task == "regress":
        if is_text:
            raise ConfigError(
                f"column {name!r} is {kind}, not numbers", hint="classify it: --task classify"
            )
        return TargetColumn(name=name, task=task)
    # Of very many values no count is certain; where all are missing there is no value at all.
    has_many = len(counts) > _MOST_CLASSES or (not counts and bool(frequent.entries(1)))
    if has_many or len(counts) < 2:
        told = f"more than {_MOST_CLASSES}" if has_many else str(len(counts))
        more = "; predict numbers with --task regress" if has_many and not is_text else ""
        raise DataError(
            f"column {name!r} has {told} classes",
            hint=f"2 to {_MOST_CLASSES} classes can be told apart{more}",
        )
    rare = [value for value, count in counts if count < _LEAST_ROWS]
    if rare:
        raise DataError(
            f"class {rare[0]!r} of column {name!r} has one row",
            hint="leave it out, or join classes",
        )
    hashes = frequent.hashes_by_text()
    classes = sorted(value for value, _ in counts)
    return TargetColumn(
        name=name,
        task=task,
        classes=tuple(classes),
        hashes=tuple(hashes[value] for value in classes),
    )
