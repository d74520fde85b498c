"""What `steelyard sim chain` prints: levels by scaler, answers by kind, gaps, and a picture."""

from typing import Any

from steelyard.config import to_plain
from steelyard.cost.energy import J_PER_KWH
from steelyard.operate.power import AnswerChain, ChainRun
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text

__all__ = ["page", "values"]

_HEADS = (
    "server-hours",
    "starts",
    "first token p99, s",
    "row, kWh",
    "idle and starting",
    "PUE",
    "grid, kWh",
    "water, l",
    "carbon, kg",
    "USD",
)
_RANKS = (1, 1, 0, 0, 1, 0, 0, 2, 0, 1)
_KINDS = (
    "answers",
    "row p50, kJ",
    "row p90, kJ",
    "grid, kJ an answer",
    "grid, J a token",
    "g an answer",
    "kg",
)
_MOST_ANSWERED = 0.95


def page(answer: AnswerChain, drawn: dict[str, Any] | None) -> Report:
    """Make the page.

    Args:
        answer: the chain under each scaler.
        drawn: picture of the first day, None for none.

    Returns:
        The report.
    """
    shown = answer.runs.get("forecast") or list(answer.runs.values())[-1]
    sections = [
        Section("From requests to carbon", [_levels(answer), Text(_reading(answer, shown))]),
        Section(f"Answers under {shown.name!r}", [_kinds(shown), *_unanswered(shown, answer)]),
    ]
    if drawn is not None:
        sections.append(Section("The first day", [Chart(drawn)]))
    asked = answer.scenario
    return Report(
        f"Row of {asked.servers} servers at {asked.datacenter}",
        f"{asked.days:g} days from day {asked.start_day}; {answer.source}; simulated",
        sections,
    )


def _levels(answer: AnswerChain) -> Table:
    """List every scaler, level by level."""
    rows: list[list[Cell]] = []
    for run in answer.runs.values():
        found = run.figures()
        number = {name: float(value) for name, value in found.items() if name != "scaler"}
        rows.append(
            [
                run.name,
                f"{number['server_hours'] + number['starting_hours']:,.1f}",
                f"{number['starts']:,.0f}",
                f"{number['first_token_p99_s']:,.1f}",
                f"{number['row_j'] / J_PER_KWH:,.1f}",
                f"{(number['idle_j'] + number['starting_j']) / number['row_j']:.1%}",
                f"{number['pue']:.3f}",
                f"{number['grid_j'] / J_PER_KWH:,.1f}",
                f"{number['water_l']:,.0f}",
                f"{number['carbon_g'] / 1e3:,.1f}",
                f"{number['usd']:,.2f}",
            ]
        )
    heads = [
        Column(words, align="right", rank=rank) for words, rank in zip(_HEADS, _RANKS, strict=True)
    ]
    return Table([Column("scaler"), *heads], rows)


def _reading(answer: AnswerChain, shown: ChainRun) -> str:
    """Say how the table is read, and how well its levels add up."""
    gap = max(max(run.gaps().values()) for run in answer.runs.values())
    return (
        f"All figures are those of one row; the site holds {shown.rows} of them under "
        f"{shown.name!r}. Servers that start draw as much as idle ones, servers that are off "
        "nothing. Requests, quarters of an hour, racks, cooling, grid and carbon add up level by "
        f"level: the largest gap is {gap:.0e}."
    )


def _kinds(run: ChainRun) -> Table:
    """List what the answers of each kind took."""
    rows: list[list[Cell]] = [
        [
            item.kind,
            f"{item.finished:,}",
            f"{item.row_j_p50 / 1e3:,.1f}",
            f"{item.row_j_p90 / 1e3:,.1f}",
            f"{item.j_per_answer / 1e3:,.1f}",
            f"{item.j_per_token:,.0f}",
            f"{item.g_per_answer:,.2f}",
            f"{item.carbon_g / 1e3:,.1f}",
        ]
        for item in run.kinds
    ]
    note = (
        "energy of a prompt is its request's own, that of tokens is shared by the requests that a "
        "server works on; the grid's counts cooling, and a share of servers that idle and start"
    )
    heads = [Column(words, align="right") for words in _KINDS]
    return Table([Column("kind"), *heads], rows, caption=note)


def _unanswered(run: ChainRun, answer: AnswerChain) -> list[Text]:
    """Say that more came than the servers can do; nothing where most was answered."""
    came = len(run.scaled.plant.requests.arrival_s)
    answered = sum(item.finished for item in run.kinds)
    # What is under way at the end of a row that keeps up is far less.
    if answered >= _MOST_ANSWERED * came:
        return []
    return [
        Text(
            f"Only {answered:,} of {came:,} requests were answered in this time: they come faster "
            f"than {answer.scenario.servers} servers can work. Give more --servers, a --trace at a "
            "lower rate, or a smaller model."
        )
    ]


def values(answer: AnswerChain) -> dict[str, Any]:
    """Return all figures, for programs.

    Args:
        answer: the chain under each scaler.

    Returns:
        Plain values by name.
    """
    return {
        "scenario": to_plain(answer.scenario),
        "source": answer.source,
        "scalers": [
            {
                **run.figures(),
                "rows_at_site": run.rows,
                "gaps": run.gaps(),
                "kinds": [_kind(item) for item in run.kinds],
            }
            for run in answer.runs.values()
        ],
        "provenance": "simulated",
    }


def _kind(item: Any) -> dict[str, Any]:
    """Return one kind's account, plain."""
    return {
        "kind": item.kind,
        "requests": item.requests,
        "finished": item.finished,
        "output_tokens": item.output_tokens,
        "row_j": item.row_j,
        "row_j_p50": item.row_j_p50,
        "row_j_p90": item.row_j_p90,
        "grid_j": item.grid_j,
        "carbon_g": item.carbon_g,
        "usd": item.usd,
        "carbon_g_by_hour": item.carbon_g_by_hour.tolist(),
    }
