"""Prints the chain of formulas behind an answer, so that a reader can redo it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from steelyard.config import to_plain
from steelyard.runs.report import Cell, Column, Section, Table
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.cost.why.chain import ChainStep

__all__ = ["plain_steps", "why_section"]

_HOW = (
    "x is times and ^ is to the power of; numbers are in bytes, seconds, FLOP, US dollars and "
    "watts, each result rounded to three digits for its line only"
)


def why_section(steps: Iterable["ChainStep"], title: str = "How it comes about") -> Section:
    """Lay a chain out: of each step the formula, its numbers, its result and their source.

    Args:
        steps: the chain.
        title: head of the section.

    Returns:
        A section of a report.
    """
    rows: list[list[Cell]] = []
    for step in _once(steps):
        lines = (step.formula, f"= {step.filled}", f"= {_result(step)}", f"[{step.source}]")
        for place, line in enumerate(lines):
            rows.append(["" if place else step.name, line])
    heads = [Column("step"), Column("formula, numbers, result, source", align="left")]
    return Section(title, [Table(columns=heads, rows=rows, caption=_HOW)])


def _result(step: "ChainStep") -> str:
    """Write the result as answers write it."""
    return pretty(step.value, step.unit)


def plain_steps(steps: Iterable["ChainStep"]) -> list[dict[str, Any]]:
    """Return a chain as JSON values, each formula also with its numbers put in."""
    return [to_plain(step) | {"filled": step.filled} for step in _once(steps)]


def _once(steps: Iterable["ChainStep"]) -> list["ChainStep"]:
    """Leave out what stands there already, such as the bandwidth of two passes."""
    return list({(step.name, step.filled): step for step in steps}.values())
