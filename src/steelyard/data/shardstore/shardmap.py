"""The map: which nodes hold which range of keys, in which form, and who writes."""

from functools import cached_property

import msgspec
import numpy as np

from steelyard.data.shardstore.rows import MAX_KEY
from steelyard.errors import ConfigError

__all__ = ["Shard", "ShardMap", "even_shards"]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A range of keys and its holders.

    Attributes:
        id: never used again.
        first: lowest key.
        last: highest key, included.
        epoch: rises whenever another node begins to write; versions begin with it.
        replicas: nodes that serve it whole; the first writes.
        learners: nodes that get every write and catch up on the rest.
        code: blocks of data and parity of a cold shard; (0, 0) for one in memory.
        fragments: nodes that hold the coded blocks, in their order.
        sealed: no writes are taken while it changes its form.
    """

    id: int
    first: int
    last: int
    epoch: int = 1
    replicas: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    code: tuple[int, int] = (0, 0)
    fragments: tuple[str, ...] = ()
    sealed: bool = False

    @property
    def is_cold(self) -> bool:
        """Whether it stands on disks as coded fragments."""
        return self.code[0] > 0

    @property
    def holders(self) -> tuple[str, ...]:
        """Nodes that get its writes."""
        return self.replicas + self.learners

    def with_(self, **changes: object) -> "Shard":
        """Return it with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class ShardMap(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All shards, in the order of their keys, without gaps.

    Attributes:
        version: rises with every change.
        shards: ranges from key 0 to 2^64 - 1.
        addresses: where nodes listen, by name.
    """

    version: int
    shards: tuple[Shard, ...]
    addresses: dict[str, str]

    @cached_property
    def starts(self) -> np.ndarray:
        """Lowest keys, uint64 [V]."""
        return np.array([shard.first for shard in self.shards], np.uint64)

    def route(self, keys: np.ndarray) -> np.ndarray:
        """Return the place in `shards` of each key, int64 [N]."""
        # Ranges leave no gap, so that the last one that begins at or before a key holds it.
        return np.searchsorted(self.starts, keys, side="right") - 1

    def changed(self, *shards: Shard, addresses: dict[str, str] | None = None) -> "ShardMap":
        """Return the next map, in which some shards are other ones of the same number."""
        new = {shard.id: shard for shard in shards}
        return ShardMap(
            version=self.version + 1,
            shards=tuple(new.get(shard.id, shard) for shard in self.shards),
            addresses=self.addresses if addresses is None else addresses,
        )

    def resplit(self, old: tuple[int, ...], new: tuple[Shard, ...]) -> "ShardMap":
        """Return the next map, in which neighbours give way to others of the same range."""
        kept = [shard for shard in self.shards if shard.id not in old]
        shards = tuple(sorted((*kept, *new), key=lambda shard: shard.first))
        return ShardMap(version=self.version + 1, shards=shards, addresses=self.addresses)

    def check(self) -> None:
        """Refuse a map with a gap, an overlap, or a number used twice.

        Raises:
            ConfigError: it names the first wrong place.
        """
        # Python's integers: uint64 would wrap at the end of the last range and hide a gap.
        expected = 0
        for shard in self.shards:
            if shard.first != expected or shard.last < shard.first:
                raise ConfigError(
                    f"shard {shard.id} begins at {shard.first} and not at {expected}",
                    hint="ranges follow one another from 0 to 2^64 - 1",
                )
            expected = shard.last + 1
        if expected != MAX_KEY + 1 or len({shard.id for shard in self.shards}) < len(self.shards):
            raise ConfigError(
                f"shards end at {expected - 1}, or share a number",
                hint="ranges follow one another from 0 to 2^64 - 1",
            )


def even_shards(count: int, *, keys: int = MAX_KEY + 1) -> tuple[Shard, ...]:
    """Cut the keys into ranges of equal width.

    Args:
        count: shards, at least 1.
        keys: keys that are used lie below it; the last range goes on to the end of all keys.

    Returns:
        Shards without holders.

    Raises:
        ConfigError: there are more shards than keys, or none.
    """
    if not 1 <= count <= keys <= MAX_KEY + 1:
        raise ConfigError(f"{count} shards of {keys} keys", hint="give 1 to as many as keys")
    edges = [keys * number // count for number in range(count)] + [MAX_KEY + 1]
    return tuple(
        Shard(id=number, first=edges[number], last=edges[number + 1] - 1) for number in range(count)
    )
