"""Routing among instances for both phases and instances for prompts: phases, reuse and load."""

from collections.abc import Callable, Sequence
from typing import Protocol

from steelyard.errors import ConfigError, require
from steelyard.serve.routes.heat_map import HeatMap
from steelyard.serve.routing import CachedReplica, PromptIndex
from steelyard.sim.fleet.instance import ReplicaRole
from steelyard.sim.fleet.jobs import FleetJob

__all__ = ["Combined", "MixedReplica", "TypedReplica"]


class TypedReplica(Protocol):
    """A replica whose role a route knows."""

    @property
    def role(self) -> ReplicaRole:
        """Whether it runs prompts, decodes, or does both."""
        ...


class MixedReplica(CachedReplica, TypedReplica, Protocol):
    """A replica of a fleet that mixes roles."""


class Combined:
    """Chooses the phases' arrangement by a heat map, then a replica by reuse or by load.

    While the loads of the chosen replicas are balanced, a request goes where most of its prompt is
    held; otherwise to the one with the least to do.

    Attributes:
        index: what the replicas hold, of all types; each type is looked up alone.
        num_apart: requests that were sent to replicas for prompts.

    Source: Hu et al. 2025 (arXiv 2501.14417), section 5, algorithm 1.
    """

    def __init__(
        self,
        heat_map: HeatMap,
        *,
        expected_output: Callable[[FleetJob], float] | None = None,
        balance_threshold: int = 4,
    ) -> None:
        """Know no replica yet.

        Args:
            heat_map: says which lengths gain by prefill and decode apart.
            expected_output: expects output tokens of a job; by default the job's own expectation,
                and where it has none as many tokens as its prompt.
            balance_threshold: loads are balanced while the most and the fewest requests of the
                chosen replicas differ by no more; at least 0.

        Raises:
            ConfigError: the threshold is below 0.
        """
        self.balance_threshold = balance_threshold
        require(self, balance_threshold=(balance_threshold >= 0, "at least 0"))
        self.index = PromptIndex()
        self.num_apart = 0
        self._heat_map = heat_map
        self._expected = expected_output or _own_expectation

    def __call__(self, replicas: Sequence[MixedReplica], job: FleetJob) -> int:
        """Return the replica that the request goes to.

        Args:
            replicas: those that take requests from outside.
            job: the request.

        Returns:
            Index into `replicas`.

        Raises:
            ConfigError: some replica only decodes.
        """
        for replica in replicas:
            if replica.role == "decode":
                raise ConfigError(
                    "a replica that only decodes takes no requests from outside",
                    hint="put it into the second group",
                )
            self.index.watch(replica)
        chosen = self._of_type(replicas, job)
        loads = {place: replicas[place].load for place in chosen}
        matched = self.index.matched_tokens(job)
        if max(loads.values()) - min(loads.values()) <= self.balance_threshold:
            return min(chosen, key=lambda at: (-matched.get(replicas[at], 0), loads[at]))
        return min(chosen, key=lambda at: (loads[at], -matched.get(replicas[at], 0)))

    def _of_type(self, replicas: Sequence[MixedReplica], job: FleetJob) -> list[int]:
        """Return the replicas of the type that the heat map favours; all where there is one."""
        apart = [at for at, item in enumerate(replicas) if item.role == "prefill"]
        together = [at for at, item in enumerate(replicas) if item.role == "both"]
        if not apart or not together:
            return apart or together
        is_apart = self._heat_map.score(job.input_tokens, self._expected(job)) > 0
        self.num_apart += is_apart
        return apart if is_apart else together


def _own_expectation(job: FleetJob) -> float:
    """Return the output that a job expects itself, or its prompt's length."""
    return float(job.expected_output or job.input_tokens)
