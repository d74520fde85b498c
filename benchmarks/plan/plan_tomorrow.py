"""A fleet chosen from five days, on the day after: for the average, with a margin, and to last.

Days are those of two production services over 14 days (ServeGen, arXiv 2505.09999): published rate
and variation of each client in each ten minutes, published lengths of each client. All of them are
scaled to one mean rate. A fleet is chosen from five days in a row by the package, and then meets
the day after them, which nothing has seen, with arrivals drawn anew. Beside it stand the fleet that
holds on the mean of the five days, the same with a quarter more instances, and that which holds on
the worst of the five. A fleet holds a day when 90 % of its requests keep both limits. Nothing was
tuned on these days but their mean rate and the machine, so that one accelerator is about a tenth of
a fleet: this was looked at on days 6 and 11 of the first service.
"""

import math

import numpy as np
from benchmarks.common import Check
from benchmarks.plan._client_days import ClientDays

from steelyard import catalog
from steelyard.cost.roofline import Machine
from steelyard.plan.machines import nodes_of
from steelyard.plan.service.days import DayLoad
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import engine_options
from steelyard.plan.service.search import ServiceLimits, ServiceSearch
from steelyard.plan.service.tomorrow import TomorrowPlan, fleet_of, plan_tomorrow
from steelyard.serve.client.summary import Slo

PAPER: list[str] = []
_SLO = Slo(ttft_s=2.0, tpot_s=0.1)
_SHARE, _SURE, _SEEN = 0.9, 0.9, 5
_SERVICES = {"language_m_large": (10.0, 20.0), "language_m_small": (100.0, 8.0)}
"""Mean requests per second of all days, and seconds of each hour that are simulated: prompts of the
second service are a tenth as long."""
_MODEL, _MACHINE = "llama-3-8b", "L4"
_RULES = ("average day", "average + 25 %", "worst day seen", "days to come")


def run(quick: bool) -> list[Check]:
    """Plan, meet the next day, count."""
    held: dict[str, list[bool]] = {name: [] for name in _RULES}
    short: dict[str, list[float]] = {name: [] for name in _RULES}
    devices: dict[str, list[int]] = {name: [] for name in _RULES}
    for service, (rate_per_s, piece_s) in list(_SERVICES.items())[: 1 if quick else None]:
        source = ClientDays(service, rate_per_s=rate_per_s, piece_s=piece_s)
        for first in range(0, source.count - _SEEN, 5 if quick else 2):
            generator = np.random.default_rng(100 + first)
            days = [source.day(first + place, generator) for place in range(_SEEN)]
            plan = _plan(days, generator, draws=3 if quick else 10)
            after = source.day(first + _SEEN, np.random.default_rng(900 + first))
            for name, groups, count in _fleets(plan, days):
                reached = after.attainment(groups, _SLO)
                held[name].append(reached >= _SHARE)
                short[name].append(max(_SHARE - reached, 0.0))
                devices[name].append(count)
            print(f"{after.name}: peak {after.peak_per_s:.1f}/s after", end=" ")
            print(", ".join(f"{day.peak_per_s:.1f}" for day in days), end="; ")
            told = (f"{name} {devices[name][-1]} {held[name][-1]}" for name in _RULES)
            print("; ".join(told), flush=True)
    for name in _RULES:
        print(
            f"{name:>15}: held {np.mean(held[name]):.0%} of {len(held[name])} days not seen, "
            f"mean shortfall {np.mean(short[name]):.2%}, worst {max(short[name]):.1%}, "
            f"{np.mean(devices[name]):.1f} accelerators"
        )
    last, base = "days to come", "average day"
    more = float(np.mean(devices[last]) / np.mean(devices[base]))
    gain = float(np.mean(held[last]) - np.mean(held[base]))
    rule = float(np.mean(held[last]) - np.mean(held["average + 25 %"]))
    return [
        Check("1 days not seen that are held", float(np.mean(held[last])), 0.8, "higher"),
        Check("2 days held, over the fleet for the average", gain, 0.1, "higher"),
        Check("3 days held, over the average with a quarter more", rule, 0.0, "higher"),
        Check("4 accelerators over those for the average", more, 2.0, "lower"),
        Check("5 worst shortfall over the average's", _worst(short, last, base), 0.9, "lower"),
    ]


def _worst(short: dict[str, list[float]], one: str, other: str) -> float:
    """Return the ratio of worst shortfalls."""
    return max(short[one]) / max(*short[other], 1e-9)


def _plan(days: list[DayLoad], generator: np.random.Generator, *, draws: int) -> TomorrowPlan:
    """Search arrangements on the days together, and choose fleets."""
    record = catalog.accelerator(_MACHINE)
    machine = Machine.from_accelerator(record, cluster=nodes_of(record, 8))
    arch = catalog.architecture_by_name(_MODEL)
    inputs, outputs = (
        np.concatenate([getattr(day, name) for day in days])
        for name in ("input_tokens", "output_tokens")
    )
    load = ServiceLoad.drawn(inputs, outputs, generator, count=600)
    options = engine_options(arch, machine, step_tokens=2048, tensors=[1], pipelines=[1])
    search = ServiceSearch(
        load=load,
        slo=_SLO,
        share=_SHARE,
        options=tuple(options),
        limits=ServiceLimits(per_node=1, token_budget=512, max_num_seqs=128),
    )
    found = search.run(float(np.mean([day.rate_per_s for day in days])))
    return plan_tomorrow(
        found, days, _SLO, _SHARE, generator, sure=_SURE, draws=draws, arrangements=2
    )


def _fleets(plan: TomorrowPlan, days: list[DayLoad]) -> list[tuple]:
    """Return the fleet of each rule with its accelerators."""
    average, candidate = plan.average, plan.average.candidate
    size = candidate.arrangement.num_devices
    margin = math.ceil(1.25 * average.instances)
    worst = average.instances
    while min(day.attainment(fleet_of(candidate, worst), _SLO) for day in days) < _SHARE:
        worst += 1
    return [
        (_RULES[0], average.groups, average.devices),
        (_RULES[1], fleet_of(candidate, margin), margin * size),
        (_RULES[2], fleet_of(candidate, worst), worst * size),
        (_RULES[3], plan.lasting.groups, plan.lasting.devices),
    ]
