"""Which routing for which traffic on which network: all are simulated, and reasons kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.types import Plan, Rejected
from steelyard.quantity import Forecast
from steelyard.sim.network.adaptive import least_loaded, valiant
from steelyard.sim.network.colouring import edge_colouring
from steelyard.sim.network.congestion import congestion
from steelyard.sim.network.flows import Flows, RoutedFlows
from steelyard.sim.network.graph import Network
from steelyard.sim.network.maxmin import simulate_flows
from steelyard.sim.network.routing import ecmp, ethereal, spray
from steelyard.sim.network.traffic import CollectiveStep

__all__ = ["ROUTINGS", "RoutingResult", "plan_routing", "simulate_routing"]

_Route = Callable[[Network, Flows, np.random.Generator], RoutedFlows]

ROUTINGS: dict[str, _Route] = {
    "ecmp": ecmp,
    "ecmp-split-8": lambda network, flows, rng: ecmp(network, flows, rng, split=8),
    "ethereal": lambda network, flows, rng: ethereal(network, flows, split="equal"),
    "ethereal-minimal": lambda network, flows, rng: ethereal(network, flows, split="minimal"),
    "edge-colouring": lambda network, flows, rng: edge_colouring(network, flows),
    "adaptive": lambda network, flows, rng: least_loaded(network, flows, rng, detours=2),
    "valiant": valiant,
    "spray": lambda network, flows, rng: spray(network, flows),
}
"""Routings by name, easiest to run first; the last needs receivers that put packets in order."""

_RANDOM = ("ecmp", "ecmp-split-8", "adaptive", "valiant")
_MODEL_ERROR = 0.17
"""Largest error of completion times at the level of flows against packets that the benchmark
`packet_spraying_ethereal` measures on 32 hosts; flows are the faster ones."""
_MOST_PIECES = 9_000_000
_CLOSE = 1.01


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingResult:
    """What one routing makes of a traffic.

    Attributes:
        name: name of the routing.
        times_s: completion times by seed, s; one where the routing draws nothing.
        queue_pairs: most connections that a host holds in any step.
        splits: pieces beyond one per flow, summed over different steps.
        imbalance: busiest over mean link between switches, the worst of any step.
        reason: why there is no result; empty where there is one.
    """

    name: str
    times_s: tuple[float, ...] = ()
    queue_pairs: int = 0
    splits: int = 0
    imbalance: float = 1.0
    reason: str = ""

    @property
    def time_s(self) -> float:
        """Mean completion time over the seeds."""
        return float(np.mean(self.times_s))


def simulate_routing(
    network: Network,
    steps: Sequence[CollectiveStep],
    name: str,
    *,
    num_seeds: int = 3,
    tolerance: float = 0.01,
) -> RoutingResult:
    """Simulate a traffic under one routing.

    Args:
        network: the graph.
        steps: flows that start together, step after step.
        name: one of `ROUTINGS`.
        num_seeds: draws of routings by hash or by load.
        tolerance: tolerance of `simulate_flows`.

    Returns:
        Completion times and costs; or the reason why the routing does not fit the network.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in ROUTINGS:
        raise ConfigError(f"no routing named {name!r}", hint=f"routings: {', '.join(ROUTINGS)}")
    largest = max(len(step.flows) for step in steps)
    pieces = largest * (8 if name == "ecmp-split-8" else 1)
    # A result and no error: the other routings still have an answer.
    if pieces > _MOST_PIECES:
        return RoutingResult(name=name, reason=f"{pieces:,} pieces are too many to simulate")
    times, costs = [], []
    # What draws nothing is the same for every seed.
    for seed in range(num_seeds if name in _RANDOM else 1):
        rng = np.random.default_rng(seed)
        total = 0.0
        for step in steps:
            try:
                routed = ROUTINGS[name](network, step.flows, rng)
            except ConfigError as error:
                # Not every routing is defined for every traffic: colouring needs equal flows.
                return RoutingResult(name=name, reason=str(error))
            total += step.repeat * simulate_flows(network, routed, tolerance=tolerance).makespan_s
            costs.append(congestion(network, routed))
        times.append(total)
    return RoutingResult(
        name=name,
        times_s=tuple(times),
        queue_pairs=max(cost.queue_pairs for cost in costs),
        # `costs` holds the steps of all seeds.
        splits=sum(cost.splits for cost in costs) // len(times),
        imbalance=max(cost.imbalance for cost in costs),
    )


