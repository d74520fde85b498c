"""Pages of `steelyard plan tradeoff`: tables, advice and sentences."""

import math
from typing import TYPE_CHECKING

from steelyard.runs.report import Block, Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.plan.tradeoff.recommend import Advice, Recommendation
    from steelyard.plan.tradeoff.table import TradeoffPoint, TradeoffTable

__all__ = ["advice_page", "explained_page", "table_page"]

_SHOWN = 10
_ENDLESS = 1e15


def advice_page(advice: "Advice", model: str, machine: str) -> Report:
    """Make the page of advice: what reaches the goals, or what comes nearest."""
    goals = advice.goals
    asked = f"a context of {goals.context:,} tokens, at most {goals.accuracy_drop:.1%} lost"
    if math.isfinite(goals.ttft_s):
        asked += f", first token within {pretty(goals.ttft_s, 's')}"
    if math.isfinite(goals.tpot_s):
        asked += f", further ones within {pretty(goals.tpot_s, 's')}"
    sections = []
    if advice.is_feasible:
        rows = [_advised(item) for item in advice.ranked[:_SHOWN]]
        rest = len(advice.ranked) - len(rows)
        words = "Known accuracy first, then the rate. " + (f"{rest} more." if rest > 0 else "")
        sections.append(Section("Reach the goals", [Table(_columns(), rows), Text(words.strip())]))
    else:
        rows = [_advised(item) for item in advice.nearest]
        words = [f"Nothing reaches {asked}."]
        words += [f"Without the goal on {goal}: {best}." for goal, best in advice.relax.items()]
        if not advice.relax:
            words.append("No single goal stands in the way alone: relax two.")
        sections.append(Section("Nearest", [Text(" ".join(words)), Table(_columns(), rows)]))
    return Report(f"{model} on {machine}", asked, sections)


def table_page(table: "TradeoffTable") -> Report:
    """Make the page of a measurement, with its picture."""
    from steelyard.plan.tradeoff.picture import tradeoff_chart

    heads = ("context", "fits", "right", "loss", "token/s", "ttft", "tpot")
    columns = [
        Column("configuration"),
        Column("better in"),
        *(Column(words, align="right") for words in heads),
    ]
    rows = [_point(item) for item in table.points]
    plan = table.measured.plan
    words = [
        f"{len(plan.seeds)} seeds, {plan.rounds} rounds, {pretty(plan.memory_bytes, 'byte')} for "
        f"weights, keys and values of each. A length counts as recalled from "
        f"{table.threshold:.0%} right answers. Two measurements of the baseline's rate differ by "
        f"up to {table.noise:.1%}. + and - lie outside the noise band, 0 within."
    ]
    front = ", ".join(item.configuration.name for item in table.front())
    words.append(f"Beaten by none in context, answers and rate at once: {front}.")
    for item in table.violations():
        words.append(f"{item.configuration.name} by itself is better in all three goals.")
    blocks = [Table(columns, rows), Text(" ".join(words)), Chart(tradeoff_chart(table))]
    return Report(
        f"{table.measured.model.name} in {len(rows)} configurations",
        "context, accuracy and performance at equal memory; measured",
        [Section("Configurations", blocks)],
    )


def explained_page(name: str, base: str, said: list[str]) -> Report:
    """Make the page of sentences."""
    blocks: list[Block] = [Text(sentence) for sentence in said]
    return Report(f"{name} against {base}", "measured", [Section("", blocks)])


def _columns() -> list[Column]:
    """Return the heads of advice."""
    heads = ("context", "ttft", "tpot", "users", "token/s", "lost")
    return [Column("configuration"), *(Column(words, align="right") for words in heads)]


def _advised(item: "Recommendation") -> list[Cell]:
    """List one configuration that is advised."""
    made = item.predicted
    lost = item.accuracy_source
    if item.accuracy_drop is not None:
        lost = f"{100 * item.accuracy_drop:.1f} points ({item.accuracy_source})"
    return [
        item.configuration.name,
        _tokens(made.context_tokens),
        pretty(made.ttft_s, "s"),
        pretty(made.tpot_s, "s"),
        str(made.sequences or ""),
        f"{made.tokens_per_s:,.0f}",
        lost,
    ]


def _point(item: "TradeoffPoint") -> list[Cell]:
    """List one measured configuration."""
    from steelyard.plan.tradeoff.explain import move_words

    move = item.move
    signs = [
        move_words(change) for change in (move.context, move.recall, move.loss, move.performance)
    ]
    return [
        item.configuration.name,
        move.type or "nothing",
        f"{_tokens(item.context_tokens)} {signs[0]}",
        _tokens(item.fits_tokens),
        f"{item.recall:.1%} {signs[1]}",
        f"{item.loss:.3f} {signs[2]}",
        f"{item.tokens_per_s:,.0f} {signs[3]}",
        pretty(item.ttft_s, "s"),
        pretty(item.tpot_s, "s"),
    ]


def _tokens(count: float) -> str:
    """Write a number of tokens."""
    return "any" if count > _ENDLESS else f"{count:,.0f}"
