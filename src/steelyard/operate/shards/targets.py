"""Nodes to read from and to copy to, so that none gets too much at once or for good."""

from collections.abc import Mapping

from steelyard.data.shardstore.shardmap import Shard, ShardMap
from steelyard.operate.shards.detector import Detector
from steelyard.operate.shards.placement import choose
from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.tasks import TaskTable
from steelyard.operate.shards.views import NodeView

__all__ = ["Targets"]


class Targets:
    """Chooses sources and targets of copies among the nodes that are up."""

    def __init__(
        self, nodes: Mapping[str, NodeView], detector: Detector, tasks: TaskTable, policy: Adaptive
    ) -> None:
        """Take what the controller knows.

        Args:
            nodes: nodes by their names.
            detector: knows who is up.
            tasks: changes under way.
            policy: how many copies run at once, and the bound of the load.
        """
        self._nodes, self._detector, self._tasks, self._policy = nodes, detector, tasks, policy
        self._spare = ""

    def live(self) -> list[str]:
        """Return the nodes that are up or suspected, in order."""
        return sorted(name for name in self._nodes if self._detector.state(name) != "dead")

    def can_receive(self, name: str) -> bool:
        """Whether a node may make one more copy now."""
        return self._tasks.num_received(name) < self._policy.moves_at_once

    def _can_send(self, name: str) -> bool:
        # Counted apart from what it receives: a link carries as much again the other way.
        return self._tasks.num_sent(name) < self._policy.moves_at_once

    def source_of(self, shard: Shard) -> str:
        """Return the node to copy a shard from, the one that writes; none when it is down or busy.

        Another replica may lack a write that is under way and that the new holder, named after the
        write began, will not be sent.
        """
        first = shard.replicas[0]
        is_up = self._detector.state(first) == "up"
        return first if is_up and self._can_send(first) else ""

    def target_for(
        self,
        shard: Shard,
        shard_map: ShardMap,
        weights: Mapping[int, float],
        copies: int,
    ) -> str:
        """Return the node for one more copy; none when those that could take it are busy.

        One that holds rows of the shard already, as one that comes back does, is preferred.

        Args:
            shard: what is copied.
            shard_map: where copies are.
            weights: load by shard.
            copies: how many share the shard's load.

        Returns:
            Its name, or an empty string.
        """
        up = [name for name in self.live() if self._detector.state(name) == "up"]
        able = [
            name
            for name in up
            if self._nodes[name].capacity > 0
            and not ((report := self._nodes[name].report) and report.is_full)
        ]
        if not able:
            return ""
        loads = self.loads(shard_map, weights)
        if not self._policy.regenerate:
            able = self._spare_of(able, shard, loads)
        preferred = [
            name
            for name in able
            if (report := self._nodes[name].report) and shard.id in report.rows
        ]
        found = choose(
            shard.id,
            weights.get(shard.id, 1.0) / copies,
            {name: loads[name] for name in able},
            {name: self._nodes[name].capacity for name in able},
            eps=self._policy.eps,
            taken={*shard.holders, *(name for name in able if not self.can_receive(name))},
            preferred=preferred,
            # The host of a node that is only busy is as good as any other.
            hosts={
                name: view.host
                for name, view in self._nodes.items()
                if view.host and (name in shard.holders or self.can_receive(name))
            },
        )
        return found or ""

    def _spare_of(self, able: list[str], shard: Shard, loads: Mapping[str, float]) -> list[str]:
        """Return the one node that rebuilds everything, the emptiest when the rebuild began."""
        if self._spare not in able:
            self._spare = min(able, key=lambda name: (loads[name], name))
        # Where it has a copy of this shard already, another node has to take the next one.
        return able if self._spare in shard.holders else [self._spare]

    def why_lost(self, shard: Shard) -> str:
        """Return why nothing of a shard can be read, or an empty string when it can."""
        live = set(self.live())
        if shard.is_cold:
            left = sum(name in live for name in shard.fragments)
            gone = [name for name in shard.fragments if name not in live]
            short = left < shard.code[0]
            return f"{left} of {shard.code[0]} needed fragments, {', '.join(gone)}" if short else ""
        if any(name in live for name in shard.replicas):
            return ""
        return f"no holder is left: {', '.join(shard.replicas) or 'nobody has its rows'}"

    def why_degraded(self) -> str:
        """Return why shards have fewer copies than they should, or an empty string.

        Fewer nodes than copies are no error: each of them then has all rows, and that is said.
        """
        live, wished = len(self.live()), self._policy.replicas
        if live >= wished:
            return ""
        return f"{wished} copies are wished for and {live} of {len(self._nodes)} nodes live"

    def warm_targets(self, shard_map: ShardMap, weights: Mapping[int, float]) -> tuple[str, ...]:
        """Return the least loaded live nodes, as many as a shard in memory has copies at least."""
        loads = self.loads(shard_map, weights)
        return tuple(sorted(loads, key=lambda name: (loads[name], name))[: self._policy.replicas])

    def loads(self, shard_map: ShardMap, weights: Mapping[int, float]) -> dict[str, float]:
        """Return the load of each live node: its part of the weights of the shards it holds."""
        found = dict.fromkeys(self.live(), 0.0)
        for shard in shard_map.shards:
            part = weights.get(shard.id, 1.0) / max(1, len(shard.holders))
            for name in shard.holders:
                if name in found:
                    found[name] += part
        return found
