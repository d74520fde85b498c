"""What a controller did and what it cost, beside an oracle and the best fixed choice."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from steelyard.sim.control.shapes import Command, Outcome

__all__ = ["ControlReport", "Landing", "with_regret"]

_REVERSAL_S = 1800.0


@dataclass(frozen=True, slots=True)
class Landing:
    """A command that took effect.

    Attributes:
        time_s: when it did.
        command: the command.
    """

    time_s: float
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReport:
    """One controller on one plant, replayed or driven.

    Attributes:
        name: name of the controller.
        outcome: cost and violations.
        landed: commands that took effect, in their order.
        num_sent: commands that were sent.
        num_superseded: sent commands that a later one took the place of.
        num_failed: sent commands that never landed.
        duration_s: seconds from the first to the last moment.
        thrash: changes of a setting that took back the direction of the one before within half an
            hour.
        oracle_regret: loss above that of the oracle; None where none was given.
        fixed_regret: loss above that of the best fixed choice, negative where it was beaten; None
            where none was given.
        fixed_name: name of the best fixed choice.
    """

    name: str
    outcome: Outcome
    landed: tuple[Landing, ...] = ()
    num_sent: int = 0
    num_superseded: int = 0
    num_failed: int = 0
    duration_s: float = 0.0
    oracle_regret: float | None = None
    fixed_regret: float | None = None
    fixed_name: str = ""

    @property
    def thrash(self) -> int:
        """Changes that took back the one before within half an hour, over all targets."""
        return sum(_reversals(items) for items in _by_target(self.landed).values())

    def row(self) -> dict[str, Any]:
        """Return the figures by name, for tables and JSON."""
        return {
            "controller": self.name,
            "cost": self.outcome.cost,
            "penalty": self.outcome.penalty,
            "violation_rate": self.outcome.violation_rate,
            "violated": self.outcome.violated,
            "checked": self.outcome.checked,
            "thrash": self.thrash,
            "num_sent": self.num_sent,
            "num_landed": len(self.landed),
            "num_superseded": self.num_superseded,
            "num_failed": self.num_failed,
            "oracle_regret": self.oracle_regret,
            "fixed_regret": self.fixed_regret,
            "fixed_name": self.fixed_name,
            **self.outcome.details,
        }


def _by_target(landed: Sequence[Landing]) -> dict[str, list[Landing]]:
    """Group landings by what they set."""
    found: dict[str, list[Landing]] = defaultdict(list)
    for item in landed:
        found[item.command.target].append(item)
    return found


def _reversals(landed: Sequence[Landing]) -> int:
    """Count changes of one setting that take back the one before within half an hour."""
    count, last_s, last_step = 0, 0.0, 0.0
    for before, after in pairwise(landed):
        step = after.command.value - before.command.value
        if not step:
            continue
        if step * last_step < 0 and after.time_s - last_s <= _REVERSAL_S:
            count += 1
        last_s, last_step = after.time_s, step
    return count


def with_regret(
    reports: Sequence[ControlReport],
    *,
    oracle: ControlReport | None = None,
    fixed: Sequence[ControlReport] = (),
) -> list[ControlReport]:
    """Put regrets into reports of one plant, with the same trace and seed.

    Args:
        reports: the controllers.
        oracle: a controller that knew the future; None leaves its regret out.
        fixed: settings that never change; the one of least loss is the best fixed choice.

    Returns:
        The reports, in their order. Loss is cost and penalty.
    """
    best = min(fixed, key=lambda item: item.outcome.loss, default=None)
    return [
        replace(
            item,
            oracle_regret=item.outcome.loss - oracle.outcome.loss if oracle else None,
            fixed_regret=item.outcome.loss - best.outcome.loss if best else None,
            fixed_name=best.name if best else "",
        )
        for item in reports
    ]
