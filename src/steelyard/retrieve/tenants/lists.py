"""Which vectors each tenant may see, sorted by leaf, in chunks that are cheap to change."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["CHUNK", "TenantLists", "lower_bound"]

CHUNK = 64
"""Vectors of a chunk: one is shifted for a grant, and binary searches end in one."""
_FILLED = 60
"""Rows of a chunk that rows in order fill: single ones that come later find room without a split,
which moves half of a large tenant's directory."""
_FIRST_ROOM = 4
_CHUNKS, _FREE, _DIRECTORY = 0, 1, 2
Ids = NDArray[np.int64]


class TenantLists:
    """For each tenant, rows in the order of (leaf, row).

    A tenant has a directory of chunks with the first key of each. The rows below any node of the
    tree are a range between two binary searches, so the short lists of the paper, their splits,
    merges and filters, all follow from the order and are never stale.

    Attributes:
        sizes: rows of each tenant [T].
        version: how often the lists have changed.
    """

    def __init__(self) -> None:
        """Begin without tenants."""
        self.version = 0
        self.sizes = np.zeros(0, np.int64)
        self._rows = np.empty((0, CHUNK), np.int32)
        self._lengths = np.empty(0, np.int32)
        self._free = np.empty(0, np.int32)
        # First place, length and room of each tenant's directory.
        self._places = np.zeros((0, 3), np.int64)
        self._chunks = np.empty(0, np.int32)
        self._keys = np.empty(0, np.int64)
        self._state = np.zeros(3, np.int64)

    def __len__(self) -> int:
        """Return how many tenants there are."""
        return len(self.sizes)

    def add_tenant(self) -> int:
        """Return the number of a new tenant, which sees nothing."""
        self.version += 1
        self.sizes = np.append(self.sizes, 0)
        self._places = np.concatenate([self._places, np.zeros((1, 3), np.int64)])
        return len(self.sizes) - 1

    def grant(self, tenant: int, rows: NDArray[np.int32], leaves: NDArray[np.int32]) -> int:
        """Let a tenant see rows; those that it sees already change nothing.

        Args:
            tenant: number of the tenant.
            rows: rows.
            leaves: leaf of every row of the index [N].

        Returns:
            Rows that are new to it.
        """
        if len(rows) > 1:
            rows = rows[np.lexsort((rows, leaves[rows]))]
        # Each row may fall into a full chunk of its own and split it; the halves split anew only
        # after as many rows again.
        splits = min(len(rows), int(self._places[tenant, 1]))
        self._make_room(tenant, splits + 2 * len(rows) // CHUNK + 2)
        before = int(self.sizes[tenant])
        self.version += 1
        _insert(tenant, rows, leaves, *self._all())
        return int(self.sizes[tenant]) - before

    def revoke(self, tenant: int, rows: NDArray[np.int32], leaves: NDArray[np.int32]) -> int:
        """Hide rows from a tenant; those that it does not see change nothing.

        Args:
            tenant: number of the tenant.
            rows: rows.
            leaves: leaf of every row of the index [N].

        Returns:
            Rows that it no longer sees.
        """
        before = int(self.sizes[tenant])
        self.version += 1
        _delete(tenant, rows, leaves, *self._all())
        return before - int(self.sizes[tenant])

    def rows_of(self, tenant: int) -> NDArray[np.int32]:
        """Return the rows of a tenant in order."""
        first, length, _ = self._places[tenant].tolist()
        chunks = self._chunks[first : first + length].tolist()
        parts = [self._rows[chunk, : self._lengths[chunk]] for chunk in chunks]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return what searches read: rows, lengths, directories, chunks and keys."""
        return self._rows, self._lengths, self._places, self._chunks, self._keys

    def memory_bytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(part.nbytes for part in (*self.arrays(), self._free, self.sizes))

    def trouble(self, leaves: NDArray[np.int32]) -> str:
        """Return what is wrong with the lists, or nothing.

        Args:
            leaves: leaf of every row of the index; below 0 for removed ones.

        Returns:
            The first fault in words; empty for none.
        """
        used: list[int] = []
        for tenant in range(len(self)):
            first, length, room = self._places[tenant].tolist()
            chunks = self._chunks[first : first + length]
            used += chunks.tolist()
            rows = self.rows_of(tenant)
            keys = (leaves[rows].astype(np.int64) << 32) | rows
            if len(rows) != self.sizes[tenant] or length > room:
                return f"tenant {tenant} counts {self.sizes[tenant]} of {len(rows)} rows"
            if (np.diff(keys) <= 0).any() or (leaves[rows] < 0).any():
                return f"rows of tenant {tenant} are out of order, twice there, or removed"
            starts = np.cumsum(self._lengths[chunks]) - self._lengths[chunks]
            if (self._lengths[chunks] < 1).any() or (
                keys[starts] != self._keys[first : first + length]
            ).any():
                return f"the directory of tenant {tenant} is wrong"
        free = self._free[: self._state[_FREE]].tolist()
        if sorted(used + free) != list(range(int(self._state[_CHUNKS]))):
            return "a chunk is lost, or has two owners"
        return ""

    def _all(self) -> tuple[NDArray[Any], ...]:
        return (*self.arrays(), self._free, self._state, self.sizes)

    def _make_room(self, tenant: int, chunks: int) -> None:
        """Grow arrays so that a kernel finds so many new chunks for a tenant."""
        needed = int(self._state[_CHUNKS]) + chunks
        if needed > len(self._rows):
            count = max(needed, len(self._rows) * 5 // 4)
            self._rows = _grown(self._rows, count)
            self._lengths, self._free = _grown(self._lengths, count), _grown(self._free, count)
        first, length, room = self._places[tenant].tolist()
        if length + chunks <= room:
            return
        room = max(length + chunks, 2 * length, _FIRST_ROOM)
        end = int(self._state[_DIRECTORY])
        if end + room > len(self._chunks):
            self._compact(room)
            first, end = int(self._places[tenant, 0]), int(self._state[_DIRECTORY])
        self._chunks[end : end + length] = self._chunks[first : first + length]
        self._keys[end : end + length] = self._keys[first : first + length]
        self._places[tenant] = end, length, room
        self._state[_DIRECTORY] = end + room

    def _compact(self, more: int) -> None:
        """Move directories together: those that had grown left holes behind."""
        total = int(self._places[:, 2].sum())
        chunks = np.empty((total + more) * 3 // 2, np.int32)
        keys, end = np.empty(len(chunks), np.int64), 0
        for tenant, (first, length, room) in enumerate(self._places.tolist()):
            chunks[end : end + length] = self._chunks[first : first + length]
            keys[end : end + length] = self._keys[first : first + length]
            self._places[tenant, 0] = end
            end += room
        self._chunks, self._keys = chunks, keys
        self._state[_DIRECTORY] = end


def _grown(values: NDArray[Any], count: int) -> NDArray[Any]:
    """Return a longer array that begins with the same values."""
    found = np.empty((count, *values.shape[1:]), values.dtype)
    found[: len(values)] = values
    return found


@njit()
def _directory_place(keys: np.ndarray, first: Any, low: Any, high: Any, key: Any) -> Any:
    """Return the last chunk of low to before high whose first key is not above a key, or low."""
    while high - low > 1:
        middle = (low + high) // 2
        if keys[first + middle] <= key:
            low = middle
        else:
            high = middle
    return low


@njit()
def _place_in(rows: np.ndarray, length: Any, leaves: np.ndarray, key: Any) -> Any:
    """Return the first place in a chunk whose key is not below a key."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        row = rows[middle]
        if (np.int64(leaves[row]) << 32) | np.int64(row) < key:
            low = middle + 1
        else:
            high = middle
    return low


@njit()
def lower_bound(
    first: Any,
    low: Any,
    high: Any,
    leaf: Any,
    rows: np.ndarray,
    lengths: np.ndarray,
    chunks: np.ndarray,
    keys: np.ndarray,
    leaves: np.ndarray,
) -> Any:
    """Find where the rows of a leaf begin in a directory.

    Args:
        first: first place of the directory.
        low: chunk of the directory to begin with.
        high: last chunk that the answer may lie in.
        leaf: number of a leaf.
        rows: rows of chunks.
        lengths: rows in each chunk.
        chunks: chunks of directories.
        keys: first keys of chunks.
        leaves: leaf of every row.

    Returns:
        Chunk of the directory, and place in it, of the first row of this leaf or a later one; the
        place may be the end of the chunk.
    """
    key = np.int64(leaf) << 32
    found = _directory_place(keys, first, low, high + 1, key)
    chunk = chunks[first + found]
    return found, _place_in(rows[chunk], lengths[chunk], leaves, key)


@njit()
def _new_chunk(lengths: np.ndarray, free: np.ndarray, state: np.ndarray) -> Any:
    """Take a chunk that was given back, or the next one."""
    if state[_FREE]:
        state[_FREE] -= 1
        found = free[state[_FREE]]
    else:
        found = state[_CHUNKS]
        state[_CHUNKS] += 1
    lengths[found] = 0
    return found


@njit()
def _insert(
    tenant: Any,
    added: np.ndarray,
    leaves: np.ndarray,
    rows: np.ndarray,
    lengths: np.ndarray,
    places: np.ndarray,
    chunks: np.ndarray,
    keys: np.ndarray,
    free: np.ndarray,
    state: np.ndarray,
    sizes: np.ndarray,
) -> None:
    """Put rows into the chunks of a tenant; a full chunk is split."""
    first = places[tenant, 0]
    for row in added:
        key = (np.int64(leaves[row]) << 32) | np.int64(row)
        if not places[tenant, 1]:
            chunks[first], keys[first] = _new_chunk(lengths, free, state), key
            places[tenant, 1] = 1
        count = places[tenant, 1]
        at = _directory_place(keys, first, 0, count, key)
        chunk = chunks[first + at]
        place = _place_in(rows[chunk], lengths[chunk], leaves, key)
        if place < lengths[chunk] and rows[chunk, place] == row:
            continue
        if lengths[chunk] == CHUNK:
            for later in range(count, at + 1, -1):
                chunks[first + later] = chunks[first + later - 1]
                keys[first + later] = keys[first + later - 1]
            other = _new_chunk(lengths, free, state)
            # Rows that come in order fill chunk after chunk; others split one in halves.
            kept = _FILLED if place == CHUNK and at == count - 1 else CHUNK // 2
            for moved in range(kept, CHUNK):
                rows[other, moved - kept] = rows[chunk, moved]
            lengths[chunk], lengths[other] = kept, CHUNK - kept
            chunks[first + at + 1] = other
            places[tenant, 1] = count + 1
            if kept < CHUNK:
                begin = rows[other, 0]
                keys[first + at + 1] = (np.int64(leaves[begin]) << 32) | np.int64(begin)
            if place > kept or kept == CHUNK:
                at, chunk, place = at + 1, other, place - kept
        for later in range(lengths[chunk], place, -1):
            rows[chunk, later] = rows[chunk, later - 1]
        rows[chunk, place] = row
        lengths[chunk] += 1
        if place == 0:
            keys[first + at] = key
        sizes[tenant] += 1


@njit()
def _delete(
    tenant: Any,
    removed: np.ndarray,
    leaves: np.ndarray,
    rows: np.ndarray,
    lengths: np.ndarray,
    places: np.ndarray,
    chunks: np.ndarray,
    keys: np.ndarray,
    free: np.ndarray,
    state: np.ndarray,
    sizes: np.ndarray,
) -> None:
    """Take rows out of the chunks of a tenant; an empty chunk is given back."""
    first = places[tenant, 0]
    for row in removed:
        count = places[tenant, 1]
        if not count:
            return
        key = (np.int64(leaves[row]) << 32) | np.int64(row)
        at = _directory_place(keys, first, 0, count, key)
        chunk = chunks[first + at]
        place = _place_in(rows[chunk], lengths[chunk], leaves, key)
        if place == lengths[chunk] or rows[chunk, place] != row:
            continue
        sizes[tenant] -= 1
        lengths[chunk] -= 1
        for later in range(place, lengths[chunk]):
            rows[chunk, later] = rows[chunk, later + 1]
        if not lengths[chunk]:
            free[state[_FREE]] = chunk
            state[_FREE] += 1
            for later in range(at, count - 1):
                chunks[first + later] = chunks[first + later + 1]
                keys[first + later] = keys[first + later + 1]
            places[tenant, 1] = count - 1
        elif place == 0:
            begin = rows[chunk, 0]
            keys[first + at] = (np.int64(leaves[begin]) << 32) | np.int64(begin)
