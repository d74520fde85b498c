"""Rows in slots, each with a checksum, and parity at every scale above them."""

import numpy as np

from steelyard.data.shardstore.rows import Rows, free_rows
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["FAN_OUT", "RowTable"]

FAN_OUT = 4
"""Children of a node of the tree; a repair reads so many blocks."""
_FREE = -1


@njit()
def _mix(row):  # pragma: no cover
    """Hash the words of a row; each step is one-to-one, so that no single change goes unseen."""
    value = np.uint64(0x9E3779B97F4A7C15)
    for word in row:
        value = (value ^ word) * np.uint64(0xD6E8FEB86659FD93)
        value ^= value >> np.uint64(32)
    return value


@njit()
def _parent(row, starts, level, block):  # pragma: no cover
    """Return the row of the next level that covers a row of a level; both count from 0."""
    inside = row - starts[level]
    return starts[level + 1] + inside // block // 4 * block + inside % block


@njit()
def _write(table, sums, starts, block, slots, rows):  # pragma: no cover
    """Put rows into slots, and the change of each into all parity above it."""
    change = np.empty(table.shape[1], np.uint64)
    for number in range(slots.size):
        place = slots[number]
        for word in range(change.size):
            change[word] = table[place, word] ^ rows[number, word]
            table[place, word] = rows[number, word]
        sums[place] = _mix(table[place])
        for level in range(starts.size - 2):
            place = _parent(place, starts, level, block)
            for word in range(change.size):
                table[place, word] ^= change[word]
            sums[place] = _mix(table[place])


@njit()
def _damaged(table, sums, starts, block, slots, with_parity):  # pragma: no cover
    """Return whether each slot, or parity above it, does not match its checksum."""
    found = np.zeros(slots.size, np.bool_)
    for number in range(slots.size):
        place = slots[number]
        found[number] = _mix(table[place]) != sums[place]
        if with_parity:
            for level in range(starts.size - 2):
                place = _parent(place, starts, level, block)
                found[number] |= _mix(table[place]) != sums[place]
    return found


@njit()
def _gather(table, sums, slots, out):  # pragma: no cover
    """Copy slots to `out` and return the first number whose row is damaged, or -1."""
    bad = -1
    for number in range(slots.size):
        place = slots[number]
        if place < 0:
            out[number] = 0
            continue
        out[number] = table[place]
        if bad < 0 and _mix(out[number]) != sums[place]:
            bad = number
    return bad


