"""Random sequences of faults over simulated nodes: the real controller and the real rights.

Nodes hold keys with versions in place of rows. Messages take random times; a stopped node does
what it was sent when it goes on, however late. Some kills take the node's memory and disk with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.data.shardstore.custody import Custody
from steelyard.data.shardstore.rows import EPOCH_SHIFT
from steelyard.data.shardstore.shardmap import Shard, even_shards
from steelyard.operate.shards.commands import ShardCommand
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.placement import distribute
from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.views import NodeReport
from steelyard.sim.loop import EventLoop
from steelyard.train.chaos import ChaosFault, draw_faults

NUM_KEYS = 24
POLICY = Adaptive(replicas=2, code=(2, 1), lease_s=1.5, ping_s=0.25)


@dataclass
class Node:
    """A simulated process."""

    name: str
    boot: int = 1
    is_up: bool = True
    is_stopped: bool = False
    is_cut: bool = False
    recovered: bool = False
    rows: dict[int, int] = field(default_factory=dict)
    fragments: dict[tuple[int, int, int], dict[int, int]] = field(default_factory=dict)
    inbox: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.custody = Custody(self.name)


class World:
    """One sequence; `violations` says what went wrong, and is empty when nothing did."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 5,
        shards: int = 4,
        horizon_s: float = 10.0,
        replicas: int = 2,
    ):
        self.random = np.random.default_rng(seed)
        self.policy = replace(POLICY, replicas=replicas, hot_replicas=replicas)
        self.loop = EventLoop()
        self.horizon_s = horizon_s
        names = [f"n{number}" for number in range(nodes)]
        self.nodes = {name: Node(name) for name in names}
        copies = distribute(
            dict.fromkeys(range(shards), 1.0), dict.fromkeys(range(shards), replicas),
            dict.fromkeys(names, 1.0), eps=0.25,
        )  # fmt: skip
        made = even_shards(shards, keys=NUM_KEYS)
        placed = tuple(shard.with_(replicas=copies[shard.id]) for shard in made)
        self.controller = ShardController(placed, self.policy, generator=self.random)
        for name in names:
            self.controller.add(name, name)
        self.client_map = self.controller.map
        self.acknowledged: dict[int, int] = {}
        self.writers: dict[tuple[int, int], set[tuple[str, int]]] = {}
        self.violations: list[str] = []
        self.counts = {"writes": 0, "acknowledged": 0, "reads": 0, "read": 0, "frozen": 0}
        self.last_holders: dict[int, set[str]] = {}
        self.wiped: set[tuple[int, str]] = set()
        self.faults = draw_faults(names, self.random, horizon_s=horizon_s, every_s=1.5, mean_s=2.0)

    # -- time and messages --------------------------------------------------------------------

    def delay_s(self) -> float:
        """Draw how long a message takes; a few take long."""
        slow = self.random.random() < 0.02
        return float(self.random.exponential(0.4 if slow else 0.004))

    def send(self, node: Node, work: Callable[[], None]) -> None:
        """Have a process do something when a message arrives, or when it goes on."""
        boot = node.boot

        def arrive() -> None:
            if not node.is_up or node.boot != boot:
                return
            if node.is_stopped:
                node.inbox.append(work)
            else:
                work()

        self.loop.after(self.delay_s(), arrive)

    def later(self, work: Callable[[], None]) -> None:
        """Do something of the controller or a client when a message arrives."""
        self.loop.after(self.delay_s(), work)

    def run(self) -> "World":
        """Run the sequence, then let everything come back, and look at every key."""
        for name in self.nodes:
            self.loop.after(float(self.random.uniform(0, 0.2)), lambda name=name: self.ping(name))
        self.loop.at(0.3, self.tick)
        self.loop.at(1.0, self.use)
        for fault in self.faults:
            self.loop.at(min(fault.time_s, self.horizon_s) + 1.0, lambda f=fault: self.strike(f))
        self.loop.run(until_s=self.horizon_s + 8.0)
        self.look()
        return self

    # -- controller ---------------------------------------------------------------------------

    def ping(self, name: str) -> None:
        """Ping a node, and again after a while."""
        node = self.nodes[name]
        boot, spoken_s, shard_map, prune = self.controller.ping(name)
        answered = []

        def answer() -> None:
            if boot == node.boot:
                if shard_map is not None:
                    node.custody.install(shard_map)
                node.custody.extend(spoken_s, POLICY.lease_s)
                if prune:
                    self.prune(node)
            held = node.custody.map
            report = NodeReport(
                boot=node.boot,
                spoken_s=self.loop.now_s,
                map_version=held.version if held else 0,
                rows=self.held(node),
                fragments=frozenset(node.fragments),
                recovered=node.recovered,
            )

            def hear() -> None:
                if not answered and not node.is_cut:
                    answered.append(True)
                    self.controller.heard(name, report, self.loop.now_s)
                    self.note()

            self.later(hear)

        if not node.is_cut:
            self.send(node, answer)

        def late() -> None:
            if not answered:
                answered.append(True)
                for helper in self.controller.missed(name, self.loop.now_s):
                    other = self.nodes[helper]
                    is_reached = node.is_up and not node.is_stopped and other.is_up
                    self.controller.detector.probed(name, is_reached=is_reached)

        self.loop.after(2 * POLICY.ping_s, late)
        self.loop.after(
            POLICY.ping_s * float(self.random.uniform(0.9, 1.1)), lambda: self.ping(name)
        )

    def held(self, node: Node) -> dict[int, int]:
        """Count a node's keys by shard."""
        shards = self.controller.map.route(np.array(sorted(node.rows), np.uint64))
        return {int(number): 1 for number in shards}

    def prune(self, node: Node) -> None:
        """Forget what the map does not give a node."""
        for shard in node.custody.map.shards if node.custody.map else ():
            if node.name not in shard.holders:
                for key in range(shard.first, min(shard.last, NUM_KEYS - 1) + 1):
                    node.rows.pop(key, None)
        for block in [item for item in node.fragments if not node.custody.keeps_block(*item)]:
            del node.fragments[block]

    def tick(self) -> None:
        """Let the controller decide."""
        for command in self.controller.tick(self.loop.now_s):
            self.do(command)
        self.note()
        self.loop.after(POLICY.ping_s / 4, self.tick)

    def note(self) -> None:
        """Remember who held what last."""
        for shard in self.controller.map.shards:
            if shard.replicas or shard.is_cold:
                holders = set(shard.fragments if shard.is_cold else shard.replicas)
                if holders != self.last_holders.get(shard.id):
                    # Whoever is named anew holds everything, unless it died since it said so.
                    new = holders - self.last_holders.get(shard.id, set())
                    self.wiped -= {(shard.id, n) for n in new if self.has_all(shard, n)}
                self.last_holders[shard.id] = holders

    def has_all(self, shard: Shard, name: str) -> bool:
        """Whether a node has every acknowledged key of a shard, or a fragment of it."""
        node = self.nodes[name]
        if shard.is_cold:
            return any(number[0] == shard.id for number in node.fragments)
        keys = [key for key in self.acknowledged if shard.first <= key <= shard.last]
        return all(node.rows.get(key, 0) >= self.acknowledged[key] for key in keys)

    def do(self, command: ShardCommand) -> None:
        """Do a command as nodes would; it fails when one that it needs is gone."""
        shard = self.controller.shard(command.shard)
        target = self.nodes[command.target]

        def end(ok: bool) -> None:
            self.later(lambda: self.controller.finished(command.task, ok=ok))

        if shard is None or not target.is_up:
            end(False)
        elif command.kind in ("copy", "reconcile"):
            self.copy(shard, target, self.nodes[command.source], end)
        else:
            self.send(target, lambda: self.code(command, shard, target, end))

    def copy(self, shard: Shard, target: Node, source: Node, end: Callable[[bool], None]) -> None:
        """Read the rows of a shard at one time and keep them at another."""
        keys = range(shard.first, min(shard.last, NUM_KEYS - 1) + 1)

        def read() -> None:
            if source.custody.refuse_read(self.edges(shard), self.loop.now_s):
                return end(False)
            rows = {key: source.rows[key] for key in keys if key in source.rows}

            def keep() -> None:
                if not target.custody.is_known(self.loop.now_s):
                    return end(False)
                for key, version in rows.items():
                    target.rows[key] = max(version, target.rows.get(key, 0))
                end(True)

            self.send(target, keep)

        self.send(source, read)
        # A peer that does not answer in time is an error; a late answer finds its task gone.
        self.loop.after(3.0, lambda: end(False))

    def edges(self, shard: Shard) -> np.ndarray:
        """Return the lowest and highest key of a shard."""
        return np.array([shard.first, shard.last], np.uint64)

    def code(
        self, command: ShardCommand, shard: Shard, target: Node, end: Callable[[bool], None]
    ) -> None:
        """Freeze a shard, make a fragment, or warm a shard; fragments hold their whole content."""
        version, needed = shard.epoch, POLICY.code[0]
        if not target.custody.is_known(self.loop.now_s):
            return end(False)
        nodes = [self.nodes[name] for name in command.nodes]
        able = [node.is_up and not node.is_stopped for node in nodes]
        if command.kind == "freeze":
            held = target.custody.map
            known = held and next((item for item in held.shards if item.id == shard.id), None)
            may = not target.custody.refuse_read(self.edges(shard), self.loop.now_s)
            if not known or not known.sealed or not may or not all(able):
                return end(False)
            keys = range(shard.first, min(shard.last, NUM_KEYS - 1) + 1)
            rows = {key: target.rows[key] for key in keys if key in target.rows}
            for number, node in enumerate(nodes):
                node.fragments[shard.id, version, number] = dict(rows)
            self.counts["frozen"] += 1
            return end(True)
        found = [
            node.fragments[shard.id, version, number]
            for number, node in enumerate(nodes)
            if able[number] and (shard.id, version, number) in node.fragments
        ]
        if len(found) < needed:
            return end(False)
        if command.kind == "warm":
            for key, held_version in found[0].items():
                target.rows[key] = max(held_version, target.rows.get(key, 0))
        else:
            target.fragments[shard.id, version, command.number] = dict(found[0])
        return end(True)

    # -- clients ------------------------------------------------------------------------------

    def use(self) -> None:
        """Write or read a key, or freeze or warm a shard, and again after a while."""
        key = int(self.random.integers(NUM_KEYS))
        draw = self.random.random()
        if draw < 0.55:
            self.write(key)
        elif draw < 0.97:
            self.read(key)
        elif draw < 0.98:
            self.move()
        elif draw < 0.99:
            self.freeze()
        else:
            self.warm()
        if self.loop.now_s < self.horizon_s:
            self.loop.after(float(self.random.exponential(0.05)), self.use)

    def refresh(self) -> None:
        self.client_map = self.controller.map

    def write(self, key: int) -> None:
        """Send a write to the node that the client thinks writes."""
        keys = np.array([key], np.uint64)
        shard = self.client_map.shards[int(self.client_map.route(keys)[0])]
        self.counts["writes"] += 1
        if not shard.replicas:
            return self.refresh()
        node = self.nodes[shard.replicas[0]]

        def take() -> None:
            custody = node.custody
            if custody.refuse_write(keys, self.loop.now_s):
                return self.later(self.refresh)
            version = int(custody.versions_for(keys)[0])
            epoch = version >> int(EPOCH_SHIFT)
            self.writers.setdefault((shard.id, epoch), set()).add((node.name, node.boot))
            copies = custody.copies_of(keys)
            node.rows[key] = max(version, node.rows.get(key, 0))
            waiting = set(copies)

            def kept(name: str, ok: bool) -> None:
                if ok:
                    waiting.discard(name)
                    if not waiting:
                        acknowledge()

            def acknowledge() -> None:
                if self.loop.now_s < custody.lease_end_s:
                    self.counts["acknowledged"] += 1
                    self.acknowledged[key] = max(version, self.acknowledged.get(key, 0))

            for name in copies:
                other = self.nodes[name]

                def apply(name: str = name, other: Node = other) -> None:
                    versions = np.array([version], np.uint64)
                    ok = not other.custody.refuse_copy(keys, versions)
                    if ok:
                        other.rows[key] = max(version, other.rows.get(key, 0))
                    self.send(node, lambda: kept(name, ok))

                self.send(other, apply)
            if not copies:
                acknowledge()

        self.send(node, take)

    def read(self, key: int) -> None:
        """Read a key from any holder: it must be as new as what was acknowledged before."""
        keys = np.array([key], np.uint64)
        shard = self.client_map.shards[int(self.client_map.route(keys)[0])]
        self.counts["reads"] += 1
        if not shard.replicas:
            return self.refresh()
        node = self.nodes[shard.replicas[int(self.random.integers(len(shard.replicas)))]]
        least = self.acknowledged.get(key, 0)

        def take() -> None:
            if node.custody.refuse_read(keys, self.loop.now_s):
                return self.later(self.refresh)
            self.counts["read"] += 1
            if node.rows.get(key, 0) < least:
                self.violations.append(f"{node.name} answered key {key} with an older version")

        self.send(node, take)

    def move(self) -> None:
        """Move a copy to another node, or take one away."""
        controller = self.controller
        busy = controller.tasks.busy()
        able = [s for s in controller.map.shards if len(s.replicas) > 1 and s.id not in busy]
        if not able:
            return
        shard = able[int(self.random.integers(len(able)))]
        old = shard.replicas[int(self.random.integers(len(shard.replicas)))]
        free = [
            name
            for name in controller.live()
            if controller.detector.state(name) == "up" and name not in shard.holders
        ]
        if self.random.random() < 0.2:
            controller.retire(shard, old, self.loop.now_s)
        elif free and not shard.sealed:
            target = free[int(self.random.integers(len(free)))]
            controller.copy(shard, target, self.loop.now_s, source=shard.replicas[0], replaces=old)

    def freeze(self) -> None:
        """Code a shard that is whole and quiet."""
        controller = self.controller
        busy = controller.tasks.busy()
        copies = self.policy.replicas
        warm = [s for s in controller.map.shards if len(s.replicas) == copies and s.id not in busy]
        up = [name for name in controller.live() if controller.detector.state(name) == "up"]
        if warm and len(up) >= 3:
            shard = warm[int(self.random.integers(len(warm)))]
            nodes = tuple(str(name) for name in self.random.choice(up, 3, replace=False))
            controller.freeze(shard, nodes, self.loop.now_s)

    def warm(self) -> None:
        """Read a cold shard back."""
        controller = self.controller
        busy = controller.tasks.busy()
        cold = [s for s in controller.map.shards if s.is_cold and s.id not in busy]
        up = [name for name in controller.live() if controller.detector.state(name) == "up"]
        if cold and up:
            targets = self.random.choice(up, min(len(up), self.policy.replicas), replace=False)
            controller.warm(cold[0], tuple(map(str, targets)), self.loop.now_s)

    # -- faults -------------------------------------------------------------------------------

    def strike(self, fault: ChaosFault) -> None:
        """Begin or end a fault."""
        node = self.nodes[fault.target]
        if fault.kind == "kill":
            node.is_up = False
            node.inbox.clear()
            if self.random.random() < 0.4:
                node.rows, node.fragments = {}, {}
                self.wiped |= {
                    (shard, node.name) for shard in range(len(self.controller.map.shards))
                }
        elif fault.kind == "restart":
            rows, fragments = node.rows, node.fragments
            node.__init__(node.name, boot=node.boot + 1, rows=rows, fragments=fragments)
            node.recovered = bool(rows)
        elif fault.kind == "stop":
            node.is_stopped = True
        elif fault.kind == "resume":
            node.is_stopped = False
            work, node.inbox = node.inbox, []
            for item in work:
                item()
        else:
            node.is_cut = fault.kind == "cut"

    def look(self) -> None:
        """At the end: what was acknowledged is readable, or all its holders had lost it."""
        for (shard, epoch), found in self.writers.items():
            if len(found) > 1:
                self.violations.append(f"shard {shard} had the writers {found} in epoch {epoch}")
        shard_map = self.controller.map
        for key, version in self.acknowledged.items():
            shard = shard_map.shards[int(shard_map.route(np.array([key], np.uint64))[0])]
            whole = [
                name for name in self.last_holders[shard.id] if (shard.id, name) not in self.wiped
            ]
            if shard.is_cold:
                copies = [
                    self.nodes[name].fragments.get((shard.id, shard.epoch, number), {})
                    for number, name in enumerate(shard.fragments)
                ]
                good = sum(copy.get(key, 0) >= version for copy in copies) >= shard.code[0]
                should = len(whole) >= shard.code[0]
            else:
                versions = [self.nodes[name].rows.get(key, 0) for name in shard.replicas]
                good = bool(versions) and min(versions) >= version
                should = bool(whole)
            if should and not good:
                self.violations.append(f"key {key} of shard {shard.id} is lost: {shard}")
            if not good and not should and shard.replicas:
                self.violations.append(f"key {key} of shard {shard.id} is answered, but was lost")
