"""What `steelyard sim power` prints: a table of policies, energy by priority, and a picture."""

from typing import Any

from steelyard.config import to_plain
from steelyard.cost.energy import J_PER_KWH
from steelyard.operate.power import RowAnswer
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text

__all__ = ["page", "values"]

_LONGER = ("high_p50", "high_p99", "low_p50", "low_p99")
_HEADS = ("peak", "brakes", "over, s", "MWh", "high p50", "high p99", "low p50", "low p99")
_RANKS = (0, 0, 1, 2, 0, 0, 0, 0)


def page(answer: RowAnswer, drawn: dict[str, Any] | None) -> Report:
    """Make the page.

    Args:
        answer: the policies.
        drawn: picture of a day, None for none.

    Returns:
        The report.
    """
    scenario, row = answer.scenario, answer.scenario.row()
    sections = [Section("Policies", [_table(answer), Text(_reading(answer))])]
    sections.append(Section("Energy", [_energy(answer)]))
    if drawn is not None:
        sections.append(Section("The highest day", [Chart(drawn)]))
    more = f"{scenario.added / scenario.servers:+.0%}" if scenario.added else "as planned"
    return Report(
        f"Row of {row.servers} servers on the budget of {scenario.servers} ({more})",
        f"{scenario.days:g} days, {row.high_servers} servers for high priority, "
        f"{row.budget_w / 1e3:,.0f} kW; simulated",
        sections,
    )


def _table(answer: RowAnswer) -> Table:
    """List every policy."""
    rows: list[list[Cell]] = []
    for item in answer.rows():
        rows.append(
            [
                item["policy"],
                f"{item['peak']:.1%}",
                f"{item['brakes']:,.0f}",
                f"{item['over_s']:,.0f}",
                f"{float(item['energy_j']) / J_PER_KWH / 1e3:,.2f}",
                *(f"{item[f'{name}_longer']:+.1%}" for name in _LONGER),
            ]
        )
    heads = [
        Column(words, align="right", rank=rank) for words, rank in zip(_HEADS, _RANKS, strict=True)
    ]
    return Table([Column("policy"), *heads], rows)


def _reading(answer: RowAnswer) -> str:
    """Say how the table is read."""
    rise = answer.free.rise(answer.scenario.clock_latency_s)
    return (
        "Peak and time over are those of the row's power against its budget. Latencies are how "
        "much longer than with nothing requests took, at the median and the 99th percentile. "
        f"Within the {answer.scenario.clock_latency_s:g} s of a command the power rises by up to "
        f"{rise:.1%} of the budget."
    )


def _energy(answer: RowAnswer) -> Table:
    """List where the energy of each policy went."""
    rows: list[list[Cell]] = []
    for item in answer.rows():
        parts = [float(item[name]) for name in ("high_j", "low_j", "idle_j")]
        per_answer = [
            float(item[f"{name}_j"]) / max(float(item[f"{name}_requests"]), 1.0)
            for name in ("high", "low")
        ]
        rows.append(
            [
                item["policy"],
                *(f"{part / J_PER_KWH / 1e3:,.2f}" for part in parts),
                *(f"{joules / 1e3:,.1f}" for joules in per_answer),
            ]
        )
    heads = ("high, MWh", "low, MWh", "idle, MWh", "high, kJ an answer", "low, kJ an answer")
    note = "hosts included; the three parts add up to the row's meter"
    columns = [Column(words, align="right") for words in heads]
    return Table([Column("policy"), *columns], rows, caption=note)


def values(answer: RowAnswer) -> dict[str, Any]:
    """Return all figures, for programs.

    Args:
        answer: the policies.

    Returns:
        Plain values by name.
    """
    row = answer.scenario.row()
    return {
        "scenario": to_plain(answer.scenario),
        "thresholds": list(answer.thresholds),
        "budget_w": row.budget_w,
        "servers": {"high": row.high_servers, "low": row.low_servers},
        "rise": answer.free.rise(answer.scenario.clock_latency_s),
        "policies": answer.rows(),
        "provenance": "simulated",
    }
