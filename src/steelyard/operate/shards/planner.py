"""The planner: copies, moves, splits and coding of shards, as the load of now and later asks."""

import math
from collections.abc import Mapping

import numpy as np

from steelyard.data.shardstore.shardmap import Shard
from steelyard.operate.shards.availability import Availability
from steelyard.operate.shards.controller import ShardController
from steelyard.operate.shards.loads import COLD, HOT, ShardLoads
from steelyard.operate.shards.placement import rank
from steelyard.train.group import LeaseTable

__all__ = ["Planner"]

_BASE_WEIGHT = 0.05
"""Share of the load that rows make without being asked for: they are kept and repaired."""
_SPLIT_SHARE = 0.25
"""A shard of which one copy carries more than this share of a node's mean load is split."""
_TRIES = 8


class Planner:
    """Acts on a controller once a window, under one lease.

    A full node moves the shard that gains most for its bytes, when the gain (the fall of the summed
    squared deviations from the mean load), added up over the time since the node was even, is as
    much as the move costs: a heavy load is moved at once, a light one that stays in the end, and
    one that passes never.

    Attributes:
        loads: what shards are asked.
        availability: how often nodes were up, window by window.
    """

    def __init__(self, controller: ShardController, *, name: str = "planner") -> None:
        """Take a controller.

        Args:
            controller: its map is changed through its methods alone.
            name: name of this planner, for the lease.
        """
        self._controller, self._name = controller, name
        self._leases = LeaseTable()
        self.loads = ShardLoads([shard.id for shard in controller.map.shards], controller.policy)
        self.availability = Availability()
        self._owed: dict[str, float] = {}
        self._bytes: dict[int, float] = {}
        controller.wished = self._wished
        self._copies: dict[int, int] = {}

    def _wished(self, shard: Shard) -> int:
        return self._copies.get(shard.id, self._controller.policy.replicas)

    def plan(
        self,
        now_s: float,
        counts: Mapping[int, float],
        num_bytes: Mapping[int, float],
        middles: Mapping[int, int],
    ) -> None:
        """Take the counts of a window and begin what they ask for.

        Args:
            now_s: the time.
            counts: accesses by shard in the window.
            num_bytes: bytes by shard.
            middles: key at which half of a shard's accesses lie on either side, where known.
        """
        controller, policy = self._controller, self._controller.policy
        lease = self._leases.acquire(self._name, self._name, now_s, 3 * policy.window_s)
        if lease is None:
            return
        self._bytes = dict(num_bytes)
        self.loads.observe(now_s, np.array([counts.get(number, 0.0) for number in self.loads.ids]))
        self._watch()
        self._weigh(now_s)
        if policy.balance:
            self._split(middles)
        self._count_copies()
        if policy.temporal:
            self._freeze(now_s)
        if policy.replicate:
            self._drop_copies(now_s)
        # Repairs come first: a move costs links that they need.
        if policy.balance and controller.is_whole():
            self._move(now_s)

    def _watch(self) -> None:
        """Note which of the nodes that have ever answered are up."""
        controller = self._controller
        heard = [name for name, view in controller.nodes.items() if view.report]
        is_up = {name: controller.detector.state(name) == "up" for name in heard}
        self.availability.observe(is_up, controller.policy.window_s)

    def _weigh(self, now_s: float) -> None:
        """Set the weight of each shard: what it is asked, now or ahead, and what it holds."""
        policy = self._controller.policy
        load = self.loads.now()
        if policy.predict:
            load = np.maximum(load, self.loads.forecast(now_s))
        size = np.array([self._bytes.get(number, 0.0) for number in self.loads.ids]) + 1.0
        total = load.sum()
        share = load / total if total > 0 else np.zeros(len(load))
        weight = (1 - _BASE_WEIGHT) * share + _BASE_WEIGHT * size / size.sum()
        self._controller.weights = dict(zip(self.loads.ids, weight.tolist(), strict=True))

    def _count_copies(self) -> None:
        """Set the wished copies of each shard by its class, its load and its nodes."""
        policy, controller = self._controller.policy, self._controller
        mean = sum(controller.weights.values()) / max(1, len(controller.live()))
        worst = self.availability.worst_first(controller.live())
        self._copies = {}
        shards = zip(controller.map.shards, self.loads.classes.tolist(), strict=True)
        for shard, kind in shards:
            copies = policy.hot_replicas if policy.temporal and kind == HOT else policy.replicas
            if policy.replicate:
                # One copy should not take more than half of what a mean node carries.
                needed = math.ceil(controller.weights[shard.id] / (0.5 * mean)) if mean else 1
                enough = self.availability.copies(shard.replicas, worst, policy.availability)
                copies = min(max(copies, needed, enough), policy.most_replicas)
            self._copies[shard.id] = copies

    def _freeze(self, now_s: float) -> None:
        """Begin to code one cold shard, where there are nodes enough for its fragments."""
        controller = self._controller
        cold = {
            n for n, kind in zip(self.loads.ids, self.loads.classes, strict=True) if kind == COLD
        }
        busy, wanted = self._controller.tasks.busy(), sum(controller.policy.code)
        up = {name: 1.0 for name in controller.live() if controller.detector.state(name) == "up"}
        for shard in controller.map.shards:
            is_ready = shard.replicas and not shard.is_cold and not shard.sealed
            if shard.id in cold - busy and is_ready and len(up) >= wanted:
                controller.freeze(shard, tuple(rank(shard.id, up)[:wanted]), now_s)
                return

    def _drop_copies(self, now_s: float) -> None:
        """Take away one copy that no load asks for any more, from its fullest holder."""
        controller, busy = self._controller, self._controller.tasks.busy()
        loads = controller.targets.loads(controller.map, controller.weights)
        for shard in controller.map.shards:
            # One fewer than wished first: a load at the edge would make and drop a copy by turns.
            extra = len(shard.replicas) - self._wished(shard)
            if extra > 1 and shard.id not in busy and not shard.is_cold:
                fullest = max(shard.replicas[1:], key=lambda name: loads.get(name, 0.0))
                controller.retire(shard, fullest, now_s)
                return

    def _split(self, middles: Mapping[int, int]) -> None:
        """Split the heaviest shards, of which as few copies as any has are too much for a node.

        A split moves no bytes, and what is copied and moved afterwards is smaller. It comes before
        further copies are wished: those of a whole shard cost what the few keys asked for do not.
        """
        controller, policy = self._controller, self._controller.policy
        live = controller.live()
        if len(live) <= policy.replicas:
            return  # every node has every shard
        mean = sum(controller.weights.values()) / len(live)
        limit, busy = _SPLIT_SHARE * mean * policy.replicas, controller.tasks.busy()
        for shard in sorted(controller.map.shards, key=lambda item: -controller.weights[item.id]):
            if controller.weights[shard.id] <= limit or len(self.loads.ids) >= policy.most_shards:
                return
            middle = middles.get(shard.id, -1)
            is_known = shard.first <= middle <= shard.last + 1 and shard.first < shard.last
            if is_known and shard.id not in busy and not shard.is_cold:
                # One key that has more than half of the load is cut off from both sides in turn.
                self._cut(shard, min(max(middle, shard.first + 1), shard.last))

    def _cut(self, shard: Shard, middle: int) -> None:
        """Split a shard in two, and share its load among them until it is counted anew."""
        made = self._controller.split(shard, middle)
        self.loads.follow(
            {item.id: (shard.id, 0.5) for item in made},
            [item.id for item in self._controller.map.shards],
        )
        for item in made:
            self._controller.weights[item.id] = self._controller.weights[shard.id] / 2
            self._bytes[item.id] = self._bytes.get(shard.id, 0.0) / 2
        del self._controller.weights[shard.id]

    def _move(self, now_s: float) -> None:
        """Begin the moves from the fullest to the emptiest nodes that have paid for their bytes."""
        controller, policy = self._controller, self._controller.policy
        loads = controller.targets.loads(controller.map, controller.weights)
        up = [name for name in loads if controller.detector.state(name) == "up"]
        mean = sum(loads.values()) / max(1, len(loads))
        held: dict[str, list[Shard]] = {name: [] for name in loads}
        for shard in controller.map.shards:
            for name in shard.replicas:
                held.get(name, []).append(shard)
        owed: dict[str, float] = {}
        givers, busy = set(up), self._controller.tasks.busy()
        for _ in range(_TRIES):
            if len(up) < 2 or not givers or not mean:
                break
            giver, taker = max(givers, key=loads.__getitem__), min(up, key=loads.__getitem__)
            is_even = (
                loads[giver] <= (1 + policy.eps) * mean
                and loads[taker] >= (1 - 2 * policy.eps) * mean
            )
            if is_even or not controller.targets.can_receive(taker):
                break
            found, gain, cost = self._best(held[giver], busy, loads, giver, taker, mean)
            owed[giver] = owed.get(giver, self._owed.get(giver, 0.0)) + gain * policy.window_s
            source = controller.targets.source_of(found) if found else ""
            # It has to be uneven in two windows, one after the other, before anything moves.
            if not found or not source or giver not in self._owed or owed[giver] < cost:
                givers.discard(giver)
                continue
            owed[giver] -= cost
            part = controller.weights[found.id] / len(found.replicas)
            loads[giver] -= part
            loads[taker] += part
            busy.add(found.id)
            controller.copy(found, taker, now_s, source=source, replaces=giver)
        self._owed = owed

    def _best(
        self,
        shards: list[Shard],
        busy: set[int],
        loads: Mapping[str, float],
        giver: str,
        taker: str,
        mean: float,
    ) -> tuple[Shard | None, float, float]:
        """Return the shard whose move gains most for its bytes, with gain and cost, or None."""
        controller = self._controller
        total = sum(self._bytes.values()) * controller.policy.replicas / max(1, len(loads))
        best, best_gain, best_cost = None, 0.0, 1.0
        for shard in shards:
            if shard.id in busy or taker in shard.holders or shard.sealed or shard.is_cold:
                continue
            part = controller.weights[shard.id] / len(shard.replicas)
            # The fall of the squared deviations of both: (g - m)^2 + (t - m)^2.
            gain = 2 * part * (loads[giver] - loads[taker] - part) / mean**2
            cost = controller.policy.move_cost * self._bytes.get(shard.id, 0.0) / max(total, 1.0)
            if gain * best_cost > best_gain * cost:
                best, best_gain, best_cost = shard, gain, cost
        return best, best_gain, best_cost
