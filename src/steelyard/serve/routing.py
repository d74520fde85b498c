"""Which replica a request goes to."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from steelyard.errors import ConfigError, require
from steelyard.serve.kv.prefix import PrefixIndex
from steelyard.serve.replica_lane import prompt_digests
from steelyard.sim.fleet.instance import ReplicaGroup
from steelyard.sim.fleet.jobs import FleetJob

__all__ = [
    "CachedReplica",
    "LongestPrefix",
    "OpenReplicas",
    "PromptIndex",
    "RotatingRoute",
    "fewest_requests",
    "route_of",
]


class _Loaded(Protocol):
    """A replica as routing sees it."""

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        ...


class CachedReplica(_Loaded, Protocol):
    """A replica whose caches a route knows."""

    @property
    def prefixes(self) -> list[PrefixIndex]:
        """What each of its pools knows."""
        ...

    @property
    def block_size(self) -> int:
        """Token slots per block."""
        ...


def fewest_requests(replicas: Sequence[_Loaded], job: object) -> int:
    """Return the replica with the fewest requests, the first of several.

    Source: Zhong et al. 2024 (arXiv 2401.09670), section 4.3.
    """
    del job
    return min(range(len(replicas)), key=lambda index: replicas[index].load)


class RotatingRoute:
    """Sends requests to the replicas in turn."""

    def __init__(self) -> None:
        """Begin with the first replica."""
        self._turn = -1

    def __call__(self, replicas: Sequence[_Loaded], job: object) -> int:
        """Return the next replica."""
        del job
        self._turn += 1
        return self._turn % len(replicas)


class _PoolListener:
    """Enters what one pool knows into the index of all."""

    def __init__(self, holders: dict[bytes, int], pool: int) -> None:
        self._holders = holders
        self._bit = 1 << pool

    def known(self, digest: bytes) -> None:
        """Note that the pool holds a content."""
        self._holders[digest] = self._holders.get(digest, 0) | self._bit

    def forgotten(self, digest: bytes) -> None:
        """Note that the pool holds it no more."""
        left = self._holders[digest] & ~self._bit
        if left:
            self._holders[digest] = left
        else:
            del self._holders[digest]


class PromptIndex:
    """What the caches of the replicas of a group hold, in one place.

    Pools tell it of each block that they learn and evict, so it never promises what is gone. A
    lookup walks a prompt once for all replicas, not once for each.

    Source: Srivatsa et al. 2024 (arXiv 2407.00023), section 3 (a global index for routing).
    """

    def __init__(self) -> None:
        """Listen to no replica yet."""
        self._holders: dict[bytes, int] = {}
        self._pools_of: dict[CachedReplica, int] = {}
        self._num_pools = 0

    def __len__(self) -> int:
        """Return the contents that some replica holds."""
        return len(self._holders)

    def watch(self, replica: CachedReplica) -> None:
        """Listen to a replica from now on; nothing happens when it is known.

        Args:
            replica: what it holds already is found too.

        Raises:
            ConfigError: another index listens to it, or its blocks differ in size from others'.
        """
        if replica in self._pools_of:
            return
        for other in list(self._pools_of)[:1]:
            if other.block_size != replica.block_size:
                raise ConfigError(
                    f"replicas with blocks of {other.block_size} and {replica.block_size} tokens",
                    hint="give replicas of one block size",
                )
        pools = 0
        for prefix in replica.prefixes:
            if prefix.listener is not None:
                raise ConfigError(
                    "a replica tells another index of its cache", hint="give each group a route"
                )
            prefix.listener = _PoolListener(self._holders, self._num_pools)
            for digest in prefix.digests:
                prefix.listener.known(digest)
            pools |= 1 << self._num_pools
            self._num_pools += 1
        self._pools_of[replica] = pools

    def forget(self, replica: CachedReplica) -> None:
        """Drop a replica that is gone with all it held."""
        pools = self._pools_of.pop(replica, 0)
        if not pools:
            return
        for prefix in replica.prefixes:
            prefix.listener = None
        left = {digest: bits & ~pools for digest, bits in self._holders.items()}
        self._holders.clear()
        # The same dictionary, as the listeners of the others write to it.
        self._holders.update((digest, bits) for digest, bits in left.items() if bits)

    @property
    def replicas(self) -> list[CachedReplica]:
        """Replicas that it listens to."""
        return list(self._pools_of)

    def matched_tokens(self, job: FleetJob) -> dict[CachedReplica, int]:
        """Return the leading prompt tokens of a job that replicas hold; others hold none of them.

        Of a replica with several pools the longest counts. The last token of a prompt always has to
        run, so a prompt that is held in full counts without its last block.
        """
        found: dict[CachedReplica, int] = {}
        if not self._holders:
            return found
        some = next(iter(self._pools_of))
        size = some.block_size
        pools = -1
        digests = prompt_digests(job, (job.input_tokens - 1) // size, some.prefixes[0], size)
        for depth, digest in enumerate(digests, start=1):
            pools &= self._holders.get(digest, 0)
            if not pools:
                break
            for replica, own in self._pools_of.items():
                if pools & own:
                    found[replica] = depth * size
        return found


class LongestPrefix:
    """Sends a request where most of its prompt is held, as long as that replica is not crowded.

    Attributes:
        slack: most requests that the chosen replica may have beyond the one with the fewest.
        index: what the replicas hold; it learns of a replica when it first stands for choice.

    Source: Srivatsa et al. 2024 (arXiv 2407.00023), section 3 (reuse against balance).
    """

    def __init__(self, *, slack: int = 8) -> None:
        """Know no replica yet.

        Args:
            slack: slack, at least 0.

        Raises:
            ConfigError: it is below 0.
        """
        self.slack = slack
        require(self, slack=(slack >= 0, "at least 0"))
        self.index = PromptIndex()

    def __call__(self, replicas: Sequence[CachedReplica], job: FleetJob) -> int:
        """Return the replica that holds most; of equal ones that with the fewest requests."""
        for replica in replicas:
            self.index.watch(replica)
        loads = [item.load for item in replicas]
        matched = self.index.matched_tokens(job)
        limit = min(loads) + self.slack
        return min(
            (index for index, load in enumerate(loads) if load <= limit),
            key=lambda index: (-matched.get(replicas[index], 0), loads[index]),
        )


def route_of(group: ReplicaGroup) -> Callable[[Any, FleetJob], int]:
    """Return the route that a group of replicas asks for."""
    if group.route == "prefix":
        return LongestPrefix(slack=group.route_slack)
    return RotatingRoute() if group.route == "rotation" else fewest_requests


class OpenReplicas:
    """Lets a route choose only among replicas that are ready and were not let go.

    Where there is none, a request waits at the one that is ready next.
    """

    def __init__(
        self, route: Callable[[Any, FleetJob], int], windows: Sequence[tuple[float, float]]
    ) -> None:
        """Keep when each replica is ready, and when it takes no more requests.

        Args:
            route: chooses.
            windows: seconds (ready, let go), one pair per replica.
        """
        self._route = route
        self._windows = list(windows)

    def __call__(self, replicas: Sequence[Any], job: FleetJob) -> int:
        """Return a replica."""
        # A prompt that ran is handed over when its first token comes.
        now_s = job.arrival_s if math.isnan(job.first_token_s) else job.first_token_s
        found = [
            at for at, (begin_s, end_s) in enumerate(self._windows) if begin_s <= now_s < end_s
        ]
        if found:
            return found[self._route([replicas[at] for at in found], job)]
        later = [
            (begin_s, at)
            for at, (begin_s, end_s) in enumerate(self._windows)
            if now_s < begin_s < end_s
        ]
        if later:
            return min(later)[1]
        ends = [end_s for _, end_s in self._windows]
        return ends.index(max(ends))
