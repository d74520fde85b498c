"""Recomputes every number of the sentences from the cells, by other means than the package's."""

import re
import statistics

from steelyard.plan.tradeoff.explain import explain
from steelyard.plan.tradeoff.table import TradeoffTable

__all__ = ["wrong_sentences"]


def wrong_sentences(table: TradeoffTable) -> tuple[float, float]:
    """Return how many numbers differ from their recomputation, and the bar, 0."""
    base = table.points[0].configuration.name
    wrong = seen = 0
    for item in table.points[1:]:
        name = item.configuration.name
        said = explain(table, name, base)
        pairs = [
            *_pair(
                said[1],
                r"([\d.]+)% of the answers are right against ([\d.]+)%",
                100 * _recall(table, name),
                100 * _recall(table, base),
            ),
            *_pair(
                said[2],
                r"([\d.]+) nats per token against ([\d.]+)",
                _loss(table, name),
                _loss(table, base),
            ),
            *_pair(
                said[1],
                r", ([+-][\d.]+) points",
                100 * (_recall(table, name) - _recall(table, base)),
            ),
            *_pair(said[2], r", ([+-][\d.]+) \(band", _loss(table, name) - _loss(table, base)),
        ]
        wrong += sum(not is_equal for is_equal in pairs)
        seen += len(pairs)
    print(f"{seen} numbers of sentences recomputed, {wrong} differ")
    return float(wrong), 0.0


def _pair(text: str, pattern: str, *wanted: float) -> list[bool]:
    """Return whether each number in a sentence is the wanted one, to its last printed digit."""
    found = re.search(pattern, text)
    if not found:
        return [False] * len(wanted)
    said = found.groups()
    return [
        abs(float(one) - value) <= 0.51 * 10 ** -len(one.partition(".")[2])
        for one, value in zip(said, wanted, strict=True)
    ]


def _recall(table: TradeoffTable, name: str) -> float:
    """Return the mean share of right answers over seeds, tasks and reference lengths."""
    plan = table.measured.plan
    return statistics.fmean(
        at
        for cell in table.measured.quality
        if cell.configuration == name
        for column in cell.accuracy.values()
        for length, at in zip(plan.lengths, column, strict=True)
        if length in plan.reference
    )


def _loss(table: TradeoffTable, name: str) -> float:
    """Return the mean loss over seeds and reference lengths."""
    plan = table.measured.plan
    return statistics.fmean(
        at
        for cell in table.measured.quality
        if cell.configuration == name
        for length, at in zip(plan.lengths, cell.loss, strict=True)
        if length in plan.reference
    )
