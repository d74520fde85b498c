"""How tenants should share vectors, as pages and JSON show it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.errors import ConfigError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.plan.retrieve.tenancy import TenancyPlan
from steelyard.plan.retrieve.tenancy_probes import own_cells
from steelyard.runs.report import Cell, Column, Section, Table
from steelyard.units import pretty

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["sampled_hardness", "sampled_rows", "tenancy_section", "tenancy_values"]

_LEAST = 1000


def sampled_rows(path: Path, dim: int) -> "NDArray[np.generic]":
    """Read some of the vectors that a plan is for.

    Args:
        path: .npy or .fvecs file.
        dim: numbers of a vector.

    Returns:
        Vectors [N, D].

    Raises:
        ConfigError: too few, or of another width.
    """
    from steelyard.retrieve.reading import read_vectors

    rows = read_vectors(path)
    if rows.shape[1] != dim or len(rows) < _LEAST:
        raise ConfigError(
            f"--sample {path} has {len(rows):,} vectors of {rows.shape[1]} numbers",
            hint=f"give {_LEAST:,} or more of {dim}",
        )
    return rows


def sampled_hardness(rows: "NDArray[np.generic]", recall: float) -> float:
    """Return how many times as many cells vectors need for a recall as usual ones.

    Args:
        rows: some of the vectors [N, D].
        recall: the recall.

    Returns:
        Cells over those of usual vectors.
    """
    from steelyard.retrieve.sampling import measure_cells

    found = measure_cells(rows, recall, cells_per_root=2.0)
    usual = own_cells(found.vectors, found.nlist, 0.0, found.recall, 10)
    return found.nprobe / usual


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
