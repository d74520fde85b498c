"""A node: rows in memory, a log on disk, and the rights that its map and lease give it."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from steelyard.data.arena import ArenaConfig, SlabArena, SlabRef
from steelyard.data.shardstore import catchup, messages
from steelyard.data.shardstore.config import NodeConfig
from steelyard.data.shardstore.custody import Custody
from steelyard.data.shardstore.fragments import FragmentStore
from steelyard.data.shardstore.gossip import NodeGossip
from steelyard.data.shardstore.load import LoadCounter
from steelyard.data.shardstore.log import WriteLog
from steelyard.data.shardstore.messages import Done, NodeRefusal, RowBatch
from steelyard.data.shardstore.rows import Rows, rows_from_bytes
from steelyard.data.shardstore.swim import SwimMembership
from steelyard.data.shardstore.table import RowTable
from steelyard.data.shardstore.wire import ByteBucket, Peer, RefusedError
from steelyard.errors import CapacityError, DataError

__all__ = ["ShardNode"]

_SCAN_BYTES = 16 << 20
_SCRUB_SLOTS = 2048


class ShardNode:
    """State of one node and what it answers; `server` puts it on a socket.

    Attributes:
        boot: number of this process, drawn anew at each start.
        custody: its rights.
        table: its rows.
        fragments: its coded blocks.
        gossip: what it hears of other nodes.
    """

    def __init__(self, config: NodeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read back what the folder holds.

        Args:
            config: the node.
            clock: seconds, for the lease.
        """
        self.config, self._clock = config, clock
        self.boot = int.from_bytes(os.urandom(7), "little")
        self.custody = Custody(config.name)
        self.table = RowTable(config.row_bytes, capacity=config.capacity, parity=config.parity)
        self.fragments = FragmentStore(config.folder / "cold")
        limit = config.disk_bytes or None
        self.log = WriteLog(config.folder, sync=config.sync, limit_bytes=limit)
        self.recovered = config.persist and self._recover()
        rate = config.bytes_per_s
        self.link = (ByteBucket(rate), ByteBucket(rate)) if rate else None
        self._disk = ByteBucket(rate) if rate else None
        self._arena = SlabArena(config.name, ArenaConfig(slab_bytes=1 << 20, num_slabs=16))
        self._peers: dict[str, Peer] = {}
        self.gossip = _gossip_of(config, clock)
        self.load = LoadCounter()
        self.moved_bytes = 0
        self._scrub_from = 0

    def _recover(self) -> bool:
        """Read the log; whether all that was acknowledged is there."""
        try:
            for rows in self.log.read():
                self.table.put(rows)
        except DataError:
            # What was read is kept, and peers have the rest; the damaged log is replaced.
            self.log.fold(self.table.take(np.flatnonzero(self.table.lengths >= 0))[0])
            return False
        return len(self.table) > 0

    def peer(self, address: str) -> Peer:
        """Return another node by its address."""
        if address not in self._peers:
            key = bytes.fromhex(self.config.key)
            self._peers[address] = Peer(address, key=key, buckets=self.link)
        return self._peers[address]

    # -- what is answered at once -------------------------------------------------------------

    def ping(self, ask: messages.Ping) -> messages.Ack:
        """Take lease and map, and tell what is here."""
        # What was meant for an earlier process of this name is nothing to this one: that map may
        # name it the holder of rows that it does not have.
        if ask.boot == self.boot:
            if ask.map is not None and self.custody.install(ask.map):
                self.load.follow(ask.map)
                self.gossip.follow(ask.map.addresses)
            self.custody.extend(ask.spoken_s, ask.lease_s)
            if ask.prune:
                self._prune()
        self._scrub()
        shard_map = self.custody.map
        counts = self.load.tell(self.table) if shard_map else (b"", b"", b"", 0)
        return messages.Ack(
            boot=self.boot,
            now_s=self._clock(),
            map_version=shard_map.version if shard_map else 0,
            reads=counts[0],
            writes=counts[1],
            rows=counts[2],
            fragments=np.array(self.fragments.held(), np.int64).tobytes(),
            recovered=self.recovered,
            is_full=self.log.is_full,
            num_bytes=self.table.num_bytes,
            num_repairs=self.table.num_repairs,
            middle=counts[3],
            moved_bytes=self.moved_bytes,
            not_alive=self.gossip.membership.not_alive(),
            incarnation=self.gossip.membership.incarnation,
        )

    def _prune(self) -> None:
        """Forget ranges that the map does not give this node."""
        shard_map = self.custody.map
        held = self.load.held if shard_map else ()
        for shard, rows in zip(shard_map.shards if shard_map else (), held, strict=False):
            if rows and self.config.name not in shard.holders:
                self.table.drop(shard.first, shard.last)
                self.load.is_stale = True
        for block in self.fragments.held():
            if not self.custody.keeps_block(*block):
                self.fragments.drop(*block)

    def _scrub(self) -> None:
        """Check some rows, and one coded block, for damage."""
        self._scrub_from, lost = self.table.scrub(self._scrub_from, _SCRUB_SLOTS)
        if lost:
            asyncio.get_running_loop().create_task(self.heal(np.array(lost, np.uint64)))
        blocks = self.fragments.held()
        if blocks:
            self.fragments.read(*blocks[self._scrub_from % len(blocks)])

    def get(self, ask: messages.Get) -> RowBatch | NodeRefusal | Awaitable[Any]:
        """Return the values of keys, or what will when one has to come from another node first."""
        for slab, generation in ask.slabs:
            self._arena.give_back(SlabRef(slab, generation, 0))
        keys = np.frombuffer(ask.keys, np.uint64)
        reason = self.custody.refuse_read(keys, self._clock())
        if reason:
            return NodeRefusal(reason=reason)
        self.load.count(self.custody.map.route(keys), keys, is_write=False)  # pyright: ignore[reportOptionalMemberAccess]
        width = -(-self.config.row_bytes // 8) * 8
        size = len(keys) * (width + 4)
        taken = self._arena.take(size) if ask.is_local else None
        values = taken[1][: len(keys) * width].reshape(-1, width) if taken else None
        rows, lost = self.table.get(keys, values)
        if lost:
            return self._get_healed(ask, keys[lost])
        if taken is None:
            return RowBatch(rows=rows.to_bytes())
        taken[1][len(keys) * width :] = rows.lengths.view(np.uint8)
        ref = self._arena.publish(taken[0], size)
        return RowBatch(
            rows=b"", arena=str(self._arena.path), slab=(ref.slab, ref.generation, ref.num_bytes)
        )

    async def _get_healed(self, ask: messages.Get, keys: np.ndarray) -> Any:
        """Answer a read after damaged values came from other holders."""
        if not await self.heal(keys):
            return NodeRefusal(reason="damaged", text=f"keys {keys.tolist()[:4]}")
        found = self.get(ask)
        return NodeRefusal(reason="damaged") if isinstance(found, Awaitable) else found

    def scan(self, ask: messages.Scan) -> RowBatch | NodeRefusal:
        """Return rows of a range in order."""
        edges = np.array([ask.first, ask.last], np.uint64)
        reason = self.custody.refuse_read(edges, self._clock())
        if reason:
            return NodeRefusal(reason=reason)
        most = min(ask.limit, _SCAN_BYTES // (self.config.row_bytes + 20))
        rows, lost = self.table.take(self.table.select(ask.first, ask.last)[:most])
        if lost:
            return NodeRefusal(reason="damaged", text=f"{len(lost)} rows")
        return RowBatch(rows=rows.to_bytes())

    # -- what takes its time ------------------------------------------------------------------

    async def put(self, ask: messages.Put) -> Done | NodeRefusal:
        """Write rows here and on every other holder."""
        sent = rows_from_bytes(ask.rows)
        if sent.values.shape[1] != self.config.row_bytes:
            return NodeRefusal(reason="input", text=f"rows have {self.config.row_bytes} bytes")
        reason = self.custody.refuse_write(sent.keys, self._clock())
        if reason:
            return NodeRefusal(reason=reason)
        rows = Rows(sent.keys, self.custody.versions_for(sent.keys), sent.lengths, sent.values)
        # No await until the rows are here: a map that names a learner comes before them or after,
        # and then the learner reads them from this table.
        copies = self.custody.copies_of(rows.keys)
        shard_map = self.custody.map
        assert shard_map is not None
        gone = [name for name in copies if self.gossip.membership.state(name) == "dead"]
        if gone:
            # It would be waited for in vain; the next map names others in its place.
            return NodeRefusal(reason="peer", text=f"{', '.join(gone)} dead, as gossip says")
        try:
            size = self._keep(rows)
        except CapacityError as error:
            return NodeRefusal(reason="full", text=str(error))
        self.load.count(shard_map.route(rows.keys), rows.keys, is_write=True)
        await self._pay(size)
        try:
            await asyncio.gather(
                *(
                    self.peer(shard_map.addresses[name]).ask(
                        messages.Apply(rows=rows.part(numbers).to_bytes()), 2.0
                    )
                    for name, numbers in copies.items()
                )
            )
        except RefusedError as error:
            return NodeRefusal(reason="peer", text=str(error))
        except OSError as error:
            return NodeRefusal(reason="peer", text=str(error))
        # Stopped between the check above and here, this node may have been replaced.
        if self._clock() >= self.custody.lease_end_s:
            return NodeRefusal(reason="lease")
        return Done()

    async def apply(self, ask: messages.Apply) -> Done | NodeRefusal:
        """Keep rows that a writer sends."""
        rows = rows_from_bytes(ask.rows)
        reason = self.custody.refuse_copy(rows.keys, rows.versions)
        if reason:
            return NodeRefusal(reason=reason)
        try:
            await self.keep(rows)
        except CapacityError as error:
            return NodeRefusal(reason="full", text=str(error))
        return Done()

    async def sync(self, ask: messages.Sync) -> Done | NodeRefusal:
        """Catch up on a range from another node, and check that nothing is missing."""
        if not self.is_known():
            return NodeRefusal(reason="lease")
        peer, moved = self.peer(ask.address), 0
        try:
            # Writes go on meanwhile, here as there; the later rounds are short.
            for _ in range(3):
                buckets = await catchup.buckets_to_pull(self.table, peer, ask.first, ask.last)
                if not len(buckets):
                    break
                width = self.config.row_bytes
                pulls = catchup.pulls(peer, ask.first, ask.last, buckets, width)
                async with contextlib.aclosing(pulls):
                    async for rows in pulls:
                        moved += rows.values.nbytes + 20 * len(rows)
                        await self.keep(rows)
        except CapacityError as error:
            return NodeRefusal(reason="full", text=str(error))
        except (OSError, RefusedError) as error:
            return NodeRefusal(reason="peer", text=str(error))
        self.moved_bytes += moved
        return Done(moved_bytes=moved)

    async def pull(self, ask: messages.Pull) -> RowBatch | NodeRefusal:
        """Return buckets of a range."""
        reason = self.refuse_source(ask.first, ask.last)
        if reason:
            return NodeRefusal(reason=reason)
        rows, lost = catchup.answer_pull(self.table, ask)
        if lost:
            # Whoever asks may be the one that would heal them, so nobody is asked from here.
            whole = np.setdiff1d(np.arange(len(rows)), lost)
            rows = rows.part(whole)
        return RowBatch(rows=rows.to_bytes())

    def hashes(self, ask: messages.TreeLevel) -> messages.Hashes | NodeRefusal:
        """Return hashes of a range."""
        reason = self.refuse_source(ask.first, ask.last)
        if reason:
            return NodeRefusal(reason=reason)
        return catchup.answer_hashes(self.table, ask)

    def refuse_source(self, first: int, last: int) -> str:
        """Return why nobody may copy a range from here, or an empty string.

        A restarted node holds less than the map says until the controller knows of its restart,
        and then it has a lease. Copied from before, its gaps would become those of others.
        """
        return self.custody.refuse_read(np.array([first, last], np.uint64), self._clock())

    def is_known(self) -> bool:
        """Whether the controller knows of this process."""
        return self.custody.is_known(self._clock())

    async def heal(self, keys: np.ndarray) -> bool:
        """Read damaged values from other holders; whether all came."""
        shard_map = self.custody.map
        healed = 0
        for key in keys.tolist() if shard_map else ():
            shard = shard_map.shards[int(shard_map.route(np.array([key], np.uint64))[0])]  # pyright: ignore[reportOptionalMemberAccess]
            for name in shard.replicas:
                if name == self.config.name:
                    continue
                buckets = catchup.bucket_of(np.array([key], np.uint64))
                ask = messages.Pull(first=key, last=key, buckets=buckets.tobytes())
                try:
                    answer = await self.peer(shard_map.addresses[name]).ask(ask)  # pyright: ignore[reportOptionalMemberAccess]
                except (OSError, RefusedError):
                    continue
                rows = rows_from_bytes(answer.rows)
                if len(rows):
                    self.table.restore(rows)
                    healed += 1
                    break
        return healed == len(keys)

    async def keep(self, rows: Rows) -> None:
        """Log rows and take them, at the speed of the disk; CapacityError where it is full."""
        await self._pay(self._keep(rows))

    def _keep(self, rows: Rows) -> int:
        """Log rows and take them; return the bytes that went to disk."""
        size = 0
        if self.config.persist:
            size = self.log.append(rows)
        self.table.put(rows)
        if self.config.persist and self.log.is_long():
            self.log.fold(self.table.take(np.flatnonzero(self.table.lengths >= 0))[0])
        return size

    async def _pay(self, size: int) -> None:
        """Wait as a disk of the given speed would."""
        if self._disk is not None and size:
            await self._disk.take(size)

    def close(self) -> None:
        """Release memory and files."""
        for peer in self._peers.values():
            peer.close()
        self.gossip.close()
        self._arena.close()
        self.log.close()


def _gossip_of(config: NodeConfig, clock: Callable[[], float]) -> NodeGossip:
    """Return the gossip of a node that has heard of nobody."""
    membership = SwimMembership(
        config.name,
        period_s=config.gossip_s,
        suspicion=config.suspicion,
        # Nodes must not ping in one order, and a restarted one not in that of before.
        generator=np.random.default_rng(),
    )
    key = bytes.fromhex(config.key)
    return NodeGossip(membership, config.name, key, period_s=config.gossip_s, clock=clock)
