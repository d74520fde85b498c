"""Rows that broke a rule: where they stand, what was wrong, and how many there are."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from steelyard.data.table.counts import ReadCounts

__all__ = ["BadRow", "Quarantine"]

_KEPT = 1000
_LONGEST = 200


class BadRow(NamedTuple):
    """A row that was set aside.

    Attributes:
        file: its file.
        row: its number in the file, from 1, the line of names left out.
        field: column that is wrong; empty where the whole row is.
        value: text of the value or of the row, cut after 200 characters.
        reason: what was wrong with it.
    """

    file: str
    row: int
    field: str
    value: str
    reason: str


@dataclass(slots=True)
class Quarantine:
    """Rows set aside, the first thousand with their values, and all of them counted.

    A row is counted once, with the first column that is wrong.

    Attributes:
        rows: the first.
        counts: number by file, field and reason.
        reads: what was read of the files to find them.
    """

    rows: list[BadRow] = field(default_factory=list)
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    reads: ReadCounts = field(default_factory=ReadCounts)

    @property
    def total(self) -> int:
        """Rows set aside."""
        return self.counts.total()

    def add(self, row: BadRow) -> None:
        """Set a row aside."""
        self.counts[row.file, row.field, row.reason] += 1
        if len(self.rows) < _KEPT:
            self.rows.append(row._replace(value=row.value[:_LONGEST]))

    def merge(self, later: "Quarantine") -> None:
        """Take in the rows of later parts of the table."""
        self.counts.update(later.counts)
        self.reads.add(later.reads)
        self.rows = (self.rows + later.rows)[:_KEPT]
