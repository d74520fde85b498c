"""How tenants should share vectors, as pages and JSON show it."""

from dataclasses import asdict
from typing import Any

from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.tenancy import TenancyPlan
from steelyard.runs.report import Cell, Column, Section, Table
from steelyard.units import pretty

__all__ = ["tenancy_section", "tenancy_values"]


def tenancy_section(plan: TenancyPlan) -> Section:
    """List the four ways, the chosen one first.

    Args:
        plan: the plan.

    Returns:
        A section with a table.
    """
    rows: list[list[Cell]] = [
        [
            option.way,
            option.setting,
            _told(option.memory_bytes, "byte"),
            _told(option.query_s, "s"),
            option.lost or "chosen: the fastest that fits",
        ]
        for option in (plan.chosen, *plan.others)
    ]
    names = ("way", "a query looks at", "memory (80 %)", "median query (80 %)", "why")
    size = plan.goal.own_vectors
    title = f"How tenants share, for one of {size:,} vectors"
    return Section(title, [Table([Column(name) for name in names], rows, "fitted")])


def tenancy_values(plan: TenancyPlan) -> dict[str, Any]:
    """Return the figures, for programs.

    Args:
        plan: the plan.

    Returns:
        The goal, the chosen way and the others.
    """
    return {
        "goal": asdict(plan.goal) | {"own_vectors": plan.goal.own_vectors},
        "chosen": asdict(plan.chosen),
        "others": [asdict(option) for option in plan.others],
    }


def _told(found: Estimate, unit: str) -> str:
    """Return a value with its interval."""
    ends = f"{pretty(found.low, unit)} to {pretty(found.high, unit)}"
    return f"{pretty(found.value, unit)} ({ends})"
