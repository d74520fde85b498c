"""A budget in compute, money or time, and the largest training plan that it pays for."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.types import Plan
from steelyard.units import parse, pretty

__all__ = ["Budget", "plan_within", "read_budget"]

_FIRST_FLOPS = 1e19
_LEAST_FLOPS = 1e9
_CLOSE = 0.98
"""A plan that spends this share of the budget is taken as spending all of it."""
_TRIALS = 60


@dataclass(frozen=True, slots=True)
class Budget:
    """What a training run may use.

    Attributes:
        amount: compute, money or time.
        unit: "FLOP", "USD" or "s", the unit of the amount.
    """

    amount: float
    unit: Literal["FLOP", "USD", "s"]

    def __str__(self) -> str:
        """Return the amount as people write it."""
        return pretty(self.amount, self.unit)


def read_budget(text: str, *, where: str = "budget") -> Budget:
    """Read a budget such as "1e22 FLOP", "$5,000" or "3 days".

    Args:
        text: number with a unit of compute, money or time.
        where: name of the option or field, for errors.

    Returns:
        The budget in FLOP, US dollars or seconds.

    Raises:
        ConfigError: the text is no positive amount of these.
    """
    units: tuple[Literal["FLOP", "USD", "s"], ...] = ("FLOP", "USD", "s")
    for unit in units:
        try:
            amount = parse(text, unit)
        except ConfigError:
            continue
        if amount > 0 and math.isfinite(amount) and not _is_bare(text):
            return Budget(amount, unit)
    raise ConfigError(
        f"{where}: {text!r} is not an amount of compute, money or time above 0",
        hint="write such as '1e22 FLOP', '$5,000' or '3 days'",
    )


def _is_bare(text: str) -> bool:
    """Return whether a text is a number without a unit, which could mean any of the three."""
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


def plan_within(budget: Budget, plan: Callable[[float], Plan]) -> Plan:
    """Return the plan of most compute whose forecast stays within a budget.

    Money and time grow with compute, by jumps where another layout or another number of
    accelerators becomes the best: the compute is bracketed and the bracket halved in its logarithm.

    Args:
        budget: what may be used.
        plan: makes the plan of a training compute in FLOP.

    Returns:
        The plan; it spends 98 % of the budget or more, unless a jump lies in between.

    Raises:
        ConfigError: no price is known of a budget of money.
        InfeasibleError: no plan was found within the budget.
    """
    if budget.unit == "FLOP":
        return plan(budget.amount)
    least = 0.0
    most = math.inf
    flops = _FIRST_FLOPS
    best: Plan | None = None
    refusal: InfeasibleError | None = None
    first: InfeasibleError | None = None
    for _ in range(_TRIALS):
        try:
            made = plan(flops)
            spent = _spent(made, budget) / budget.amount
        except InfeasibleError as error:
            # Too little for a model with its vocabulary, or more than the machines hold or the
            # deadline allows: then less compute may still do.
            refusal, first = error, first or error
            spent = 0.0 if str(error).startswith("budget") else math.inf
        else:
            if spent <= 1 and flops > least:
                best = made
        least, most = (flops, most) if spent <= 1 else (least, flops)
        if (_CLOSE <= spent <= 1) or most < least * 1.002 or flops < _LEAST_FLOPS:
            break
        flops = _next(flops, spent, least, most)
    if best is None:
        # Where no compute is possible, the least one that was tried says nothing.
        raise first or InfeasibleError(
            f"budget: {budget} pays for no training run on these machines",
            hint="raise the budget or choose other machines",
        )
    spent = _spent(best, budget)
    if refusal is None or spent >= _CLOSE * budget.amount:
        return best
    note = f"{pretty(spent, budget.unit)} of {budget} are used: more compute fails on {refusal}"
    return replace(best, notes=[note, *best.notes])


def _spent(made: Plan, budget: Budget) -> float:
    """Return what a plan is forecast to use of a budget's money or time."""
    return made.forecast("run.cost").value if budget.unit == "USD" else made.duration_s


def _next(flops: float, spent: float, least: float, most: float) -> float:
    """Return the compute to try next: in proportion, or the middle where that left the bracket."""
    guess = flops * 0.99 / spent if 0 < spent < math.inf else flops * (100 if not spent else 0.01)
    if least < guess < most:
        return guess
    return math.sqrt(least * most) if least and most < math.inf else flops / 10