class RowTable:
    """Rows by key, of one width, newest version first.

    Rows stand in blocks, four blocks have a parity block (their XOR), four parity blocks have one,
    and so on to a single block: a third more bytes in all. Every row of every level has a checksum.
    A damaged row is the XOR of the same row of the three siblings and the parity; damaged parity is
    made from below, or from above by the same rule.

    Attributes:
        row_bytes: longest value.
        num_repairs: rows made again from parity so far.
        blocks_read: blocks that the last repair read, counted from the smallest scale up.
    """

    def __init__(
        self, row_bytes: int, *, capacity: int = 1024, block_rows: int = 32, parity: bool = True
    ) -> None:
        """Make an empty table.

        Args:
            row_bytes: longest value, 1 to 2^20.
            capacity: slots to begin with; more are made when they are needed.
            block_rows: rows of a block.
            parity: keep parity; without it damage is found and not repaired here.

        Raises:
            ConfigError: a size is out of range.
        """
        if not (1 <= row_bytes <= 1 << 20 and block_rows >= 1 and capacity >= 1):
            raise ConfigError(
                f"row_bytes {row_bytes}, block_rows {block_rows}, capacity {capacity}",
                hint="a row has 1 to 2^20 bytes, a block and a table at least one row",
            )
        self.row_bytes, self._block, self._with_parity = row_bytes, block_rows, parity
        self._words = -(-row_bytes // 8)
        self.num_repairs = self.blocks_read = 0
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._shape(0, capacity)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays, parity and empty slots included; the dict of keys is not counted."""
        arrays = (self._table, self._sums, self.keys, self.versions, self.lengths)
        return sum(array.nbytes for array in arrays)

    def _shape(self, used: int, capacity: int) -> None:
        """Make arrays for a capacity and keep the first `used` slots."""
        blocks = [-(-capacity // self._block)]
        while self._with_parity and blocks[-1] > 1:
            blocks.append(-(-blocks[-1] // FAN_OUT))
        counts = np.array(blocks) * self._block
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        table = np.zeros((int(starts[-1]), self._words), np.uint64)
        sums = np.full(len(table), _mix(np.zeros(self._words, np.uint64)))
        capacity = int(counts[0])
        columns = [np.zeros(capacity, np.uint64) for _ in range(2)]
        lengths = np.full(capacity, _FREE, np.int32)
        if used:
            table[:used], sums[:used] = self._table[:used], self._sums[:used]
            columns[0][:used], columns[1][:used] = self.keys[:used], self.versions[:used]
            lengths[:used] = self.lengths[:used]
        self._table, self._sums, self._starts = table, sums, starts
        self.keys, self.versions, self.lengths = columns[0], columns[1], lengths
        self._free += range(capacity - 1, used - 1, -1)
        for level in range(1, len(blocks)):
            for row in range(int(counts[level])):
                self._from_children(level, int(starts[level]) + row)

    def _from_children(self, level: int, row: int) -> None:
        """Make a parity row of the rows under it."""
        self._table[row] = np.bitwise_xor.reduce(self._table[self._children(level, row)], axis=0)
        self._sums[row] = _mix(self._table[row])

    def _children(self, level: int, row: int) -> np.ndarray:
        """Return the rows under a parity row; the last ones may have fewer than four."""
        block, place = divmod(row - int(self._starts[level]), self._block)
        first = int(self._starts[level - 1])
        count = (int(self._starts[level]) - first) // self._block
        blocks = np.arange(block * FAN_OUT, min((block + 1) * FAN_OUT, count))
        return first + blocks * self._block + place

    def put(self, rows: Rows) -> Rows:
        """Keep rows that are newer than what stands under their keys.

        Args:
            rows: keys, versions, lengths and values; later ones of a key come later.

        Returns:
            Those that were kept.
        """
        slots = np.array([self._slots.get(key, -1) for key in rows.keys.tolist()], np.int64)
        old = np.where(slots >= 0, self.versions[slots], 0)
        newer = np.flatnonzero((slots < 0) | (rows.versions > old))
        if newer.size < len(rows):
            rows, slots = rows.part(newer), slots[newer]
        for number in np.flatnonzero(slots < 0).tolist():
            slots[number] = self._slot(int(rows.keys[number]))
        # A row or parity that is damaged now has to be repaired first: its damage would go into
        # parity as if it had been written.
        checked = _damaged(
            self._table, self._sums, self._starts, self._block, slots, self._with_parity
        )
        for slot in np.unique(slots[checked]).tolist():
            self._mend(slot)
        self.keys[slots], self.versions[slots] = rows.keys, rows.versions
        self.lengths[slots] = rows.lengths
        words = np.zeros((len(rows), self._words * 8), np.uint8)
        words[:, : self.row_bytes] = rows.values
        _write(self._table, self._sums, self._starts, self._block, slots, words.view(np.uint64))
        return rows

    def _slot(self, key: int) -> int:
        """Return the slot of a key, a new one where it has none."""
        found = self._slots.get(key)
        if found is None:
            if not self._free:
                self._shape(len(self.keys), 2 * len(self.keys))
            found = self._slots[key] = self._free.pop()
        return found

    def _mend(self, slot: int) -> None:
        """Repair a slot and the parity above it before it is written over."""
        if _mix(self._table[slot]) != self._sums[slot] and not self.repair(slot):
            self._sums[slot] = _mix(self._table[slot])  # its content goes anyway
            for level, row in self._path(slot):
                self._from_children(level, row)
            return
        for level, row in self._path(slot):
            if _mix(self._table[row]) != self._sums[row]:
                self._from_children(level, row)

    def _path(self, slot: int) -> list[tuple[int, int]]:
        """Return the parity rows above a slot with their levels, smallest first."""
        found, row = [], slot
        for level in range(len(self._starts) - 2):
            row = int(_parent(row, self._starts, level, self._block))
            found.append((level + 1, row))
        return found

    def get(self, keys: np.ndarray, values: np.ndarray | None = None) -> tuple[Rows, list[int]]:
        """Return the rows of some keys.

        Args:
            keys: uint64 [N].
            values: where values are put, uint8 [N, row bytes rounded up to 8]; None for a new
                array.

        Returns:
            Rows, of length -1 where a key is unknown, and the numbers of those whose value is
            damaged beyond what parity can repair.
        """
        found = self._slots.get
        slots = np.array([found(key, -1) for key in keys.tolist()], np.int64)
        out = np.empty((len(slots), self._words * 8), np.uint8) if values is None else values
        words = out.view(np.uint64)
        lost = []
        if _gather(self._table, self._sums, slots, words) >= 0:
            lost = [
                number for number, slot in enumerate(slots) if slot >= 0 and not self._is_good(slot)
            ]
            _gather(self._table, self._sums, slots, words)
        absent = slots < 0
        lengths = np.where(absent, _FREE, self.lengths[slots]).astype(np.int32)
        versions = np.where(absent, 0, self.versions[slots]).astype(np.uint64)
        return Rows(keys, versions, lengths, out[:, : self.row_bytes]), lost

    def _is_good(self, slot: int) -> bool:
        """Whether a slot's value is whole, after repair where that was needed."""
        return bool(_mix(self._table[slot]) == self._sums[slot]) or self.repair(slot)

    def repair(self, slot: int) -> bool:
        """Make a damaged row again from siblings and parity; False when those are damaged too."""
        self.blocks_read = 0
        if not self._with_parity or not self._from_above(0, slot):
            return False
        self.num_repairs += 1
        return True

    def _from_above(self, level: int, row: int) -> bool:
        """Make a row of its siblings and the parity above, which may itself have to be made."""
        if level + 2 >= len(self._starts):
            return False  # the top has no parity
        parent = int(_parent(row, self._starts, level, self._block))
        others = self._children(level + 1, parent)
        others = others[others != row]
        if _damaged(self._table, self._sums, self._starts, self._block, others, False).any():
            return False
        if _mix(self._table[parent]) != self._sums[parent] and not self._from_above(
            level + 1, parent
        ):
            return False
        self.blocks_read += len(others) + 1
        made = np.bitwise_xor.reduce(self._table[others], axis=0) ^ self._table[parent]
        # Equal to what stands there: the checksum was damaged, not the row.
        if _mix(made) != self._sums[row] and not np.array_equal(made, self._table[row]):
            return False
        self._table[row], self._sums[row] = made, _mix(made)
        return True

    def restore(self, rows: Rows) -> None:
        """Write values of other replicas over damaged ones, and parity above them anew."""
        words = np.zeros((len(rows), self._words * 8), np.uint8)
        words[:, : self.row_bytes] = rows.values
        for number, key in enumerate(rows.keys.tolist()):
            slot = self._slots.get(key)
            if slot is None or self.versions[slot] > rows.versions[number]:
                continue
            self.versions[slot], self.lengths[slot] = rows.versions[number], rows.lengths[number]
            self._table[slot] = words[number].view(np.uint64)
            self._sums[slot] = _mix(self._table[slot])
            for level, row in self._path(slot):
                self._from_children(level, row)

    def scrub(self, first: int, count: int) -> tuple[int, list[int]]:
        """Check some slots and the parity above them, and repair what is damaged.

        Args:
            first: slot to begin with.
            count: slots to check.

        Returns:
            Where to go on, 0 after the last, and the keys that could not be repaired.
        """
        slots = np.arange(first, min(first + count, len(self.keys)))
        bad = _damaged(self._table, self._sums, self._starts, self._block, slots, self._with_parity)
        lost = []
        for slot in slots[bad].tolist():
            if not self._is_good(slot):
                lost.append(int(self.keys[slot]))
                continue
            for level, row in self._path(slot):
                if _mix(self._table[row]) != self._sums[row]:
                    self._from_children(level, row)
                    self.num_repairs += 1
        stop = first + count
        return (stop if stop < len(self.keys) else 0), lost

    def select(self, first: int, last: int) -> np.ndarray:
        """Return the slots of the keys from `first` to `last`, both included, in order of keys."""
        inside = (self.keys >= np.uint64(first)) & (self.keys <= np.uint64(last))
        slots = np.flatnonzero(inside & (self.lengths >= 0))
        return slots[np.argsort(self.keys[slots], kind="stable")]

    def drop(self, first: int, last: int) -> int:
        """Forget the keys from `first` to `last`, both included; return how many there were."""
        slots = self.select(first, last)
        for slot in slots.tolist():
            # Values stay where they are: parity above covers them until they are written over.
            del self._slots[int(self.keys[slot])]
            self._free.append(slot)
        self.lengths[slots] = _FREE
        return len(slots)

    def take(self, slots: np.ndarray) -> tuple[Rows, list[int]]:
        """Return the rows of some slots, as `get` does."""
        return self.get(self.keys[slots]) if len(slots) else (free_rows(self.row_bytes), [])