def plan_routing(
    network: Network,
    steps: Sequence[CollectiveStep],
    *,
    max_queue_pairs: int = 0,
    allows_reordering: bool = False,
    num_seeds: int = 3,
) -> Plan:
    """Choose the routing for a traffic on a network.

    All are simulated. Of those within 1 % of the fastest that is allowed, the one that is easiest
    to run is taken: fewest connections per host, then the order of `ROUTINGS`.

    Args:
        network: the graph.
        steps: flows that start together, step after step.
        max_queue_pairs: most connections a host may hold at a time; 0 for any number.
        allows_reordering: whether receivers put packets in order, so that spraying is allowed.
        num_seeds: draws of routings by hash or by load.

    Returns:
        Plan: choice has the routing and its costs, `rejected` the others with what they would take,
        the closest first.

    Raises:
        InfeasibleError: no routing keeps the limit on connections.
    """
    found = [simulate_routing(network, steps, name, num_seeds=num_seeds) for name in ROUTINGS]
    ran = [item for item in found if item.times_s]
    ideal = min(item.time_s for item in ran)
    refused = {item.name: _refusal(item, max_queue_pairs, allows_reordering) for item in ran}
    allowed = [item for item in ran if not refused[item.name]]
    if not allowed:
        least = min(item.queue_pairs for item in ran)
        raise InfeasibleError(
            f"queue pairs: every routing needs more than {max_queue_pairs} per host",
            hint=f"allow {least}, or send in rounds, so that a host has fewer peers at a time",
        )
    fastest = min(item.time_s for item in allowed)
    close = [item for item in allowed if item.time_s <= _CLOSE * fastest]
    # The first of equals stays, and `ROUTINGS` has the easiest to run first.
    best = min(close, key=lambda item: item.queue_pairs)
    others = sorted((item for item in ran if item is not best), key=lambda item: item.time_s)
    rejected = [
        Rejected(choice=_choice(item, ideal), reason=refused[item.name] or _why(item, best))
        for item in others
    ]
    rejected += [
        Rejected(choice={"routing": item.name}, reason=item.reason)
        for item in found
        if not item.times_s
    ]
    return Plan(
        choice={"network": network.name, **_choice(best, ideal)},
        forecasts=[_forecast(best)],
        rejected=rejected,
        binding_constraint=_bound(network, steps, best),
        notes=["flows start together and share links max-min fairly; nothing else is under way"],
    )


def _choice(item: RoutingResult, ideal_s: float) -> dict[str, Any]:
    """Return a routing's figures as plain values."""
    return {
        "routing": item.name,
        "time_s": item.time_s,
        "over_fastest": item.time_s / ideal_s,
        "queue_pairs_per_host": item.queue_pairs,
        "splits": item.splits,
        "imbalance": item.imbalance,
    }


def _refusal(item: RoutingResult, max_queue_pairs: int, allows_reordering: bool) -> str:
    """Say why a routing is not allowed; empty where it is."""
    if item.name == "spray" and not allows_reordering:
        return "packets arrive out of order, which the receivers are not said to bear"
    if max_queue_pairs and item.queue_pairs > max_queue_pairs:
        return f"{item.queue_pairs} queue pairs per host, at most {max_queue_pairs} are allowed"
    return ""


def _why(item: RoutingResult, best: RoutingResult) -> str:
    """Say why a routing that is allowed lost."""
    slower = item.time_s / best.time_s
    if slower > _CLOSE:
        return f"{slower:.2f} times as slow: its busiest link has {item.imbalance:.2f} of the mean"
    if item.queue_pairs > best.queue_pairs:
        return f"as fast, but {item.queue_pairs} queue pairs per host, not {best.queue_pairs}"
    return "as fast, but harder to run"


def _forecast(best: RoutingResult) -> Forecast:
    """Return the completion time with the range of the seeds, widened by the model's error."""
    return Forecast(
        quantity="network.collective_time",
        value=best.time_s,
        low=min(best.times_s) / (1 + _MODEL_ERROR),
        high=max(best.times_s) * (1 + _MODEL_ERROR),
        provenance="simulated",
        source="flows that share links max-min fairly (Bertsekas and Gallager 1992)",
    )


def _bound(network: Network, steps: Sequence[CollectiveStep], best: RoutingResult) -> str:
    """Say whether hosts or the network between them bind."""
    rng = np.random.default_rng(0)
    parts = [congestion(network, ROUTINGS[best.name](network, s.flows, rng)) for s in steps]
    host = sum(step.repeat * part.host_s for step, part in zip(steps, parts, strict=True))
    inner = sum(step.repeat * part.switch_s for step, part in zip(steps, parts, strict=True))
    if inner > 1.005 * host:
        return f"links between switches: {inner / host:.2f} times what the hosts need"
    return "the links of the hosts: no routing can be faster"
