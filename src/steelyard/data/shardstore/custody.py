"""What a node may do: by the map it was given, and until its lease ends."""

import numpy as np

from steelyard.data.shardstore.rows import EPOCH_SHIFT
from steelyard.data.shardstore.shardmap import ShardMap

__all__ = ["Custody"]


class Custody:
    """A node's rights over shards; pure, told the time.

    A write is taken by the node that its map names first, under its lease, and is acknowledged when
    every holder of its map has it. A holder refuses writes of an epoch below the shard's in its own
    map. So a node that was replaced can write nothing: one of the holders it needs has the newer
    map, or its own lease is over.

    Attributes:
        name: the node's.
        map: newest map that was given, or None.
        lease_end_s: when its rights end, on its own clock.
    """

    def __init__(self, name: str) -> None:
        """Start with no rights."""
        self.name = name
        self.map: ShardMap | None = None
        self.lease_end_s = float("-inf")
        self._counter = 0
        self._columns(None)

    def _columns(self, shard_map: ShardMap | None) -> None:
        shards = shard_map.shards if shard_map else ()
        self._by_id = {shard.id: shard for shard in shards}
        self._serves = np.array([self.name in shard.replicas for shard in shards], bool)
        self._leads = np.array([shard.replicas[:1] == (self.name,) for shard in shards], bool)
        self._holds = np.array([self.name in shard.holders for shard in shards], bool)
        self._closed = np.array([shard.sealed or shard.is_cold for shard in shards], bool)
        self._epochs = np.array([shard.epoch for shard in shards], np.uint64)

    def install(self, shard_map: ShardMap) -> bool:
        """Take a map; an older one than the node has is left. Return whether it was taken."""
        if self.map is not None and shard_map.version <= self.map.version:
            return False
        self.map = shard_map
        self._columns(shard_map)
        return True

    def extend(self, spoken_s: float, lease_s: float) -> None:
        """Take a lease, counted from when this node spoke and not from when it was answered."""
        self.lease_end_s = max(self.lease_end_s, spoken_s + lease_s)

    def is_known(self, now_s: float) -> bool:
        """Whether the controller knows of this process: it has a lease.

        What a restarted process does before that would be put down to the one it follows.
        """
        return now_s < self.lease_end_s

    def refuse_read(self, keys: np.ndarray, now_s: float) -> str:
        """Return why keys may not be read here: "lease", "moved", or "" when they may."""
        if self.map is None or now_s >= self.lease_end_s:
            return "lease"
        return "" if self._serves[self.map.route(keys)].all() else "moved"

    def keeps_block(self, shard: int, version: int, number: int) -> bool:
        """Whether the map gives this node a coded block, or says that it will get one.

        Args:
            shard: number of the shard.
            version: epoch that it was coded in.
            number: number of the block in the code.

        Returns:
            False for a block of a coding before the newest.
        """
        found = self._by_id.get(shard)
        if found is None or version < found.epoch:
            return False  # split since, or coded anew from later rows
        return self.name in found.learners or found.fragments[number : number + 1] == (self.name,)

    def refuse_write(self, keys: np.ndarray, now_s: float) -> str:
        """Return why keys may not be written here: "lease", "moved", "sealed", or ""."""
        if self.map is None or now_s >= self.lease_end_s:
            return "lease"
        places = self.map.route(keys)
        if not self._leads[places].all():
            # A cold shard has no writer; whoever asks has to warm it first.
            return "sealed" if self._closed[places].any() else "moved"
        return "sealed" if self._closed[places].any() else ""

    def refuse_copy(self, keys: np.ndarray, versions: np.ndarray) -> str:
        """Return why another node's writes are not taken: "moved", "epoch", or ""."""
        if self.map is None:
            return "moved"
        places = self.map.route(keys)
        if not self._holds[places].all():
            return "moved"
        return "epoch" if (versions >> EPOCH_SHIFT < self._epochs[places]).any() else ""

    def versions_for(self, keys: np.ndarray) -> np.ndarray:
        """Return new versions for keys that this node writes, uint64 [N], each above all before."""
        assert self.map is not None
        numbers = np.arange(1, len(keys) + 1, dtype=np.uint64) + np.uint64(self._counter)
        self._counter += len(keys)
        return (self._epochs[self.map.route(keys)] << EPOCH_SHIFT) + numbers

    def copies_of(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Return the other nodes that need these writes, with the numbers of the keys of each."""
        assert self.map is not None
        places = self.map.route(keys)
        found: dict[str, list[np.ndarray]] = {}
        for place in np.unique(places).tolist():
            numbers = np.flatnonzero(places == place)
            for name in self.map.shards[place].holders:
                if name != self.name:
                    found.setdefault(name, []).append(numbers)
        return {name: np.concatenate(parts) for name, parts in found.items()}
