"""The controller and the planner in virtual time, on nodes that only count and copy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.data.shardstore.shardmap import even_shards
from steelyard.errors import ConfigError, require
from steelyard.operate.shards.commands import ShardCommand
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.placement import distribute
from steelyard.operate.shards.planner import Planner
from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.views import NodeReport
from steelyard.sim.loop import EventLoop
from steelyard.train.chaos import ChaosFault

__all__ = ["LoadTrace", "ShardRun", "drifting_load", "simulate"]

_ROUND_TRIP_S = 0.01
"""Seconds until a node that is told of a map has answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTrace:
    """What a store is asked over time.

    Attributes:
        rates: accesses per second by window and grain of keys, [T, G]; a grain is the smallest
            range that can be a shard.
        window_s: seconds of a window.
        grain_bytes: bytes of each grain.
        faults: kills, restarts, and nodes that join later ("restart" of a new name).
    """

    rates: np.ndarray
    window_s: float = 1.0
    grain_bytes: float = 1e6
    faults: Sequence[ChaosFault] = ()

    def __post_init__(self) -> None:
        is_good = self.rates.ndim == 2 and self.rates.size > 0 and bool((self.rates >= 0).all())
        require(
            self,
            rates=(is_good, "numbers of at least 0, [T, G]"),
            window_s=(self.window_s > 0, "above 0"),
            grain_bytes=(self.grain_bytes > 0, "above 0"),
        )


@dataclass(frozen=True, slots=True)
class ShardRun:
    """What a simulated store did; all of it is simulated, nothing measured.

    Attributes:
        loads: accesses per second by window and node, [T, N]; of dead nodes NaN.
        imbalance: highest load over the mean, by window, [T].
        above_capacity_s: seconds that nodes carried more than their capacity, summed over nodes.
        moved_bytes: bytes copied.
        memory_bytes: mean bytes that replicas took.
        disk_bytes: mean bytes of coded fragments.
        repair_s: for each fault that killed, seconds until every shard had its copies again.
        failed_share: share of accesses that no live replica could answer.
        map_version: how often the map changed.
    """

    loads: np.ndarray
    imbalance: np.ndarray
    above_capacity_s: float
    moved_bytes: float
    memory_bytes: float
    disk_bytes: float
    repair_s: list[float]
    failed_share: float
    map_version: int


def drifting_load(
    generator: np.random.Generator,
    *,
    windows: int,
    grains: int,
    total_rate: float,
    exponent: float = 0.99,
    period: float = 120.0,
    amplitude: float = 0.6,
    drift: float = 0.002,
) -> np.ndarray:
    """Draw a Zipf load whose popular grains change and which has a daily cycle.

    Args:
        generator: source of the order and of the changes.
        windows: windows T.
        grains: grains G.
        total_rate: mean accesses per second.
        exponent: exponent of the Zipf law.
        period: windows of a day.
        amplitude: how far a grain's rate swings about its mean, 0 to 1; each grain has one of four
            phases.
        drift: share of the grains that change places in popularity each window.

    Returns:
        Rates [T, G].
    """
    popularity = 1 / np.arange(1, grains + 1) ** exponent
    popularity *= total_rate / popularity.sum()
    order = generator.permutation(grains)
    phases = generator.integers(0, 4, grains) * (np.pi / 2)
    rates = np.empty((windows, grains))
    for window in range(windows):
        for _ in range(generator.poisson(drift * grains)):
            one, two = generator.integers(grains, size=2)
            order[[one, two]] = order[[two, one]]
        swing = 1 + amplitude * np.sin(2 * np.pi * window / period + phases)
        rates[window] = popularity[order] * swing
    return rates


