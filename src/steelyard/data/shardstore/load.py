"""What a node counts of its own load: reads and writes by shard since it was last asked."""

import numpy as np

from steelyard.data.shardstore.shardmap import ShardMap
from steelyard.data.shardstore.table import RowTable

__all__ = ["LoadCounter"]

_RECENT_KEYS = 2048


class LoadCounter:
    """Counts by shard of the newest map.

    Attributes:
        held: rows held by shard, int64 [V], as of the last count.
        is_stale: rows have come or gone since.
    """

    def __init__(self) -> None:
        """Start without shards."""
        self._map: ShardMap | None = None
        self._reads = self._writes = self.held = np.zeros(0, np.int64)
        self._recent = np.zeros(0, np.uint64)
        self._size, self.is_stale = -1, True

    def follow(self, shard_map: ShardMap) -> None:
        """Count for another map; counts go on where its shards are the same."""
        old = [shard.id for shard in self._map.shards] if self._map else []
        self._map, self.is_stale = shard_map, True
        if old != [shard.id for shard in shard_map.shards]:
            self._reads = np.zeros(len(shard_map.shards), np.int64)
            self._writes = np.zeros(len(shard_map.shards), np.int64)

    def count(self, places: np.ndarray, keys: np.ndarray, *, is_write: bool) -> None:
        """Count rows read or written.

        Args:
            places: shard of each row, its place in the map.
            keys: their keys.
            is_write: written or read.
        """
        counts = self._writes if is_write else self._reads
        counts += np.bincount(places, minlength=len(counts))
        self.is_stale |= is_write
        if not is_write:
            self._recent = np.concatenate([keys, self._recent])[:_RECENT_KEYS]

    def tell(self, table: RowTable) -> tuple[bytes, bytes, bytes, int]:
        """Return reads, writes and rows by shard and begin anew; and where to split.

        Args:
            table: rows of the node.

        Returns:
            Columns as bytes, and the median of the keys that were lately read in the shard that
            was read most; 0 where nothing was read.
        """
        if self.is_stale or len(table) != self._size:
            places = self._map.route(table.keys[table.lengths >= 0])  # pyright: ignore[reportOptionalMemberAccess]
            self.held = np.bincount(places, minlength=len(self._reads))
            self._size, self.is_stale = len(table), False
        middle = 0
        if self._reads.any():
            inside = self._map.route(self._recent) == int(np.argmax(self._reads))  # pyright: ignore[reportOptionalMemberAccess]
            keys = np.sort(self._recent[inside])
            middle = int(keys[len(keys) // 2]) if len(keys) else 0
        told = self._reads.tobytes(), self._writes.tobytes(), self.held.tobytes(), middle
        self._reads[:], self._writes[:] = 0, 0
        return told
