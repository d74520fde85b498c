"""A client of the store: batches of keys go to the nodes that hold them, all at once."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from steelyard.data.arena import ArenaReader, SlabRef
from steelyard.data.shardstore.messages import Answer, Get, NodeRefusal, Put, RowBatch, Scan
from steelyard.data.shardstore.rows import MAX_KEY, Rows, rows_from_bytes
from steelyard.data.shardstore.shardmap import Shard, ShardMap
from steelyard.data.shardstore.wire import open_address
from steelyard.errors import DataError, DataLostError, StoreError
from steelyard.frames import Channel, MessageCodec

__all__ = ["StoreClient"]

_SCAN_ROWS = 4096
_SHUN_S = 0.5
"""Seconds for which a node that failed is asked only where no other holds the key."""
_FADE = 0.98
"""What counts of a node's earlier load with each batch."""


class StoreClient:
    """Reads and writes rows of one width; for one thread.

    A read goes to the less loaded of two replicas drawn at random, and to another one when a node
    fails or refuses. A write goes to the first replica and is repeated until it is acknowledged.
    """

    def __init__(
        self,
        find_map: Callable[[], ShardMap],
        *,
        row_bytes: int,
        key: bytes = b"",
        is_local: bool = True,
        node_timeout_s: float = 0.5,
        deadline_s: float = 10.0,
        why_lost: Callable[[Shard], str] = lambda shard: "",
        warm: Callable[[Shard], None] = lambda shard: None,
        generator: np.random.Generator | None = None,
    ) -> None:
        """Name the store.

        Args:
            find_map: returns its newest map.
            row_bytes: width of a row.
            key: secret of the store, for TCP.
            is_local: nodes are on this host, and pass rows in shared memory.
            node_timeout_s: longest wait for one node.
            deadline_s: longest time for one call.
            why_lost: returns why a shard's data are gone, or nothing when they are not.
            warm: called for a shard that has to be brought to memory before it can be used.
            generator: draws replicas.
        """
        self._find_map, self._row_bytes, self._key = find_map, row_bytes, key
        self._is_local, self._node_timeout_s, self._deadline_s = (
            is_local,
            node_timeout_s,
            deadline_s,
        )
        self._why_lost, self._warm = why_lost, warm
        self._random = generator or np.random.default_rng()
        self._channels: dict[str, Channel] = {}
        self._arenas: dict[str, ArenaReader] = {}
        self._read_slabs: dict[str, list[tuple[int, int]]] = {}
        self._map: ShardMap | None = None
        self._names: list[str] = []
        self._shunned_until_s: dict[str, float] = {}

    def _follow(self) -> ShardMap:
        """Take the newest map, and make the columns that replicas are drawn from."""
        shard_map = self._find_map()
        if shard_map is self._map:
            return shard_map
        self._map = shard_map
        self._names = sorted(shard_map.addresses)
        number = {name: place for place, name in enumerate(self._names)}
        most = max((len(shard.replicas) for shard in shard_map.shards), default=0) or 1
        self._holders = np.full((len(shard_map.shards), most), -1)
        for place, shard in enumerate(shard_map.shards):
            for column, name in enumerate(shard.replicas):
                self._holders[place, column] = number.get(name, -1)
        self._num_holders = (self._holders >= 0).sum(axis=1)
        self._load = np.zeros(len(self._names))
        return shard_map

    # -- reads --------------------------------------------------------------------------------

    def get(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read keys.

        Args:
            keys: unsigned integers [N], each below 2^64.

        Returns:
            Lengths int32 [N], -1 for an unknown key, and values uint8 [N, row_bytes].

        Raises:
            DataLostError: all copies of some keys are gone.
            StoreError: a key could not be read within the deadline.
        """
        keys = _as_keys(keys)
        lengths = np.full(len(keys), -1, np.int32)
        values = np.zeros((len(keys), self._row_bytes), np.uint8)
        self._until_done(keys, lambda left: self._read_some(keys, left, lengths, values))
        return lengths, values

    def _read_some(
        self, keys: np.ndarray, left: np.ndarray, lengths: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Ask for some keys and return the numbers of those that were answered."""
        shard_map = self._follow()
        nodes = self._drawn(shard_map.route(keys[left]))
        done, asked = [np.zeros(0, np.int64)], []
        for node in np.unique(nodes[nodes >= 0]).tolist():
            numbers, name = left[nodes == node], self._names[node]
            self._load[node] += len(numbers)
            ask = Get(
                keys=keys[numbers].tobytes(),
                is_local=self._is_local,
                slabs=tuple(self._read_slabs.pop(name, ())),
            )
            if self._send(name, shard_map, ask):
                asked.append((name, numbers))
        for name, numbers in asked:
            answer = self._receive(name)
            if isinstance(answer, RowBatch):
                found = self._values_of(name, answer, len(numbers))
                if found is not None:
                    lengths[numbers], values[numbers] = found
                    done.append(numbers)
        self._load *= _FADE
        return np.concatenate(done)

    def _drawn(self, places: np.ndarray) -> np.ndarray:
        """Return the node to ask for each key: of two replicas the less loaded; -1 for none."""
        counts = np.maximum(self._num_holders[places], 1)
        first = self._random.integers(0, counts)
        second = (first + 1 + self._random.integers(0, np.maximum(counts - 1, 1))) % counts
        load = self._load.copy()
        now_s = time.monotonic()
        for name, until_s in self._shunned_until_s.items():
            if until_s > now_s and name in self._names:
                load[self._names.index(name)] = np.inf
        one, two = self._holders[places, first], self._holders[places, second]
        # Replicas of a shard may all be shunned but for a third one, which is looked for.
        chosen = np.where(load[one] <= load[two], one, two)
        for number in np.flatnonzero(np.isinf(load[chosen])).tolist():
            row = self._holders[places[number], : counts[number]]
            chosen[number] = row[np.argmin(load[row])]
        return chosen

    def _values_of(
        self, name: str, answer: RowBatch, count: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return lengths and values of an answer; None when its slab was used again too soon."""
        if not answer.arena:
            rows = rows_from_bytes(answer.rows)
            return rows.lengths, rows.values
        try:
            if answer.arena not in self._arenas:
                self._arenas[answer.arena] = ArenaReader(Path(answer.arena))
            content = self._arenas[answer.arena].read(SlabRef(*answer.slab))
        except DataError:
            return None
        self._read_slabs.setdefault(name, []).append(answer.slab[:2])
        width = -(-self._row_bytes // 8) * 8
        values = content[: count * width].reshape(count, width)[:, : self._row_bytes]
        return content[count * width :].view(np.int32), values

    def scan(self, first: int, last: int) -> Rows:
        """Read all rows of a range in the order of their keys.

        Args:
            first: lowest key.
            last: highest key, included.

        Returns:
            The rows.

        Raises:
            DataLostError: all copies of some of the range are gone; never fewer rows instead.
            StoreError: a part could not be read within the deadline.
        """
        parts: list[Rows] = []
        place = first
        while place <= last:
            at = np.array([place], np.uint64)
            found: list[Rows] = []

            def read(left: np.ndarray, place: int = place, found: list[Rows] = found) -> np.ndarray:
                return left if self._scan_some(place, last, found) else left[:0]

            self._until_done(at, read)
            shard = self._follow().shards[int(self._follow().route(at)[0])]
            parts += found
            is_cut = len(found[0]) >= _SCAN_ROWS
            place = int(found[0].keys[-1]) + 1 if is_cut else shard.last + 1
        return Rows(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("keys", "versions", "lengths", "values")
            )
        )

    def _scan_some(self, first: int, last: int, found: list[Rows]) -> bool:
        """Read the beginning of a range from the shard it begins in."""
        shard_map = self._follow()
        places = shard_map.route(np.array([first], np.uint64))
        node = int(self._drawn(places)[0])
        stop = min(last, shard_map.shards[int(places[0])].last)
        ask = Scan(first=first, last=stop, limit=_SCAN_ROWS)
        if node < 0 or not self._send(self._names[node], shard_map, ask):
            return False
        answer = self._receive(self._names[node])
        if isinstance(answer, RowBatch):
            found.append(rows_from_bytes(answer.rows))
        return bool(found)

    # -- writes -------------------------------------------------------------------------------

    def put(self, keys: np.ndarray, values: np.ndarray, lengths: np.ndarray | None = None) -> None:
        """Write rows; when it returns, every holder has them.

        Args:
            keys: unsigned integers [N].
            values: uint8 [N, W], W at most the width of a row.
            lengths: bytes of each value; None for W.

        Raises:
            DataError: a value is too long.
            DataLostError: all copies of a shard are gone.
            StoreError: a row was not acknowledged within the deadline; it may or may not be kept.
        """
        keys = _as_keys(keys)
        if values.ndim != 2 or values.shape[1] > self._row_bytes or len(values) != len(keys):
            raise DataError(
                f"values have the shape {values.shape} for {len(keys)} keys, but may have at most "
                f"{self._row_bytes} bytes",
                hint="make the store with longer rows",
            )
        padded = np.zeros((len(keys), self._row_bytes), np.uint8)
        padded[:, : values.shape[1]] = values
        sizes = np.full(len(keys), values.shape[1], np.int32) if lengths is None else lengths
        rows = Rows(keys, np.zeros(len(keys), np.uint64), sizes.astype(np.int32), padded)
        self._until_done(keys, lambda left: self._write_some(rows, left))

    def _write_some(self, rows: Rows, left: np.ndarray) -> np.ndarray:
        """Send some rows to those that write them and return the numbers of those kept."""
        shard_map = self._follow()
        nodes = self._holders[shard_map.route(rows.keys[left]), 0]
        done, asked = [np.zeros(0, np.int64)], []
        for node in np.unique(nodes[nodes >= 0]).tolist():
            numbers = left[nodes == node]
            if self._send(self._names[node], shard_map, Put(rows=rows.part(numbers).to_bytes())):
                asked.append((self._names[node], numbers))
        for name, numbers in asked:
            # A writer waits for other nodes, so it is given longer than a reader.
            answer = self._receive(name, 6 * self._node_timeout_s)
            if answer is not None and not isinstance(answer, NodeRefusal):
                done.append(numbers)
        return np.concatenate(done)

    # -- one node -----------------------------------------------------------------------------

    def _until_done(self, keys: np.ndarray, work: Callable[[np.ndarray], np.ndarray]) -> None:
        """Repeat work on the keys that are left until none is, or the deadline is over."""
        left = np.arange(len(keys))
        deadline_s = time.monotonic() + self._deadline_s
        pause_s, self._refusals = 0.0, {}
        while True:
            done = work(left)
            left = left[~np.isin(left, done)]
            if not len(left):
                return
            self._explain(keys[left])
            if time.monotonic() >= deadline_s:
                reasons = ", ".join(sorted(set(self._refusals.values()))) or "no answer"
                raise StoreError(
                    f"{len(left)} of {len(keys)} keys, such as {int(keys[left[0]])}, were not "
                    f"answered within {self._deadline_s} s: {reasons}",
                    hint="look at the status of the store",
                )
            # At once the first time: another replica mostly answers.
            time.sleep(pause_s)
            pause_s = min(0.05, pause_s * 2 or 0.002)

    def _explain(self, keys: np.ndarray) -> None:
        """Have the cold shards among some keys warmed, and refuse those that are lost."""
        shard_map = self._find_map()
        for place in np.unique(shard_map.route(keys)).tolist():
            shard = shard_map.shards[place]
            reason = self._why_lost(shard)
            if reason:
                raise DataLostError(
                    f"keys {shard.first} to {shard.last} are lost: {reason}",
                    hint="restart one of these nodes with its folder, or write the keys anew",
                )
            if shard.is_cold or shard.sealed:
                self._warm(shard)

    def _send(self, name: str, shard_map: ShardMap, ask: Get | Put | Scan) -> bool:
        """Send a request; whether that worked."""
        try:
            if name not in self._channels:
                address = shard_map.addresses[name]
                made, keys = open_address(address, self._node_timeout_s, self._key)
                self._channels[name] = Channel(made, MessageCodec(Answer, keys=keys))
            self._channels[name].send(ask)
            return True
        except (OSError, DataError, KeyError):
            self._fail(name, "no connection")
            return False

    def _receive(self, name: str, timeout_s: float = 0.0) -> object:
        """Return a node's answer; None when it fails. A refusal is remembered for the message."""
        channel = self._channels.get(name)
        if channel is None:
            return None
        try:
            channel.set_timeout(timeout_s or self._node_timeout_s)
            answer = channel.receive()
        except (OSError, DataError):
            answer = None
        if answer is None:
            self._fail(name, "no answer")
        elif isinstance(answer, NodeRefusal):
            self._refusals[name] = f"{name} refuses: {answer.reason} {answer.text}".strip()
            self._shunned_until_s[name] = time.monotonic() + _SHUN_S
        return answer

    def _fail(self, name: str, reason: str) -> None:
        """Forget a connection: a late answer on it would be taken for that of the next request."""
        channel = self._channels.pop(name, None)
        if channel is not None:
            channel.close()
        self._read_slabs.pop(name, None)
        self._refusals[name] = f"{name}: {reason}"
        self._shunned_until_s[name] = time.monotonic() + _SHUN_S

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


def _as_keys(keys: np.ndarray) -> np.ndarray:
    """Return keys as uint64, or refuse them."""
    found = np.asarray(keys)
    if found.dtype.kind not in "iu" or found.ndim != 1 or (found.size and int(found.min()) < 0):
        raise DataError(
            f"keys are {found.dtype} of shape {found.shape}",
            hint=f"give a row of integers from 0 to {MAX_KEY}",
        )
    return np.ascontiguousarray(found, np.uint64)
