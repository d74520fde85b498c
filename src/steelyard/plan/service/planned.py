"""The plan of a service: how many instances of which arrangement, and why the others lost."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from steelyard.catalog.hardware import Accelerator
from steelyard.plan.service.expected import expected, paced
from steelyard.plan.service.goodput import Goodput, attained
from steelyard.plan.service.search import FleetInstance, ServiceCandidate, ServiceSearch
from steelyard.plan.types import Plan, Rejected
from steelyard.quantity import Forecast
from steelyard.units import pretty

__all__ = ["explained", "goodput_forecast", "service_plan"]

_NOISE_RUNS, _NOISE_SEED = 8, 31
_LATE = {"ttft": "first tokens come too late", "tpot": "further tokens take too long"}


def service_plan(
    search: ServiceSearch,
    found: Sequence[ServiceCandidate],
    rate_per_s: float,
    accelerator: Accelerator,
) -> Plan:
    """Turn what a search found into a plan.

    Args:
        search: the search.
        found: its candidates, the best first.
        rate_per_s: requests per second of the service.
        accelerator: its machines.

    Returns:
        The plan. Its forecasts are of one instance at its share of the rate; intervals come from
        step times that are shorter and longer by their spread.
    """
    # The reasons are worked out here too, so that a plan alone says why each other one lost.
    best, *rest = explained(found, search)
    assert best.goodput is not None, "the first candidate was simulated"
    arrangement = best.arrangement
    instances = math.ceil(rate_per_s / best.goodput.rate_per_s)
    devices = instances * arrangement.num_devices
    choice = _choice(arrangement) | {
        "instances": instances,
        "accelerators": devices,
        "accelerator": accelerator.name,
    }
    hour = accelerator.price_usd_per_hour
    notes = [
        f"{search.share:.0%} of the requests are to keep both limits; {_load_words(search)}",
        f"step times: {arrangement.options[0].step_time.source}",
    ]
    if hour:
        notes.append(f"${hour * devices:,.2f} per hour at ${hour:g} per accelerator")
    return Plan(
        choice=choice,
        forecasts=[
            goodput_forecast(search, arrangement, best.goodput),
            *_seen(search, arrangement, rate_per_s / instances),
        ],
        rejected=[
            Rejected(
                choice=_choice(item.arrangement) | {"goodput_per_accelerator": item.per_device},
                reason=item.reason,
            )
            for item in rest
        ],
        binding_constraint=_LATE[best.goodput.binding] + " beyond",
        notes=notes,
    )


def explained(found: Sequence[ServiceCandidate], search: ServiceSearch) -> list[ServiceCandidate]:
    """Say of each candidate but the first why it is not the first."""
    return [found[0], *(replace(item, reason=_why(item, found[0], search)) for item in found[1:])]


def _why(item: ServiceCandidate, best: ServiceCandidate, search: ServiceSearch) -> str:
    """Say why a candidate is not the first."""
    share = item.per_device / best.per_device
    if item.goodput is None:
        bound = "its halves alone" if len(item.arrangement.groups) > 1 else "its steps alone"
        return f"at most {share:.0%} of the goodput per accelerator, by {bound}"
    at = item.goodput.at
    if not item.goodput.rate_per_s:
        name = "ttft" if at.ttft < at.tpot else "tpot"
        reached, limit = getattr(at, f"{name}_s"), getattr(search.slo, f"{name}_s")
        return f"{name} is {pretty(reached, 's')} without any load, more than {pretty(limit, 's')}"
    late = _LATE[item.goodput.binding]
    short = item.goodput.beyond.preempted > 0.05
    room = ", as keys and values have too little room" if short else ""
    return f"{share:.0%} of the goodput per accelerator: {late}{room}"


def _choice(arrangement: FleetInstance) -> dict[str, Any]:
    """Return an arrangement as plain values."""
    parts = [
        {
            "role": group.role,
            "replicas": group.count,
            "tensor": option.tensor,
            "pipeline": option.pipeline,
            "kv_tokens": option.kv_tokens,
            "token_budget": group.token_budget,
            "max_num_seqs": group.max_num_seqs,
            "whole_prompts": group.whole_prompts,
        }
        for option, group in zip(arrangement.options, arrangement.groups, strict=True)
    ]
    return {"kind": arrangement.kind, "words": arrangement.words, "groups": parts}


def _load_words(search: ServiceSearch) -> str:
    """Say what the load is like."""
    load = search.load
    shared = f", {load.shared_fraction:.0%} of the prompts shared" if load.block_ids else ""
    return (
        f"prompts of {load.input_tokens.mean():,.0f} and outputs of "
        f"{load.output_tokens.mean():,.0f} tokens in the mean{shared}, gaps vary by "
        f"{load.variation:.2g}"
    )


def goodput_forecast(search: ServiceSearch, arrangement: FleetInstance, found: Goodput) -> Forecast:
    """Forecast the goodput of an instance.

    A goodput is where a share falls through a threshold, so two things move it: steps that are
    longer or shorter than thought, and the share of one run, which wavers from sample to sample.
    Where the share falls steeply the second hardly counts; where it is flat, most of it is that.

    Args:
        search: the search.
        arrangement: the instance.
        found: what it carries.

    Returns:
        Requests per second, with the 80 % interval of what a run of as many requests finds.
    """
    width = 1 + search.relative(arrangement)
    noise = _run_noise(search, arrangement, found)
    paces = [_at_pace(search, arrangement, factor) for factor in (width, 1 / width)]
    shares = [_at_share(search, arrangement, search.share + step) for step in (noise, -noise)]
    value = found.rate_per_s
    (slow, fast), (strict, lax) = paces, shares
    return Forecast(
        quantity="serve.goodput",
        value=value,
        low=value / _factor(value, slow, strict),
        high=value * _factor(value, fast, lax) if value else max(fast, lax),
        provenance="simulated",
        source=f"sim.fleet, {arrangement.options[0].step_time.source}",
    )


def _run_noise(search: ServiceSearch, arrangement: FleetInstance, found: Goodput) -> float:
    """Return how far the attained share of one run lies from the mean of runs, at 80 %."""
    if not found.rate_per_s:
        return 0.0
    generator = np.random.default_rng(_NOISE_SEED)
    shares = [
        attained(
            arrangement.groups,
            search.load.redrawn(generator),
            found.rate_per_s,
            search.slo,
            search.share,
        ).both
        for _ in range(_NOISE_RUNS)
    ]
    return float(stdtrit(_NOISE_RUNS - 1, 0.9)) * float(np.std(shares, ddof=1))


def _at_share(search: ServiceSearch, arrangement: FleetInstance, share: float) -> float:
    """Return the goodput at another share of the requests."""
    least, most = 1 / len(search.load.input_tokens), 1 - 1 / len(search.load.input_tokens)
    asked = replace(search, share=min(max(share, least), most))
    return asked.carried(arrangement).rate_per_s


def _factor(value: float, *ends: float) -> float:
    """Return by how much two causes that do not depend on each other move a value together."""
    if not value or not min(ends):
        # A limit that too many requests break even alone: nothing is carried then.
        return math.inf
    return math.exp(math.hypot(*(math.log(end / value) for end in ends)))


def _at_pace(search: ServiceSearch, arrangement: FleetInstance, factor: float) -> float:
    """Return the goodput where every step takes `factor` times as long."""
    groups = paced(arrangement.groups, factor)
    return search.carried(replace(arrangement, groups=groups)).rate_per_s


def _seen(search: ServiceSearch, arrangement: FleetInstance, rate_per_s: float) -> list[Forecast]:
    """Forecast what requests see of one instance at a rate."""
    found = expected(
        arrangement.groups,
        search.load.lasting(rate_per_s, 0.0),
        search.slo,
        spread=search.relative(arrangement),
        source=arrangement.options[0].step_time.source,
        load=search.load,
    )
    # How long the sample lasts says nothing of a service that goes on, nor do rates over it.
    own = ("serve.makespan", "serve.throughput", "serve.request_rate")
    return [item for item in found if item.quantity not in own]
