"""Vectors by row, with their numbers and leaves; rows never move while the index lives."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import CapacityError, DataError
from steelyard.retrieve.tenants.sign_codes import SignCodes

__all__ = ["VectorRows", "checked_numbers"]

_REMOVED = -1
_MOST_ROWS = 2**31 - 1
_MOST_RANGE = 4


class VectorRows:
    """Arrays that grow: vectors, numbers and leaves.

    Attributes:
        count: rows, removed ones among them.
        num_removed: removed rows.
        next_id: first number that was never given.
        coder: makes records of vectors; none before there is a tree.
    """

    def __init__(self, dim: int) -> None:
        """Begin without rows.

        Args:
            dim: numbers in a vector.
        """
        self.count = self.num_removed = self.next_id = 0
        self._vectors = np.empty((0, dim), np.float32)
        self._numbers = np.empty(0, np.int64)
        self._leaves = np.empty(0, np.int32)
        self._records = np.empty((0, 1), np.uint64)
        self.coder: SignCodes | None = None
        self._order: NDArray[np.int64] | None = None
        self._by_number: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return self.count - self.num_removed

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Vectors by row [N, D]."""
        return self._vectors[: self.count]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers by row [N]."""
        return self._numbers[: self.count]

    @property
    def leaves(self) -> NDArray[np.int32]:
        """Leaves by row [N]; below 0 for a removed row."""
        return self._leaves[: self.count]

    @property
    def records(self) -> NDArray[np.uint64]:
        """Codes of signs by row [N, words]; see `SignCodes.records`."""
        return self._records[: self.count]

    def take_coder(self, coder: SignCodes) -> None:
        """Keep records of all rows from now on."""
        self.coder = coder
        room = len(self._numbers)
        self._records = _grown(coder.records(self.vectors), self.count, room)

    def add(
        self, vectors: NDArray[np.float32], numbers: NDArray[np.int64], leaves: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Take vectors.

        Args:
            vectors: [N, D].
            numbers: their numbers [N].
            leaves: their leaves [N].

        Returns:
            Their rows [N].

        Raises:
            CapacityError: more than 2^31 - 1 rows.
        """
        first, self.count = self.count, self.count + len(vectors)
        if self.count > _MOST_ROWS:
            self.count = first
            raise CapacityError(
                f"{first + len(vectors):,} rows, {_MOST_ROWS:,} at most", hint="use several shards"
            )
        if self.count > len(self._numbers):
            room = max(self.count, len(self._numbers) * 3 // 2) if first else self.count
            self._vectors = _grown(self._vectors, first, room)
            self._numbers = _grown(self._numbers, first, room)
            self._leaves = _grown(self._leaves, first, room)
            if self.coder is not None:
                self._records = _grown(self._records, first, room)
        self._vectors[first : self.count] = vectors
        self._numbers[first : self.count] = numbers
        self._leaves[first : self.count] = leaves
        if self.coder is not None:
            self._records[first : self.count] = self.coder.records(vectors)
        if len(numbers):
            self.next_id = max(self.next_id, int(numbers.max()) + 1)
        self._order = self._by_number = None
        return np.arange(first, self.count, dtype=np.int32)

    def known(self) -> NDArray[np.int64]:
        """Return the numbers of all vectors that are there."""
        return self.numbers[self.leaves >= 0]

    def all_rows(self) -> NDArray[np.int32]:
        """Return the rows of all vectors that are there, ascending."""
        return np.flatnonzero(self.leaves >= 0).astype(np.int32)

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the row of each number.

        Args:
            numbers: numbers of vectors.

        Returns:
            Rows, as `numbers`.

        Raises:
            DataError: a number is not there.
        """
        if len(numbers) == 1 and self._by_number is not None:
            # Single grants come often, and arrays of one element take most of their time.
            number = int(numbers[0])
            row = int(self._by_number[number]) if 0 <= number < self.next_id else -1
            if row >= 0 and self._leaves[row] >= 0:
                return np.array([row], np.int32)
        rows = self._direct_rows(numbers) if self._is_dense else self._sorted_rows(numbers)
        is_there = rows >= 0
        is_there &= self.leaves[rows] >= 0 if self.count else False
        if not is_there.all():
            missing = int(numbers[int(is_there.argmin())])
            raise DataError(f"there is no vector {missing}", hint="add it before it is granted")
        return rows

    @property
    def _is_dense(self) -> bool:
        """Whether numbers fill most of their range, so that a row may be kept for each."""
        return self.next_id <= _MOST_RANGE * self.count

    def _direct_rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return rows from an array by number; -1 for unknown ones."""
        if self._by_number is None:
            made = np.full(self.next_id, -1, np.int32)
            # Of a number that was given again, the last row counts.
            made[self.numbers] = np.arange(self.count, dtype=np.int32)
            # Another thread must not see it half made.
            self._by_number = made
        is_known = (numbers >= 0) & (numbers < self.next_id)
        return np.where(is_known, self._by_number[np.where(is_known, numbers, 0)], -1)

    def _sorted_rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return rows by binary searches; -1 for unknown ones."""
        if self._order is None:
            self._order = np.argsort(self.numbers, kind="stable")
        # The last row of a number: earlier ones were removed before it was given again.
        places = np.searchsorted(self.numbers, numbers, side="right", sorter=self._order) - 1
        rows = self._order[places] if self.count else np.zeros(len(numbers), np.int64)
        is_known = (places >= 0) & (self.count > 0)
        if self.count:
            is_known &= self.numbers[rows] == numbers
        return np.where(is_known, rows, -1).astype(np.int32)

    def remove(self, rows: NDArray[np.int32]) -> None:
        """Forget rows; their places stay empty until the index is saved.

        Args:
            rows: the rows.
        """
        self._leaves[rows] = _REMOVED
        self.num_removed += len(rows)

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes by part."""
        order = sum(part.nbytes for part in (self._order, self._by_number) if part is not None)
        return {
            "vectors": self._vectors.nbytes,
            "numbers": self._numbers.nbytes + order,
            "leaves": self._leaves.nbytes,
            "codes": self._records.nbytes,
        }


def checked_numbers(ids: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return numbers of vectors as an array.

    Args:
        ids: one number, or several.

    Returns:
        int64 [N].

    Raises:
        DataError: another shape or kind.
    """
    found = np.asarray(ids)
    if not found.ndim:
        found = found[None]
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise DataError(f"{found.dtype} {list(found.shape)} for numbers of vectors")
    return found.astype(np.int64, copy=False)


def _grown(values: NDArray[Any], count: int, room: int) -> NDArray[Any]:
    """Return a longer array that begins with the same values."""
    found = np.empty((room, *values.shape[1:]), values.dtype)
    found[:count] = values[:count]
    return found
