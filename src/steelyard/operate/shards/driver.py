"""The controller on the real clock: pings go out, answers come in, commands are done."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from steelyard.data.shardstore import messages
from steelyard.data.shardstore.wire import Peer, RefusedError
from steelyard.errors import StoreError
from steelyard.operate.shards.commands import ShardCommand
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.loads import COLD, HOT, WARM
from steelyard.operate.shards.planner import Planner
from steelyard.operate.shards.views import NodeReport

__all__ = ["ShardDriver"]

T = TypeVar("T")
_COMMAND_S = 55.0
_LEAST_TICK_S = 0.01
"""A tick looks at every shard: answers that come closer together share one."""


class ShardDriver:
    """One thread with an event loop, in which alone the controller is used."""

    def __init__(self, controller: ShardController, key: bytes, save: Callable[[], None]) -> None:
        """Take a controller.

        Args:
            controller: decides.
            key: secret of the store.
            save: called when the map has changed, before any node hears of it.
        """
        self._controller, self._key, self._save = controller, key, save
        self._peers: dict[str, Peer] = {}
        self._acks: dict[str, messages.Ack] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)
        self._planner = Planner(controller)
        self._counts: dict[int, float] = {}
        self._middles: dict[int, int] = {}
        self._saved_version = -1
        self._tasks: set[asyncio.Future[Any]] = set()
        self._is_changed = asyncio.Event()
        self._called: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self.call(lambda: self._keep(self._tick_forever()))
        self.call(lambda: self._keep(self._plan_forever()))

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            for peer in self._peers.values():
                peer.close()
            self._loop.run_until_complete(asyncio.sleep(0))

    def call(self, work: Callable[[], T]) -> T:
        """Run something in the thread of the controller and return what it returns."""

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10.0)

    def _keep(self, work: Any) -> None:
        """Start a task and hold it until it ends: a loop alone may lose it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def add(self, name: str, address: str, host: str = "") -> None:
        """Name a node, or the new process of one; `host` is its failure domain."""
        is_new = name not in self._controller.nodes
        self._controller.add(name, address, host=host)
        old = self._peers.pop(name, None)
        if old is not None:
            old.close()
        self._peers[name] = Peer(address, key=self._key)
        if is_new:
            self._called[name] = asyncio.Event()
            self._keep(self._ping_forever(name))

    def warm(self, number: int) -> None:
        """Begin to bring a cold shard to memory unless something happens to it already."""
        controller = self._controller
        shard = controller.shard(number)
        if shard is None or not shard.is_cold or number in controller.tasks.busy():
            return
        targets = controller.targets.warm_targets(controller.map, controller.weights)
        controller.warm(shard, targets, time.monotonic())

    # -- the loop -----------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        """Let the controller decide, keep its map, and do its commands.

        A rebuild is many short copies, each of which waits for a map and for a tick: both come when
        they are needed and not only at their rate, which would take longer than the copies do.
        """
        controller = self._controller
        while True:
            for command in controller.tick(time.monotonic()):
                self._keep(self._do(command))
            self._save_changes()
            for name in controller.awaited():
                self._called[name].set()
            await asyncio.sleep(_LEAST_TICK_S)
            await _wait(self._is_changed, controller.policy.ping_s / 4)

    async def _plan_forever(self) -> None:
        """Let the planner see the counts of each window."""
        controller = self._controller
        while True:
            await asyncio.sleep(controller.policy.window_s)
            rows = [view.report.rows for view in controller.nodes.values() if view.report]
            sizes = {
                shard.id: float(max((held.get(shard.id, 0) for held in rows), default=0))
                for shard in controller.map.shards
            }
            counts, self._counts = self._counts, {}
            self._planner.plan(time.monotonic(), counts, sizes, self._middles)

    def _save_changes(self) -> None:
        """Keep the map on disk when it has changed."""
        version = self._controller.map.version
        if version != self._saved_version:
            self._save()
            self._saved_version = version

    async def _ping_forever(self, name: str) -> None:
        """Ping a node at the policy's rate."""
        policy = self._controller.policy
        while True:
            begin_s = time.monotonic()
            self._save_changes()  # no node may know a map that a restarted controller would not
            boot, spoken_s, shard_map, prune = self._controller.ping(name)
            ask = messages.Ping(
                boot=boot, spoken_s=spoken_s, lease_s=policy.lease_s, map=shard_map, prune=prune
            )
            try:
                ack = await self._peers[name].ask(ask, 2 * policy.ping_s)
                self._hear(name, ack)
            except (OSError, RefusedError):
                self._miss(name)
            left_s = policy.ping_s - (time.monotonic() - begin_s)
            await _wait(self._called[name], max(0.01, left_s))

    def _hear(self, name: str, ack: messages.Ack) -> None:
        """Tell the controller what a node has answered."""
        self._acks[name] = ack
        shards = self._controller.map.shards
        counts = np.frombuffer(ack.rows, np.int64)
        # Counts of another map's shards are left: their numbers are other ones.
        is_same = ack.map_version == self._controller.map.version and len(counts) == len(shards)
        held = (
            {shards[place].id: int(counts[place]) for place in np.flatnonzero(counts)}
            if (is_same)
            else dict(old.rows)
            if (old := self._controller.nodes[name].report)
            else {}
        )
        if is_same:
            self._count(ack)
        blocks = np.frombuffer(ack.fragments, np.int64).reshape(-1, 3)
        report = NodeReport(
            boot=ack.boot,
            spoken_s=ack.now_s,
            map_version=ack.map_version,
            rows=held,
            fragments=frozenset((int(one), int(two), int(three)) for one, two, three in blocks),
            recovered=ack.recovered,
            is_full=ack.is_full,
            suspects=frozenset(item.name for item in ack.not_alive if item.state == "suspect"),
            dead=frozenset(item.name for item in ack.not_alive if item.state == "dead"),
        )
        self._controller.heard(name, report, time.monotonic())
        if self._controller.tasks:
            self._is_changed.set()

    def _count(self, ack: messages.Ack) -> None:
        """Add what a node has counted since its last answer."""
        shards = self._controller.map.shards
        reads = np.frombuffer(ack.reads, np.int64)
        used = reads + np.frombuffer(ack.writes, np.int64)
        for place in np.flatnonzero(used).tolist():
            number = shards[place].id
            self._counts[number] = self._counts.get(number, 0.0) + float(used[place])
        if ack.middle and reads.any():
            self._middles[shards[int(np.argmax(reads))].id] = ack.middle

    def _miss(self, name: str) -> None:
        """Tell of a missed ping, and let others probe the node."""
        for helper in self._controller.missed(name, time.monotonic()):
            self._keep(self._probe(helper, name))

    async def _probe(self, helper: str, name: str) -> None:
        """Ask one node whether another answers it."""
        ask = messages.ProbeNode(address=self._controller.nodes[name].address)
        try:
            await self._peers[helper].ask(ask, 1.0)
        except (OSError, RefusedError):
            return
        self._controller.detector.probed(name, is_reached=True)

    async def _do(self, command: ShardCommand) -> None:
        """Do a command and tell how it ended."""
        moved, ok = 0, False
        try:
            ask = self._message(command)
            if ask is not None:
                moved = (await self._peers[command.target].ask(ask, _COMMAND_S)).moved_bytes
                ok = True
        except (OSError, RefusedError, StoreError):
            pass  # the controller plans anew from what is left
        self._controller.finished(command.task, ok=ok, moved_bytes=moved)
        self._is_changed.set()

    def _message(self, command: ShardCommand) -> Any:
        """Return what a node is asked for a command; None when its shard is gone."""
        shard = self._controller.shard(command.shard)
        if shard is None:
            return None
        nodes = self._controller.nodes
        if command.kind in ("copy", "reconcile"):
            address = nodes[command.source].address
            return messages.Sync(first=shard.first, last=shard.last, address=address)
        code = shard.code if shard.is_cold else self._controller.policy.code
        parts: dict[str, Any] = {
            "shard": shard.id,
            "version": shard.epoch,
            "data": code[0],
            "parity": code[1],
            "addresses": tuple(nodes[name].address for name in command.nodes),
        }
        if command.kind == "freeze":
            return messages.Freeze(**parts)
        if command.kind == "warm":
            return messages.WarmShard(**parts)
        return messages.RebuildFragment(**parts, number=command.number)

    def status(self) -> dict[str, Any]:
        """Return what is known, in plain values."""
        controller = self._controller
        nodes = {}
        for name, view in sorted(controller.nodes.items()):
            ack = self._acks.get(name)
            nodes[name] = {
                "state": controller.detector.state(name),
                "leads": sum(s.replicas[:1] == (name,) for s in controller.map.shards),
                "replicas": sum(name in s.replicas for s in controller.map.shards),
                "fragments": sum(name in s.fragments for s in controller.map.shards),
                "rows": sum(view.report.rows.values()) if view.report else 0,
                "memory_bytes": ack.num_bytes if ack else 0,
                "repaired_rows": ack.num_repairs if ack else 0,
                "availability": self._planner.availability.share(name),
                "is_full": bool(ack and ack.is_full),
                "refuted": ack.incarnation if ack else 0,
                "suspected_by": _doubters(controller, name),
            }
        live = set(controller.live())
        shards = controller.map.shards
        return {
            "map_version": controller.map.version,
            "nodes": nodes,
            "shards": len(shards),
            "cold": sum(shard.is_cold for shard in shards),
            "lacking": sum(controller.lacking(shard, live) > 0 for shard in shards),
            "lost": [shard.id for shard in shards if controller.targets.why_lost(shard)],
            "degraded": controller.targets.why_degraded(),
            "under_way": [
                f"{task.command.kind} of shard {task.command.shard} to {task.command.target}"
                for task in controller.tasks
            ],
            "classes": {
                name: int((self._planner.loads.classes == kind).sum())
                for name, kind in (("hot", HOT), ("warm", WARM), ("cold", COLD))
            },
            "moved_bytes": controller.moved_bytes,
            "events": [f"{at:.2f} s: {words}" for at, words in controller.events[-20:]],
        }


def _doubters(controller: ShardController, name: str) -> list[str]:
    """Return the live nodes that suspect a node or hold it for dead, by gossip."""
    found = []
    for other in controller.live():
        report = controller.nodes[other].report
        if report and name in report.suspects | report.dead:
            found.append(other)
    return found


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, not longer than a time, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    event.clear()
