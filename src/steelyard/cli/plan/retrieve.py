"""`steelyard plan retrieve`: which index a goal needs, before any is built."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from steelyard.catalog import accelerator, storage_tier
from steelyard.catalog.search_rates import SearchRates, load_search_rates, reference_search_rates
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.tenancy import (
    sampled_hardness,
    sampled_rows,
    tenancy_section,
    tenancy_values,
)
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.index_goal import IndexGoal, parse_goal
from steelyard.plan.retrieve.index_options import IndexOption
from steelyard.plan.retrieve.indexing import IndexPlan, plan_index
from steelyard.plan.retrieve.machine_offer import MachineOffer
from steelyard.plan.retrieve.probing import USUAL, ProbeRule
from steelyard.plan.retrieve.tenancy import TenancyPlan, plan_tenancy
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.units import parse, pretty

__all__ = ["retrieve"]

_RECALLS = (0.999, 0.99, 0.98, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
_CORES = {"Xeon-8488C": 48, "Graviton4": 96}
"""Cores of processors that the catalog has a rent of."""


def retrieve(
    goal: str,
    *,
    budget: str = "",
    machine: str = "Xeon-8488C",
    cores: int = 0,
    storage: str = "s3-standard",
    sample: Path | None = None,
    json: Switch = False,
) -> None:
    """Say which index a goal needs: bytes, build, latency, machines, money, and why others lost.

    Example: steelyard plan retrieve "10 M x 768, 200 tenants, recall .95, 20 ms, 8 GB"

    Args:
        goal: vectors x numbers, and what else is wanted, separated by commas: tenants, "seen by 3"
            of them, recall, longest time, memory of a machine, queries/s.
        budget: US dollars a month, such as $300: the best recall that they buy, up to the goal's
            time, instead of the cheapest index of its recall.
        machine: processor of the catalog that is rented, in parts of the memory that is named.
        cores: cores of the whole processor, for one whose cores are not known.
        storage: tier of the catalog that keeps a copy.
        sample: .npy or .fvecs file of some of the vectors: how many cells a recall needs is
            measured on it.
        json: print JSON instead of tables.
    """
    wanted = parse_goal(goal)
    rates = load_search_rates()
    known = rates or reference_search_rates()
    usd = parse(budget, "USD", where="--budget") if budget else 0.0
    require_range(0, cores=cores)
    if budget:
        require_range(0, is_open=True, budget=usd)
    processor = accelerator(machine)
    whole = cores or _CORES.get(machine, 0)
    if not whole:
        raise ConfigError(f"the cores of {machine} are not known", hint="give --cores")
    offer = MachineOffer.of(processor, wanted.memory_bytes, whole)
    tier = storage_tier(storage)
    rule, hardness = _measured(sample, wanted) if sample else (USUAL, 1.0)
    if budget:
        plan = _within(usd, wanted, known, offer, rule, hardness, storage)
    else:
        plan = plan_index(wanted, known, offer, tier, rule=rule, hardness=hardness)
    page, values = _page(plan, rule, rates is not None, budget), _values(plan)
    shared = _shared(plan, known, hardness)
    if shared:
        values["tenancy"] = tenancy_values(shared)
        page.sections.insert(-1, tenancy_section(shared))
    print_report(page, json=json, values=values)


def _shared(plan: IndexPlan, rates: SearchRates, hardness: float) -> TenancyPlan | None:
    """Return how tenants share best on the machine that is rented, where it is one."""
    goal = replace(plan.goal, memory_bytes=plan.offer.memory_bytes)
    # Over several machines every way is cut in another manner: the table of those that lost has
    # each with its shards.
    if goal.tenants < 2 or plan.chosen.machines.value > 1:
        return None
    try:
        return plan_tenancy(TenancyGoal.of(goal, hardness=hardness), rates)
    except InfeasibleError:
        # The cheapest index is smaller or faster by codes, which none of these ways has.
        return None


def _within(
    usd: float,
    goal: IndexGoal,
    rates: SearchRates,
    offer: MachineOffer,
    rule: ProbeRule,
    hardness: float,
    storage: str,
) -> IndexPlan:
    """Return the plan of the best recall that a budget buys."""
    cheapest: IndexPlan | None = None
    for recall in _RECALLS:
        try:
            plan = plan_index(
                replace(goal, recall=recall),
                rates,
                offer,
                storage_tier(storage),
                rule=rule,
                hardness=hardness,
            )
        except InfeasibleError:
            continue
        if plan.chosen.usd_per_month.value <= usd:
            return plan
        cheapest = plan
    told = "no index is fast enough"
    if cheapest:
        least = cheapest.chosen.usd_per_month.value
        told = f"a recall of {cheapest.goal.recall:g} costs {least:,.0f} USD a month"
    raise InfeasibleError(
        f"{usd:,.0f} USD a month buy none: {told}", hint="raise --budget, or allow a longer time"
    )


def _measured(path: Path, goal: IndexGoal) -> tuple[ProbeRule, float]:
    """Return how many cells the vectors of a file need, alone and over usual ones."""
    from steelyard.retrieve.sampling import measure_cells

    rows = sampled_rows(path, goal.dim)
    found = measure_cells(rows, goal.recall)
    rule = ProbeRule.measured(found.nlist, found.recall, found.nprobe)
    return rule, sampled_hardness(rows, goal.recall) if goal.tenants > 1 else 1.0


def _page(plan: IndexPlan, rule: ProbeRule, is_calibrated: bool, budget: str) -> Report:
    """Say what was found."""
    best, goal, offer = plan.chosen, plan.goal, plan.offer
    rows = [
        ("index", f"{best.name}; {best.sharing}", ""),
        ("recall", f"{goal.recall:g} of the ten nearest", "wanted"),
        ("memory", _told(best.memory_bytes, "byte"), "derived"),
        ("build", _told(best.build_s, "s"), "fitted"),
        ("a query", _told(best.query_s, "s"), "fitted"),
        ("machines", _counted(best.machines), "derived"),
        ("money", _dollars(best.usd_per_month) + " a month", "derived"),
        ("what binds", plan.binding, ""),
    ]
    if goal.tenants > 1:
        rows.insert(1, ("tenants", f"{goal.tenants:,}, each of {goal.own_vectors:,} vectors", ""))
    part = f"{pretty(offer.memory_bytes, 'byte')}, {offer.cores:.2g} cores"
    told = [
        ("machine", f"{offer.name}: {part}, {offer.usd_per_hour:.3f} USD an hour", offer.source),
        ("cells for a recall", f"{rule.source}, 80 % within a factor of {rule.factor:g}", ""),
        (
            "speed",
            "this machine" if is_calibrated else "the package's machine: run `retrieve calibrate`",
            "",
        ),
    ]
    if budget:
        told.append(("budget", f"{budget} a month buys a recall of {goal.recall:g}", ""))
    sections = [
        Section("Index", [Facts(rows)]),
        Section("Why the others lost", [_table(plan.others)]),
        Section("What this rests on", [Facts(told)]),
    ]
    wanted = (
        f"{goal.vectors:,} vectors of {goal.dim} numbers, {pretty(goal.latency_s, 's')} a query"
    )
    return Report("Plan of an index", wanted, sections)


def _table(others: "list[IndexOption] | tuple[IndexOption, ...] | Any") -> Table:
    """List what lost."""
    rows: list[list[Cell]] = [
        [
            f"{option.name}; {option.sharing}",
            pretty(option.memory_bytes.value, "byte"),
            _told(option.query_s, "s"),
            f"{option.machines.value:,.0f}",
            _dollars(option.usd_per_month),
            option.lost,
        ]
        for option in others
    ]
    names = ("index", "memory", "a query", "machines", "a month", "why it lost")
    return Table([Column(name) for name in names], rows)


def _told(found: Estimate, unit: str) -> str:
    """Return a value with its interval."""
    ends = f"{pretty(found.low, unit)} to {pretty(found.high, unit)}"
    return f"{pretty(found.value, unit)} (80 %: {ends})"


def _counted(found: Estimate) -> str:
    if found.low == found.high:
        return f"{found.value:,.0f}"
    return f"{found.value:,.0f} (80 %: {found.low:,.0f} to {found.high:,.0f})"


def _dollars(found: Estimate) -> str:
    if round(found.low) == round(found.high):
        return f"{found.value:,.0f} USD"
    return f"{found.value:,.0f} USD (80 %: {found.low:,.0f} to {found.high:,.0f})"


def _values(plan: IndexPlan) -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "goal": asdict(plan.goal),
        "offer": asdict(plan.offer),
        "chosen": asdict(plan.chosen) | {"name": plan.chosen.name},
        "others": [asdict(option) | {"name": option.name} for option in plan.others],
        "binding": plan.binding,
    }