class _ShardRun:
    """One simulation."""

    def __init__(
        self, trace: LoadTrace, policy: Adaptive, nodes: int, shards: int, rate: float, seed: int
    ) -> None:
        self.trace, self.policy, self.rate = trace, policy, rate
        self.loop = EventLoop()
        self.names = [f"n{number}" for number in range(nodes)]
        joining = {fault.target for fault in trace.faults} - set(self.names)
        self.boots = dict.fromkeys(self.names, 1) | dict.fromkeys(sorted(joining), 0)
        self.columns = {name: column for column, name in enumerate(self.boots)}
        copies = dict.fromkeys(range(shards), policy.replicas)
        even = dict.fromkeys(range(shards), 1.0)
        placed = distribute(even, copies, dict.fromkeys(self.names, 1.0), eps=policy.eps)
        made = even_shards(shards, keys=trace.rates.shape[1])
        first = tuple(shard.with_(replicas=placed[shard.id]) for shard in made)
        self.controller = ShardController(first, policy, generator=np.random.default_rng(seed))
        self.planner = Planner(self.controller)
        for name in self.names:
            self.controller.add(name, name)
        self.blocks: dict[str, set[tuple[int, int, int]]] = {name: set() for name in self.boots}
        self.loads = np.full((len(trace.rates), len(self.columns)), np.nan)
        self.failed, self.memory, self.disk = 0.0, 0.0, 0.0
        self.broken_at_s: list[float] = []
        self.repair_s: list[float] = []
        self.is_ticking = False

    def start(self) -> None:
        """Schedule pings, windows and faults."""
        for number, name in enumerate(self.names):
            delay_s = self.policy.ping_s * number / len(self.names)
            self.loop.at(delay_s, lambda name=name: self.ping_forever(name))
        self.loop.at(self.policy.ping_s, self.tick_forever)
        for window in range(len(self.trace.rates)):
            end_s = (window + 1) * self.trace.window_s
            self.loop.at(end_s, lambda window=window: self.window(window), priority=1)
        for fault in self.trace.faults:
            self.loop.at(fault.time_s, lambda fault=fault: self.strike(fault))

    def strike(self, fault: ChaosFault) -> None:
        """Kill a node, or start one, which holds nothing."""
        if fault.kind == "kill":
            self.boots[fault.target] = 0
            self.blocks[fault.target].clear()
            self.broken_at_s.append(self.loop.now_s)
        elif fault.kind == "restart":
            self.boots[fault.target] = int(self.loop.num_events) + 2
            if fault.target not in self.controller.nodes:
                self.controller.add(fault.target, fault.target)
                self.ping_forever(fault.target)

    def ping_forever(self, name: str) -> None:
        """Ping a node at the policy's rate."""
        self.ping(name)
        self.loop.after(self.policy.ping_s, lambda: self.ping_forever(name))

    def ping(self, name: str) -> None:
        """Have a node answer, or miss its ping."""
        if self.boots[name]:
            report = NodeReport(
                boot=self.boots[name],
                spoken_s=self.loop.now_s,
                map_version=self.controller.map.version,
                fragments=frozenset(self.blocks[name]),
            )
            self.controller.heard(name, report, self.loop.now_s)
        else:
            for helper in self.controller.missed(name, self.loop.now_s):
                self.controller.detector.probed(helper, is_reached=False)

    def tick_forever(self) -> None:
        """Let the controller decide at the rate of pings."""
        self.tick()
        self.loop.after(self.policy.ping_s, self.tick_forever)

    def tick(self) -> None:
        """Let the controller decide; a copy takes as long as a link asks for its bytes."""
        self.is_ticking = False
        for command in self.controller.tick(self.loop.now_s):
            size = self.bytes_of(command)
            # A link that carries so many copies at once gives each its share.
            duration_s = self.policy.moves_at_once * size / self.rate
            self.loop.after(duration_s, lambda c=command, s=size: self.end(c, s))
        # As the driver does: who has to know of the map is told at once, and then the next begin.
        awaited = self.controller.awaited()
        for name in sorted(awaited):
            self.loop.after(_ROUND_TRIP_S, lambda name=name: self.ping(name))
        if awaited:
            self.tick_soon()
        is_whole = self.controller.is_whole() and not self.controller.tasks
        if self.broken_at_s and is_whole and self.is_noticed():
            self.repair_s += [self.loop.now_s - at_s for at_s in self.broken_at_s]
            self.broken_at_s.clear()

    def tick_soon(self) -> None:
        """Let the controller decide a little later, once for all that happens until then."""
        if not self.is_ticking:
            self.is_ticking = True
            self.loop.after(2 * _ROUND_TRIP_S, self.tick)

    def is_noticed(self) -> bool:
        """Whether the controller knows of every dead node."""
        return all(
            self.boots[name] or self.controller.detector.state(name) == "dead"
            for name in self.controller.nodes
        )

    def end(self, command: ShardCommand, size: float) -> None:
        """End a command; it fails when one of its nodes died."""
        ok = all(self.boots[name] for name in (command.target, command.source) if name)
        if ok and command.kind in ("freeze", "rebuild"):
            self.keep_blocks(command)
        moved = int(size) if ok and command.kind != "reconcile" else 0
        self.controller.finished(command.task, ok=ok, moved_bytes=moved)
        self.tick_soon()

    def keep_blocks(self, command: ShardCommand) -> None:
        """Note which nodes have the blocks of a shard; a report without one asks for a rebuild."""
        shard = self.controller.shard(command.shard)
        if shard is None:
            return
        nodes = dict(enumerate(command.nodes))
        if command.kind == "rebuild":
            nodes = {command.number: command.target}
        for number, name in nodes.items():
            self.blocks[name].add((shard.id, shard.epoch, number))

    def bytes_of(self, command: ShardCommand) -> float:
        """Return the bytes that a command copies; nothing differs when replicas are compared."""
        shard = self.controller.shard(command.shard)
        if shard is None or command.kind == "reconcile":
            return 0.0
        size = self.grains(shard.first, shard.last) * self.trace.grain_bytes
        data, parity = self.policy.code
        return size * (data + parity) / data if command.kind == "freeze" else size

    def grains(self, first: int, last: int) -> int:
        """Return how many grains a range of keys has."""
        return max(0, min(last, self.trace.rates.shape[1] - 1) - first + 1)

    def window(self, number: int) -> None:
        """Share the accesses of a window among live replicas, and let the planner see them."""
        sums = np.concatenate([[0.0], np.cumsum(self.trace.rates[number])])
        grains = len(sums) - 1
        shards = self.controller.map.shards
        loads = {name: 0.0 for name, boot in self.boots.items() if boot}
        counts, sizes, middles = {}, {}, {}
        for shard in shards:
            stop = min(shard.last, grains - 1) + 1
            rate = float(sums[stop] - sums[shard.first])
            live = [name for name in shard.replicas if name in loads]
            for name in live:
                loads[name] += rate / len(live)
            if not live and not shard.is_cold:
                self.failed += rate * self.trace.window_s
            counts[shard.id] = rate * self.trace.window_s
            sizes[shard.id] = self.grains(shard.first, shard.last) * self.trace.grain_bytes
            half = (sums[stop] + sums[shard.first]) / 2
            middles[shard.id] = (
                int(np.searchsorted(sums[shard.first : stop + 1], half)) + shard.first
            )
            data, parity = shard.code
            self.memory += sizes[shard.id] * len(shard.replicas)
            self.disk += sizes[shard.id] * (data + parity) / data if shard.is_cold else 0.0
        for name, load in loads.items():
            self.loads[number, self.columns[name]] = load
        self.warm_used(counts)
        self.planner.plan(self.loop.now_s, counts, sizes, middles)

    def warm_used(self, counts: dict[int, float]) -> None:
        """Bring cold shards back that are used."""
        controller = self.controller
        busy = controller.tasks.busy()
        used = [s for s in controller.map.shards if s.is_cold and counts[s.id] >= 1]
        for shard in used:
            if shard.id not in busy:
                targets = controller.targets.warm_targets(controller.map, controller.weights)
                controller.warm(shard, targets, self.loop.now_s)


