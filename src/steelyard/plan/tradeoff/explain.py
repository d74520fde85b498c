"""Says in sentences how two configurations differ; each number stands in the table."""

import math

from steelyard.plan.tradeoff.table import GoalChange, TradeoffPoint, TradeoffTable
from steelyard.units import pretty

__all__ = ["explain", "move_words"]

_TYPES = {
    "": "better in none of the three goals",
    "C": "better in context alone",
    "A": "better in accuracy alone",
    "P": "better in performance alone",
    "CA": "better in context and accuracy",
    "CP": "better in context and performance",
    "AP": "better in accuracy and performance",
    "CAP": "better in all three goals",
}


def explain(table: TradeoffTable, name: str, base: str) -> list[str]:
    """Return sentences on what one configuration gains and loses against another.

    Args:
        table: the measurement.
        name: the configuration.
        base: what it is compared with.

    Returns:
        One sentence per goal, then the verdict, and the trap where loss hides lost recall.

    Raises:
        ConfigError: one of them was not measured.
    """
    one, other = table.point(name), table.point(base)
    move = table.move(name, base)
    found = [
        _ratio("Context", one.context_tokens, other.context_tokens, move.context, "token"),
        _difference(one, other, move.recall),
        _loss(one, other, move.loss),
        _ratio("Performance", one.tokens_per_s, other.tokens_per_s, move.performance, "token/s"),
    ]
    letters = move.type
    worse = [
        goal
        for goal, sign in zip(("context", "accuracy", "performance"), move.signs, strict=True)
        if sign < 0
    ]
    price = f", and pays with {' and '.join(worse)}" if worse else ""
    found.append(f"{name} is {_TYPES[letters]} than {base}{price}.")
    if move.recall.sign < 0 and move.loss.sign >= 0:
        found.append(
            f"The loss on text does not show it: it is no worse than that of {base}, while "
            f"{100 * (other.recall - one.recall):.0f} of 100 answers are lost."
        )
    return found


def move_words(change: GoalChange) -> str:
    """Return "+", "-" or "0" of a change."""
    return {1: "+", -1: "-", 0: "0"}[change.sign]


def _verdict(change: GoalChange) -> str:
    """Say whether a change lies outside the noise."""
    return "outside the noise band" if change.sign else "within the noise band"


def _ratio(goal: str, value: float, base: float, change: GoalChange, unit: str) -> str:
    """Say how a ratio changed; it is that of the means, the band that of paired repeats."""
    factor = math.exp(change.value)
    low, high = math.exp(change.value - change.band), math.exp(change.value + change.band)
    return (
        f"{goal}: {pretty(value, unit)} against {pretty(base, unit)}, {factor:.2f} times "
        f"[{low:.2f}, {high:.2f}], {_verdict(change)}."
    )


def _difference(one: TradeoffPoint, other: TradeoffPoint, change: GoalChange) -> str:
    """Say how recall changed."""
    return (
        f"Accuracy: {one.recall:.1%} of the answers are right against {other.recall:.1%}, "
        f"{100 * change.value:+.1f} points (band {100 * change.band:.1f}), {_verdict(change)}."
    )


def _loss(one: TradeoffPoint, other: TradeoffPoint, change: GoalChange) -> str:
    """Say how the loss on text changed."""
    return (
        f"Loss on text: {one.loss:.3f} nats per token against {other.loss:.3f}, "
        f"{-change.value:+.3f} (band {change.band:.3f}), {_verdict(change)}."
    )
