"""The highest rate at which enough requests keep their limits, and which limit breaks first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.plan.service.load import ServiceLoad
from steelyard.serve.client.summary import Slo
from steelyard.sim.fleet.instance import FleetRun, ReplicaGroup, simulate_fleet
from steelyard.sim.timeline import Timeline

__all__ = [
    "Attained",
    "Goodput",
    "Requests",
    "attained",
    "capacity",
    "goodput",
    "run_load",
    "unloaded",
]

Requests = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]
"""Arrivals [R] s, prompt tokens [R] and output tokens [R]."""

_WARM_UP = 0.1
"""Share of the requests that come before the fleet is as full as it stays."""
_LEAST_SPAN = 4.0
"""Shortest run over the time that a request may take: in a shorter one queues have no time to grow,
and a rate that no fleet sustains would seem to be carried."""
_MOST_TRIES = 12
_ALONE = 300
"""Requests that are simulated without load: one after the other they take many steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attained:
    """What became of the requests at one rate; shares of those after the warm-up.

    Attributes:
        rate_per_s: requests per second.
        both: share that kept both limits.
        ttft: share that kept the limit of the first token.
        tpot: share that kept the limit per further token.
        ttft_s: time to the first token that the wanted share keeps.
        tpot_s: time per further token that the wanted share keeps.
        preempted: preemptions per request.
    """

    rate_per_s: float
    both: float
    ttft: float
    tpot: float
    ttft_s: float
    tpot_s: float
    preempted: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """How much an instance carries.

    Attributes:
        rate_per_s: highest rate at which the wanted share keeps both limits; 0 for none.
        at: what became of requests there; at hardly any load where the rate is 0.
        beyond: the same just beyond.
    """

    rate_per_s: float
    at: Attained
    beyond: Attained

    @property
    def binding(self) -> str:
        """What breaks first beyond: "ttft" or "tpot"."""
        return "ttft" if self.beyond.ttft < self.beyond.tpot else "tpot"


def attained(
    groups: Sequence[ReplicaGroup], load: ServiceLoad, rate_per_s: float, slo: Slo, share: float
) -> Attained:
    """Simulate a rate.

    Args:
        groups: the instance.
        load: requests.
        rate_per_s: requests per second, above 0.
        slo: limits of the first and of further tokens.
        share: share of the requests that is wanted to keep both.

    Returns:
        Shares and quantiles.

    Raises:
        CapacityError: a request is larger than the room for its keys and values.
    """
    # Limits that are not set say nothing of how long a request takes.
    first_s = slo.ttft_s if np.isfinite(slo.ttft_s) else 0.0
    each_s = slo.tpot_s if np.isfinite(slo.tpot_s) else 0.0
    allowed_s = first_s + each_s * float(load.output_tokens.mean())
    run = run_load(groups, load, load.lasting(rate_per_s, _LEAST_SPAN * allowed_s))
    return _judge(run.timeline, rate_per_s, slo, share, run.num_preemptions)


def run_load(groups: Sequence[ReplicaGroup], load: ServiceLoad, requests: Requests) -> FleetRun:
    """Simulate requests of a load; replicas keep the prefixes that its prompts share.

    Args:
        groups: the instance.
        load: where they are from.
        requests: arrivals, prompt tokens and output tokens, as `ServiceLoad.lasting` gives them.

    Returns:
        What they saw.

    Raises:
        CapacityError: a request is larger than the room for its keys and values.
    """
    if not load.block_ids:
        return simulate_fleet(groups, *requests)
    kept = [replace(group, prefix_caching=True) for group in groups]
    return simulate_fleet(kept, *requests, block_ids=load.contents(len(requests[0])))


def _judge(
    timeline: Timeline, rate_per_s: float, slo: Slo, share: float, preemptions: int
) -> Attained:
    """Count who kept the limits."""
    warm = slice(int(_WARM_UP * len(timeline.arrival_s)), None)
    further = timeline.output_tokens > 1
    spent_s = (timeline.last_token_s - timeline.first_token_s)[warm]
    tpot_s = (spent_s / np.maximum(timeline.output_tokens[warm] - 1, 1))[further[warm]]
    first = timeline.within(slo.ttft_s, np.inf)[warm]
    rest = timeline.within(np.inf, slo.tpot_s)[warm]
    return Attained(
        rate_per_s=rate_per_s,
        both=float((first & rest).mean()),
        ttft=float(first.mean()),
        tpot=float(rest.mean()),
        ttft_s=float(np.quantile(timeline.ttft_s[warm], share)),
        tpot_s=float(np.quantile(tpot_s, share)) if tpot_s.size else 0.0,
        preempted=preemptions / len(timeline.arrival_s),
    )


def capacity(groups: Sequence[ReplicaGroup], load: ServiceLoad) -> float:
    """Return the requests per second when all of them wait from the beginning."""
    lanes = sum(group.count * group.num_lanes * group.max_num_seqs for group in groups)
    times, inputs, outputs = load.lasting(1.0, 2.0 * lanes)
    run = run_load(groups, load, (np.zeros_like(times), inputs, outputs))
    return len(times) / float(run.timeline.last_token_s.max())


def unloaded(groups: Sequence[ReplicaGroup], load: ServiceLoad, slo: Slo, share: float) -> Attained:
    """Simulate requests that each have the instance to themselves."""
    # A day between arrivals is more than any request takes.
    return attained(groups, load.head(_ALONE), 1 / 86_400, slo, share)


def goodput(
    groups: Sequence[ReplicaGroup],
    load: ServiceLoad,
    slo: Slo,
    share: float,
    *,
    tolerance: float = 0.015,
) -> Goodput:
    """Search for the highest rate at which enough requests keep both limits.

    Args:
        groups: the instance.
        load: requests; the same at all rates, so that attainment hardly wavers.
        slo: limits, finite for what the groups do.
        share: share of the requests that has to keep both.
        tolerance: relative width at which the bisection ends.

    Returns:
        The rate; 0 where requests miss their limits even alone.

    Raises:
        CapacityError: a request is larger than the room for its keys and values.
        ConfigError: no rate breaks the limits.

    Source: Zhong et al. 2024 (arXiv 2401.09670), section 4.1.
    """
    alone = unloaded(groups, load, slo, share)
    if alone.both < share:
        return Goodput(rate_per_s=0.0, at=alone, beyond=alone)

    def at(rate_per_s: float) -> Attained:
        return attained(groups, load, rate_per_s, slo, share)

    low, high = _bracket(at, capacity(groups, load), share)
    while high.rate_per_s > low.rate_per_s * (1 + tolerance):
        middle = at((low.rate_per_s * high.rate_per_s) ** 0.5)
        low, high = (middle, high) if middle.both >= share else (low, middle)
    return Goodput(rate_per_s=low.rate_per_s, at=low, beyond=high)


def _bracket(
    at: Callable[[float], Attained], start_per_s: float, share: float
) -> tuple[Attained, Attained]:
    """Return a rate that holds and a higher one that does not, in ever wider steps."""
    tried = at(start_per_s)
    holds, step = tried.both >= share, 1.2
    for _ in range(_MOST_TRIES):
        after = at(tried.rate_per_s * (step if holds else 1 / step))
        if (after.both >= share) != holds:
            return (tried, after) if holds else (after, tried)
        tried, step = after, min(step**2, 8.0)
    raise ConfigError(
        f"at {tried.rate_per_s:g} requests per second the limits still "
        f"{'hold' if holds else 'break'}",
        hint="give finite limits for both the first and further tokens",
    )
