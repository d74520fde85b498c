"""`steelyard retrieve tenants plan`: how tenants should share vectors, before any build."""

from pathlib import Path

from steelyard.catalog.search_rates import load_search_rates, reference_search_rates
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.tenancy import (
    sampled_hardness,
    sampled_rows,
    tenancy_section,
    tenancy_values,
)
from steelyard.plan.retrieve.index_goal import parse_goal
from steelyard.plan.retrieve.tenancy import plan_tenancy
from steelyard.plan.retrieve.tenancy_goal import TenancyGoal
from steelyard.runs.report import Facts, Report, Section
from steelyard.units import pretty

__all__ = ["plan"]


def plan(
    goal: str,
    *,
    selectivity: float = 0.0,
    locality: float = 0.0,
    k: int = 10,
    sample: Path | None = None,
    json: Switch = False,
) -> None:
    """Say how tenants should share vectors: bytes and time of four ways, before any is built.

    A plain scan of the tenant's vectors, one tree with a list per tenant, one index of cells with
    a bitmap per tenant, or an index per tenant: the fastest that fits into memory is chosen.

    Example: steelyard retrieve tenants plan "1 M x 128, 200 tenants, seen by 5, recall .95, 2 GB"

    Args:
        goal: vectors x numbers and tenants, and what else is wanted, separated by commas: "seen by
            5" tenants each, recall, longest time, memory for all.
        selectivity: share of all vectors that the tenant sees whose queries matter, 0 to 1; the
            mean tenant's when 0.
        locality: share of a tenant's vectors that lie in a few clusters of its own, 0 to 1.
        k: neighbours of a query.
        sample: .npy or .fvecs file of some of the vectors: how hard they are to find is measured on
            it.
        json: print JSON instead of tables.
    """
    require_range(0, 1, selectivity=selectivity, locality=locality)
    require_range(1, k=k)
    wanted = parse_goal(goal)
    hard = sampled_hardness(sampled_rows(sample, wanted.dim), wanted.recall) if sample else 1.0
    asked = TenancyGoal.of(wanted, selectivity=selectivity, locality=locality, k=k, hardness=hard)
    rates = load_search_rates()
    found = plan_tenancy(asked, rates or reference_search_rates())
    best = found.chosen
    limit = pretty(asked.memory_bytes, "byte") if asked.memory_bytes else "no limit"
    is_measured = rates is not None and "tenant tree" in rates.query_s
    speed = "this machine" if is_measured else "the package's machine: run `retrieve calibrate`"
    facts = [
        ("way", best.way, ""),
        ("a query looks at", best.setting, ""),
        ("memory", limit, "wanted"),
        ("recall", f"{asked.recall:g} of the {asked.k} nearest", "wanted"),
        (
            "cells for a recall",
            f"{hard:.2g} times those of usual vectors" if sample else "usual",
            "",
        ),
        ("speed", speed, ""),
    ]
    sections = [Section("Choice", [Facts(facts)]), tenancy_section(found)]
    told = (
        f"{asked.vectors:,} vectors of {asked.dim} numbers, {asked.tenants:,} tenants, each vector "
        f"seen by {asked.seen_by:g}"
    )
    page = Report("Plan for tenants", told, sections)
    print_report(page, json=json, values=tenancy_values(found))
