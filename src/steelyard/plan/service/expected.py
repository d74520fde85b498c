"""What the requests of a service are expected to see at a rate, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import replace

from steelyard.plan.service.goodput import Requests, run_load
from steelyard.plan.service.load import ServiceLoad
from steelyard.quantity import Forecast
from steelyard.serve.client.summary import Slo
from steelyard.sim.fleet.instance import ReplicaGroup, simulate_fleet

__all__ = ["DRIFT", "expected", "paced"]

DRIFT = 0.15
"""How far a machine's speed moves between a profile and a later run; assumed, seen up to twice that
on shared hosts."""
_LEAST = 0.03
"""Least half-width of an interval, as a share of the value; assumed."""
_NORMAL_80 = 1.2816
"""Standard deviations on each side that hold 80 % of a normal distribution."""
_QUANTITIES = (
    "serve.ttft",
    "serve.ttft_p95",
    "serve.tpot",
    "serve.e2e_latency",
    "serve.throughput",
    "serve.request_rate",
    "serve.makespan",
)


def paced(groups: Sequence[ReplicaGroup], factor: float) -> tuple[ReplicaGroup, ...]:
    """Return the same groups with every step `factor` times as long."""
    return tuple(replace(group, step_time=group.step_time.scaled(factor)) for group in groups)


def expected(
    groups: Sequence[ReplicaGroup],
    requests: Requests,
    slo: Slo,
    *,
    spread: float,
    source: str,
    load: ServiceLoad | None = None,
) -> list[Forecast]:
    """Forecast what requests see.

    They are simulated at the step times, and at times shorter and longer by their spread. Queues
    amplify such errors, and a steady rate absorbs them.

    Args:
        groups: the instance.
        requests: arrivals [R] s, prompt tokens [R], output tokens [R].
        slo: limits of which attainment is forecast.
        spread: relative error of the step times.
        source: what they were made from.
        load: where the requests are from; None where their prompts share nothing.

    Returns:
        Forecasts of serving quantities with 80 % intervals, attainment among them.

    Raises:
        CapacityError: a request is larger than the room for its keys and values.
    """
    middle, *ends = (
        _seen(paced(groups, factor), requests, slo, load)
        for factor in (1.0, 1 / (1 + spread), 1 + spread)
    )
    found = []
    for name, value in middle.items():
        low = min(value / (1 + _LEAST), *(end[name] for end in ends))
        high = max(value * (1 + _LEAST), *(end[name] for end in ends))
        if name == "serve.slo_attainment":
            chance = _chance(value, len(requests[0]))
            low, high = max(min(low, value - chance), 0.0), min(max(high, value + chance), 1.0)
        found.append(
            Forecast(
                quantity=name,
                value=value,
                low=low,
                high=high,
                provenance="simulated",
                source=f"sim.fleet, {source}",
            )
        )
    return found


def _chance(share: float, count: int) -> float:
    """Return how far a share of so many requests lies from the long run's, at 80 %."""
    # Half a request is added to both sides: of shares of 0 or 1 nobody knows that they are exact.
    middle = (share * count + 0.5) / (count + 1)
    return _NORMAL_80 * math.sqrt(middle * (1 - middle) / count)


def _seen(
    groups: Sequence[ReplicaGroup], requests: Requests, slo: Slo, load: ServiceLoad | None
) -> dict[str, float]:
    """Return the serving quantities of one simulated run."""
    run = run_load(groups, load, requests) if load else simulate_fleet(groups, *requests)
    summary = run.timeline.summary()
    kept = {name: summary[name] for name in _QUANTITIES if name in summary}
    attained = float(run.timeline.within(slo.ttft_s, slo.tpot_s).mean())
    return kept | {"serve.slo_attainment": attained}
