"""The controller: it watches nodes, replaces dead ones, and moves copies; pure, told the time."""

from collections.abc import Callable

import numpy as np

from steelyard.data.shardstore.shardmap import Shard, ShardMap
from steelyard.operate.shards.commands import ShardCommand, ShardTask
from steelyard.operate.shards.detector import Detector
from steelyard.operate.shards.outcome import shard_after
from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.targets import Targets
from steelyard.operate.shards.tasks import TaskTable
from steelyard.operate.shards.views import NodeReport, NodeView
from steelyard.train.group import MemberGroup

__all__ = ["ShardController"]

_TASK_TIMEOUT_S = 60.0


class ShardController:
    """Holds the map and changes it.

    Whoever drives it pings the nodes, with `ping`, tells what came with `heard` and `missed`, calls
    `tick` and does the commands, and tells with `finished` how each ended. Nothing here knows
    whether nodes are processes or simulated, or which clock runs.

    A node loses its rights before another gets them: it is removed from the map no earlier than its
    lease is over. A new holder is a learner first, to which all writes go, then reads the rest, and
    is named a replica when nothing is missing.

    Attributes:
        map: the newest map.
        nodes: nodes by their names.
        tasks: changes under way.
        targets: chooses nodes to read from and to copy to.
        wished: returns how many copies a shard should have.
        weights: load by shard; 1 for those not named.
        moved_bytes: bytes that went over the network for tasks.
        events: what happened, (time in seconds, words), newest last.
    """

    def __init__(
        self,
        shards: tuple[Shard, ...],
        policy: Adaptive,
        *,
        generator: np.random.Generator,
        epoch: int = 0,
    ) -> None:
        """Begin with shards that may have holders already.

        Args:
            shards: the whole range of keys.
            policy: what may be done.
            generator: draws helpers of the detector.
            epoch: version of an earlier map to count on from.
        """
        self.map = ShardMap(version=epoch + 1, shards=shards, addresses={})
        self.map.check()
        self.policy = policy
        self.nodes: dict[str, NodeView] = {}
        self.group = MemberGroup(lease_s=policy.lease_s)
        self.detector = Detector(
            ping_s=policy.ping_s, suspicion=policy.suspicion, generator=generator
        )
        self.tasks = TaskTable(lambda: self.map.version)
        self.events: list[tuple[float, str]] = []
        self.wished: Callable[[Shard], int] = lambda shard: policy.replicas
        self.weights: dict[int, float] = {}
        self.moved_bytes = 0
        self._next_shard = 0
        self.targets = Targets(self.nodes, self.detector, self.tasks, policy)
        self._is_calm = False

    # -- what it is told ----------------------------------------------------------------------

    def add(self, name: str, address: str, *, capacity: float = 1.0, host: str = "") -> None:
        """Name a node, or the new address of one that was restarted."""
        known = self.nodes.get(name)
        if known is None:
            self.nodes[name] = NodeView(address, capacity, host=host)
        else:
            known.address, known.host = address, host
        self.map = self.map.changed(addresses=self.map.addresses | {name: address})

    def heard(self, name: str, report: NodeReport, now_s: float) -> None:
        """Take a node's answer.

        Args:
            name: the node.
            report: its answer.
            now_s: when it came.
        """
        view = self.nodes[name]
        before = view.report
        is_new = before is not None and before.boot != report.boot
        if is_new:
            # The earlier process is gone for sure, and its lease with it.
            self._remove(name, now_s, recovered=report.recovered)
        state = self.detector.heard(name, report.boot, now_s)
        self.detector.told(name, report.dead)
        joined = self.group.beat(name, report.boot, now_s)
        view.report, view.heard_s = report, now_s
        if joined:
            self.events.append((now_s, f"{name} joins" if state == "dead" else f"{name} restarts"))
            if not is_new:
                self._resume(name)

    def _resume(self, name: str) -> None:
        """Begin an epoch for shards of which a returning node is the last holder and writer."""
        again = [s.with_(epoch=s.epoch + 1) for s in self.map.shards if s.replicas[:1] == (name,)]
        if again:
            self.map = self.map.changed(*again)

    def missed(self, name: str, now_s: float) -> list[str]:
        """Take a ping that was not answered; return the nodes that should probe it."""
        if self.detector.state(name) == "up":
            self.events.append((now_s, f"{name} is suspected"))
        return self.detector.missed(name, now_s)

    def finished(self, number: int, *, ok: bool, moved_bytes: int = 0) -> None:
        """Take the end of a command.

        Args:
            number: its task.
            ok: whether it was done.
            moved_bytes: bytes that went over the network for it.
        """
        task = self.tasks.pop(number)
        self.moved_bytes += moved_bytes
        if task is not None:
            self._conclude(task, ok=ok)

    def _conclude(self, task: ShardTask, *, ok: bool) -> None:
        """Change the map as the end of a task asks, and begin what follows it."""
        command = task.command
        shard = self.shard(command.shard)
        if shard is None:
            return
        if command.kind == "warm" and ok:
            left = shard.learners[shard.learners.index(command.target) + 1 :]
            if left:  # fragments stay until every copy is there: one node's death loses nothing
                nodes, names = shard.fragments, shard.learners
                self.tasks.begin("warm", shard, left[0], task.since_s, nodes=nodes, waits_for=names)
                return
        after = shard_after(shard, task, ok=ok, code=self.policy.code)
        if after is not shard:
            self.map = self.map.changed(after)
        if command.kind == "copy" and task.replaces in after.learners:
            self._await_retired(after, task.replaces, task.since_s)

    # -- what it answers ----------------------------------------------------------------------

    def shard(self, number: int) -> Shard | None:
        """Return a shard of the map by its number, or None."""
        return next((shard for shard in self.map.shards if shard.id == number), None)

    def live(self) -> list[str]:
        """Return the nodes that are up or suspected, and have answered, in order."""
        return self.targets.live()

    def is_whole(self) -> bool:
        """Whether every shard has as many holders as it should, given the nodes that are up."""
        live = set(self.live())
        return not any(self.lacking(shard, live) for shard in self.map.shards)

    def lacking(self, shard: Shard, live: set[str]) -> int:
        """Return how many copies or fragments of a shard are missing, given the live nodes."""
        if shard.is_cold:
            return sum(name not in live for name in shard.fragments)
        return max(0, min(self.wished(shard), len(live)) - len(shard.replicas))

    def ping(self, name: str) -> tuple[int, float, ShardMap | None, bool]:
        """Return what to tell a node: its process and when it spoke, the map, whether to prune."""
        report = self.nodes[name].report
        if report is None:
            # Nothing is told to a process that was never heard: it might be a new one, with an
            # empty table, and the map might name an earlier one of this name.
            return -1, 0.0, None, False
        fresh = None if report.map_version >= self.map.version else self.map
        return report.boot, report.spoken_s, fresh, self._is_calm and fresh is None

    def awaited(self) -> set[str]:
        """Return the nodes to ping now: something waits until they have a newer map.

        Those that miss pings are left to the detector, which asks others with every miss.
        """
        names = self.tasks.awaited(self._has_map)
        return {name for name in names if self.detector.state(name) == "up"}

    def _has_map(self, name: str, version: int) -> bool:
        report = self.nodes[name].report
        return report is not None and report.map_version >= version

    # -- what it wants ------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[ShardCommand]:
        """Replace dead nodes, begin repairs, and return the commands whose time has come.

        Args:
            now_s: the time.

        Returns:
            Commands, in order of their tasks.
        """
        for name in self.detector.expired(now_s):
            if self.group.lease_end_s(name) < now_s:
                self.detector.bury(name)
                if name in self.group.members:
                    self.group.evict(name, now_s)
                self.events.append((now_s, f"{name} is dead"))
                self._remove(name, now_s, recovered=True)
        for number in self.tasks.begun_before(now_s - _TASK_TIMEOUT_S):
            # Their answer never came, as that of a driver that was restarted.
            self.finished(number, ok=False)
        self._repair(now_s)
        self._is_calm = not self.tasks and self.is_whole()
        return self._due()

    def _remove(self, name: str, now_s: float, *, recovered: bool) -> None:
        """Take a node out of all shards, but not the last holder, whose data may come back."""
        for task in self.tasks.pop_of(name):
            self._conclude(task, ok=False)
        changed: list[Shard] = []
        for shard in self.map.shards:
            if name not in shard.holders:
                continue
            left = tuple(item for item in shard.replicas if item != name)
            learners = tuple(item for item in shard.learners if item != name)
            if not left:
                # Who is giving its copy up gets every write until it has done so: it has all rows.
                left = self.tasks.pop_retiring(shard.id)
                learners = tuple(item for item in learners if item not in left)
            if not left and recovered:
                left = (name,) if name in shard.replicas else ()
            epoch = shard.epoch + (left[:1] != shard.replicas[:1] or left[:1] == (name,))
            changed.append(shard.with_(replicas=left, learners=learners, epoch=epoch))
        if not changed:
            return
        self.map = self.map.changed(*changed)
        for shard in changed:
            self._reconcile(shard, now_s)

    def _reconcile(self, shard: Shard, now_s: float) -> None:
        """Compare replicas after the death of one, which may have written to some of them only."""
        first, *others = shard.replicas or ("",)
        for other in others:
            self.tasks.begin(
                "reconcile", shard, other, now_s, source=first, waits_for=(first, other)
            )
            self.tasks.begin(
                "reconcile", shard, first, now_s, source=other, waits_for=(first, other)
            )

    def _repair(self, now_s: float) -> None:
        """Begin the copies and fragments that are missing, some at a time."""
        busy = self.tasks.busy()
        live = self.live()
        alive = set(live)
        # Those with the fewest copies come first: the next failure would lose them.
        waiting = [shard for shard in self.map.shards if shard.id not in busy]
        for shard in sorted(waiting, key=lambda item: len(item.replicas)):
            if shard.is_cold:
                self._repair_fragment(shard, live, now_s)
            elif shard.replicas and not shard.sealed and self.lacking(shard, alive):
                self._repair_copy(shard, now_s)

    def _repair_copy(self, shard: Shard, now_s: float) -> None:
        """Begin the copies that a shard lacks, as many at once as its source can send."""
        copies = max(1, self.wished(shard))
        for _ in range(self.lacking(shard, set(self.live()))):
            source = self.targets.source_of(shard)
            target = self.targets.target_for(shard, self.map, self.weights, copies)
            if not source or not target:
                return
            shard = self.copy(shard, target, now_s, source=source)

    def _repair_fragment(self, shard: Shard, live: list[str], now_s: float) -> None:
        """Begin to make a lost or damaged fragment again, on a node that has none of the shard."""
        for number, name in enumerate(shard.fragments):
            report = self.nodes[name].report
            block = (shard.id, shard.epoch, number)
            if name in live and not (report and report.lacks(block, self.map.version)):
                continue
            free = [item for item in live if item not in shard.fragments]
            target = name if name in live else (free or [""])[0]
            if target and self.targets.can_receive(target):
                self.rebuild(shard, number, target, now_s)
                return

    def copy(
        self, shard: Shard, target: str, now_s: float, *, source: str, replaces: str = ""
    ) -> Shard:
        """Begin a copy of a shard to a node that has none, in place of another node's if wished.

        Args:
            shard: what is copied.
            target: node that gets it.
            now_s: the time.
            source: node to read from.
            replaces: node that gives its copy up then.

        Returns:
            The shard as it stands then.
        """
        changed = shard.with_(learners=(*shard.learners, target))
        self.map = self.map.changed(changed)
        waits_for = tuple(dict.fromkeys((shard.replicas[0], target)))
        self.tasks.begin(
            "copy", shard, target, now_s, source=source, replaces=replaces, waits_for=waits_for
        )
        return changed

    def retire(self, shard: Shard, name: str, now_s: float) -> None:
        """Take a copy away from a node that lives, and from a shard that has others."""
        replicas = tuple(item for item in shard.replicas if item != name)
        epoch = shard.epoch + (replicas[:1] != shard.replicas[:1])
        changed = shard.with_(replicas=replicas, learners=(*shard.learners, name), epoch=epoch)
        self.map = self.map.changed(changed)
        self._await_retired(changed, name, now_s)

    def _await_retired(self, shard: Shard, name: str, now_s: float) -> None:
        """Send a node all writes until it knows that it serves no more.

        It reads under its lease and an older map until then, and must not answer with old rows.
        """
        self.tasks.begin("retire", shard, name, now_s, waits_for=(name,))

    def split(self, shard: Shard, middle: int) -> tuple[Shard, Shard]:
        """Split a shard to which nothing happens into the keys below `middle` and the rest."""
        self._next_shard = max(self._next_shard, *(item.id for item in self.map.shards)) + 2
        low = shard.with_(id=self._next_shard - 1, last=middle - 1)
        high = shard.with_(id=self._next_shard, first=middle)
        self.map = self.map.resplit((shard.id,), (low, high))
        return low, high

    def freeze(self, shard: Shard, nodes: tuple[str, ...], now_s: float) -> None:
        """Begin to code a shard onto k + m different nodes; it takes no writes meanwhile."""
        # Who will hold a fragment knows it first: told to prune, it would drop what came early.
        self.map = self.map.changed(shard.with_(sealed=True, fragments=nodes))
        first = shard.replicas[0]
        self.tasks.begin("freeze", shard, first, now_s, nodes=nodes, waits_for=(first, *nodes))

    def rebuild(self, shard: Shard, number: int, target: str, now_s: float) -> None:
        """Begin to make a coded block again on a node, once it knows that it will have one.

        Told to prune by a message of before, it would drop a block that its map does not name.
        """
        self.map = self.map.changed(shard.with_(learners=(target,)))
        nodes = shard.fragments
        self.tasks.begin(
            "rebuild", shard, target, now_s, nodes=nodes, number=number, waits_for=(target,)
        )

    def warm(self, shard: Shard, targets: tuple[str, ...], now_s: float) -> None:
        """Begin to read a cold shard back to memory, once every node knows that it is cold.

        One with an older map would go on to answer from the rows of before, next to new writes.
        """
        self.map = self.map.changed(shard.with_(learners=targets))
        everyone = tuple(self.live())
        self.tasks.begin(
            "warm", shard, targets[0], now_s, nodes=shard.fragments, waits_for=everyone
        )

    def _due(self) -> list[ShardCommand]:
        """Return commands whose nodes have the map they need, and mark them as sent."""
        found = self.tasks.due(self._has_map)
        for command in found:
            if command.kind == "retire":
                self.finished(command.task, ok=True)
        return [command for command in found if command.kind != "retire"]