def simulate(
    trace: LoadTrace,
    *,
    nodes: int = 1000,
    policy: Adaptive | None = None,
    shards: int = 0,
    bytes_per_s: float = 20e6,
    capacity: float = 0.0,
    seed: int = 0,
) -> ShardRun:
    """Run controller and planner over a trace in virtual time.

    Detector, placement, repair and planner are those of a real store. Nodes have links of one
    speed; reads spread evenly over a shard's live replicas.

    Args:
        trace: what is asked, and what fails.
        nodes: nodes at the start.
        policy: what the controller may do.
        shards: shards at the start; 0 for four a node.
        bytes_per_s: speed of a node's link.
        capacity: accesses per second that a node can answer; 0 for twice its mean load.
        seed: seed of the detector's draws.

    Returns:
        Loads, imbalance, bytes moved, repairs.

    Raises:
        ConfigError: there is no node, or more shards than grains.
    """
    chosen = policy or Adaptive(ping_s=1.0, lease_s=4.0)
    count = shards or min(4 * nodes, trace.rates.shape[1])
    if nodes < 1 or not 1 <= count <= trace.rates.shape[1]:
        raise ConfigError(
            f"{nodes} nodes and {count} shards over {trace.rates.shape[1]} grains",
            hint="give at least one node, and no more shards than grains",
        )
    run = _ShardRun(trace, chosen, nodes, count, bytes_per_s, seed)
    run.start()
    run.loop.run(until_s=len(trace.rates) * trace.window_s)
    windows = len(trace.rates)
    limit = capacity or 2 * float(trace.rates.sum(axis=1).mean()) / nodes
    above = float((np.nan_to_num(run.loads) > limit).sum()) * trace.window_s
    total = float(trace.rates.sum()) * trace.window_s
    return ShardRun(
        loads=run.loads,
        imbalance=np.nanmax(run.loads, axis=1) / np.nanmean(run.loads, axis=1),
        above_capacity_s=above,
        moved_bytes=float(run.controller.moved_bytes),
        memory_bytes=run.memory / windows,
        disk_bytes=run.disk / windows,
        repair_s=run.repair_s,
        failed_share=run.failed / total if total else 0.0,
        map_version=run.controller.map.version,
    )
