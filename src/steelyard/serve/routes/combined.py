"""Routing among instances for both phases and instances for prompts: phases, reuse and load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FEATURES
from steelyard.errors import ConfigError, require
from steelyard.serve.routes.heat_map import HeatMap, prompt_s
from steelyard.serve.routing import CachedReplica, PromptIndex
from steelyard.sim.fleet.instance import ReplicaRole
from steelyard.sim.fleet.jobs import FleetJob

__all__ = ["Combined", "MixedReplica", "ServiceSeconds"]


class MixedReplica(CachedReplica, Protocol):
    """A replica of a fleet that mixes roles."""

    @property
    def role(self) -> ReplicaRole:
        """Whether it runs prompts, decodes, or does both."""
        ...

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that it was sent and has not run."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSeconds:
    """What a request takes of an instance that has nothing else to do, roughly.

    Attributes:
        prompt_s_per_token: seconds of a prompt token that is in no cache.
        output_s_per_token: seconds of an output token.
    """

    prompt_s_per_token: float
    output_s_per_token: float

    @classmethod
    def of(
        cls, step_time: PhaseStepTime, *, prompt: int = 4096, batch: int = 8
    ) -> "ServiceSeconds":
        """Return the seconds at a prompt length, decoding in a batch of such requests."""
        features = dict.fromkeys(FEATURES, 0.0)
        features |= {"steps": 1, "sequences": batch, "first_tokens": batch}
        features |= {"decode_tokens": batch, "decode_kv": batch * prompt}
        step_s = float(np.asarray(step_time.predict([[*features.values()]]))[0])
        return cls(
            prompt_s_per_token=prompt_s(step_time, prompt) / prompt, output_s_per_token=step_s
        )


class Combined:
    """Weighs the phases' arrangement, what caches hold, and what each replica has to do.

    As published: the heat map chooses replicas for both phases or for prompts; while the loads of
    these are balanced, the request goes where most of its prompt is held, else to the one with the
    fewest requests. A type that is favoured is chosen however crowded it is.

    With `service`, all three are seconds: prompt tokens that wait there, those of the request that
    are in no cache, and its output; apart they are divided by the map's gain. The least sum wins,
    so that crowding outweighs a small gain.

    Attributes:
        index: what the replicas hold, of all types.

    Source: Hu et al. 2025 (arXiv 2501.14417), section 5, algorithm 1.
    """

    def __init__(
        self,
        heat_map: HeatMap,
        *,
        expected_output: Callable[[FleetJob], float] | None = None,
        balance_threshold: int = 4,
        service: ServiceSeconds | None = None,
    ) -> None:
        """Know no replica yet.

        Args:
            heat_map: says which lengths gain by prefill and decode apart.
            expected_output: expects output tokens of a job; by default the job's own expectation,
                and where it has none as many tokens as its prompt.
            balance_threshold: loads are balanced while the most and the fewest requests of the
                chosen replicas differ by no more; at least 0. Not used with `service`.
            service: what a request takes; without it the published rule decides.

        Raises:
            ConfigError: the threshold is below 0.
        """
        self.balance_threshold = balance_threshold
        require(self, balance_threshold=(balance_threshold >= 0, "at least 0"))
        self.index = PromptIndex()
        self._heat_map = heat_map
        self._expected = expected_output or _own_expectation
        self._service = service

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
        found = self.index.matched_tokens(job)
        matched = [found.get(item, 0) for item in replicas]
        if self._service is not None:
            return self._least(replicas, job, matched, self._service)
        chosen = self._of_type(replicas, job)
        loads = {place: replicas[place].load for place in chosen}
        if max(loads.values()) - min(loads.values()) <= self.balance_threshold:
            return min(chosen, key=lambda place: (-matched[place], loads[place]))
        return min(chosen, key=lambda place: (loads[place], -matched[place]))

    def _of_type(self, replicas: Sequence[MixedReplica], job: FleetJob) -> list[int]:
        """Return the replicas of the type that the heat map favours; all where there is one."""
        apart = [place for place, item in enumerate(replicas) if item.role == "prefill"]
        together = [place for place, item in enumerate(replicas) if item.role == "both"]
        if not apart or not together:
            return apart or together
        is_apart = self._heat_map.score(job.input_tokens, self._expected(job)) > 0
        return apart if is_apart else together

    def _least(
        self,
        replicas: Sequence[MixedReplica],
        job: FleetJob,
        matched: list[int],
        service: ServiceSeconds,
    ) -> int:
        """Return the replica where the request ends first, by the estimate."""
        expected = self._expected(job)
        gain = self._heat_map.score(job.input_tokens, expected) / len(self._heat_map.loads)

        def ends_s(place: int) -> tuple[float, int]:
            item = replicas[place]
            prompt_s = (job.input_tokens - matched[place]) * service.prompt_s_per_token
            waits_s = item.pending_tokens * service.prompt_s_per_token
            own_s = prompt_s + expected * service.output_s_per_token
            if item.role == "prefill":
                # A mean near -1 would turn the estimate over.
                return waits_s + own_s / max(1 + gain, 0.1), item.load
            # Every request that decodes there gets its tokens later by the time of this prompt.
            return waits_s + own_s + prompt_s * item.load, item.load

        return min(range(len(replicas)), key=ends_s)


def _own_expectation(job: FleetJob) -> float:
    """Return the output that a job expects itself, or its prompt's length."""
    return float(job.expected_output or job.input_tokens)
