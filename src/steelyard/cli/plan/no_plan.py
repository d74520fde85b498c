"""What is said where nothing fits: what exceeds, by how much, and the nearest changes that do."""

from steelyard.cli.output import print_json
from steelyard.config import to_plain
from steelyard.plan.changes import NoPlanError
from steelyard.plan.machines import Machines
from steelyard.plan.types import Change, layout_words
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = ["changes_table", "say_why_not"]


def say_why_not(error: NoPlanError, machines: Machines, *, json: bool) -> int:
    """Say what exceeds, by how much, and the nearest changes that make a plan possible.

    Args:
        error: what was searched for, and why there is none.
        machines: what it was asked for.
        json: whether JSON is printed.

    Returns:
        Exit status.
    """
    if json:
        values = {"infeasible": str(error), "hint": error.hint, "changes": to_plain(error.changes)}
        print_json(values)
        return error.exit_code
    table = changes_table(
        "with", error.changes, [pretty(item.duration_s, "s") for item in error.changes]
    )
    told = f"{error}."
    if not error.changes:
        told += f" No single change of machines, memory, sequences or batch helps; {error.hint}."
    sections = [Section("What exceeds", [Text(told)])]
    if error.changes:
        sections.append(Section("Nearest changes that fit", [table]))
    Report("No plan is possible", f"on {machines.cluster.name}", sections).print()
    return error.exit_code


def changes_table(head: str, changes: list[Change], times: list[str]) -> Table:
    """Make the table of single changes with what the run would be.

    Args:
        head: head of the first column.
        changes: the changes.
        times: what the run takes with each.

    Returns:
        The table.
    """
    rows: list[list[Cell]] = [
        [item.name, time, layout_words(item.layout)]
        for item, time in zip(changes, times, strict=True)
    ]
    return Table([Column(head), Column("run takes", align="right"), Column("layout", rank=1)], rows)
