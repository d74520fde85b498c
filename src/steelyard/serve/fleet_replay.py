"""A trace served by a fleet in virtual time: what requests saw, and what instances did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, TraceError
from steelyard.serve.elastic import AvailableRoute, ElasticReplica, Lifetime
from steelyard.serve.replica import SchedulerReplica, replicas_of
from steelyard.sim.fleet import FleetJob, Route, run_fleet
from steelyard.sim.fleet.instance import ReplicaGroup
from steelyard.sim.timeline import Timeline

__all__ = ["FleetReplay", "mixed_replicas", "replay_fleet"]

_LEVELS = (0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class FleetReplay:
    """What a fleet did with a trace.

    Attributes:
        jobs: the requests, with the times of their tokens.
        replicas: those that took arrivals, then those that only decoded.
        num_first: how many took arrivals.
    """

    jobs: Sequence[FleetJob]
    replicas: Sequence[ElasticReplica]
    num_first: int

    @property
    def num_starts(self) -> int:
        """Instances that were started after the beginning."""
        return sum(item.num_starts for item in self.replicas)

    @property
    def instance_s(self) -> float:
        """Time in which instances were there or ordered, seconds, summed."""
        return sum(item.asked_until(self.span_s) for item in self.replicas)

    def asked_at(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return how many instances had been ordered and not given back at each time."""
        return np.sum([item.asked_at(times_s) for item in self.replicas], axis=0)

    @property
    def timeline(self) -> Timeline:
        """Times of the requests, in their order; no steps."""
        empty = np.empty(0)
        return Timeline(
            arrival_s=np.array([job.arrival_s for job in self.jobs]),
            first_token_s=np.array([job.first_token_s for job in self.jobs]),
            last_token_s=np.array([job.last_token_s for job in self.jobs]),
            output_tokens=np.array([job.output_tokens for job in self.jobs]),
            step_features=empty,
            step_s=empty,
            kv_utilization=empty,
        )

    @property
    def completion_s(self) -> NDArray[np.float64]:
        """Time from arrival to the last token of each request."""
        timeline = self.timeline
        return timeline.last_token_s - timeline.arrival_s

    @property
    def prefix_hits(self) -> float:
        """Share of the prompt tokens that were found where their prompt ran."""
        found = sum(job.cached_tokens for job in self.jobs)
        return found / sum(job.input_tokens for job in self.jobs)

    @property
    def span_s(self) -> float:
        """Time of the last token."""
        return float(self.timeline.last_token_s.max())

    def busy(self) -> list[float]:
        """Return the share of the time in which each replica ran a step."""
        return [
            sum(step.end_s - step.start_s for step in item.steps) / self.span_s
            for item in self.replicas
        ]

    def quantiles(self) -> dict[str, dict[str, float]]:
        """Return mean and quantiles of the three times of a request, in seconds."""
        timeline = self.timeline
        columns = {
            "ttft": timeline.ttft_s,
            "tpot": timeline.tpot_s,
            "completion": self.completion_s,
        }
        return {
            name: {"mean": float(values.mean())}
            | {f"p{100 * level:g}": float(np.quantile(values, level)) for level in _LEVELS}
            for name, values in columns.items()
            if len(values)
        }


def mixed_replicas(
    roles: Mapping[str, ReplicaGroup], lives: Mapping[int, Lifetime] | None = None
) -> tuple[list[ElasticReplica], list[ElasticReplica]]:
    """Make the instances of a fleet that mixes roles.

    Args:
        roles: groups by "both", "prefill" and "decode"; those with no instance left out.
        lives: how instances come and go, by their place: both phases first, then prompts, then
            those that only decode.

    Returns:
        Those that take arrivals, both phases first; and those that only decode.

    Raises:
        ConfigError: no instance takes arrivals, or prompts would never be decoded; or what is to
            come and go does not exist or only runs prompts.
    """
    if not {"both", "prefill"} & roles.keys() or ("prefill" in roles) != ("decode" in roles):
        raise ConfigError(
            f"a fleet with the roles {', '.join(roles) or 'none'}",
            hint="give instances of both phases, or of prefill and of decode, or all three",
        )
    made: list[ElasticReplica] = []
    for name in ("both", "prefill", "decode"):
        for _ in range(roles[name].count if name in roles else 0):
            make = partial(_one, roles[name])
            made.append(ElasticReplica(make, (lives or {}).get(len(made))))
    for place in lives or {}:
        if not 0 <= place < len(made):
            raise ConfigError(
                f"instance {place} is to come and go, but there are {len(made)}",
                hint=f"give one from 0 to {len(made) - 1}",
            )
    num_first = sum(roles[name].count for name in ("both", "prefill") if name in roles)
    return made[:num_first], made[num_first:]


def _one(group: ReplicaGroup) -> SchedulerReplica:
    """Make one idle instance of a group."""
    return replicas_of(replace(group, count=1))[0]


def replay_fleet(
    jobs: Sequence[FleetJob],
    roles: Mapping[str, ReplicaGroup],
    *,
    route: Route,
    route_second: Route,
    lives: Mapping[int, Lifetime] | None = None,
    most_requests: int = 0,
) -> FleetReplay:
    """Serve requests with a mixed fleet in virtual time.

    Args:
        jobs: requests by arrival; they learn when their tokens came.
        roles: roles that `mixed_replicas` takes.
        route: chooses among those that take arrivals.
        route_second: chooses among those that only decode.
        lives: lives that `mixed_replicas` takes.
        most_requests: most requests that `AvailableRoute` takes, for those that take arrivals.

    Returns:
        What happened.

    Raises:
        ConfigError: the roles do not go together, or a request could never finish.
        TraceError: there is no request.
        CapacityError: some request never finished.
    """
    if not jobs:
        raise TraceError("a fleet without requests", hint="give a trace with at least one row")
    first, second = mixed_replicas(roles, lives)
    run_fleet(
        jobs,
        first,
        second,
        route=AvailableRoute(route, most_requests=most_requests),
        route_second=AvailableRoute(route_second),
    )
    return FleetReplay(jobs=jobs, replicas=[*first, *second], num_first=len(first))
