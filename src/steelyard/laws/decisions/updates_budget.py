"""The updates-to-data ratio that reaches a return for the least compute and data."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.updates.updates_to_data import UpdatesLaw

__all__ = ["BestUpdates", "BudgetLaw", "best_updates_to_data", "budget_law"]

_GRID = 2001


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetLaw:
    """Best UTD = coefficient x budget^exponent, from the best ratio of every threshold.

    Attributes:
        delta: FLOP that one environment step is worth.
        thresholds: returns, [J].
        budgets: least F = compute + delta x data per threshold, FLOP, [J].
        utds: updates-to-data ratio at that least budget, [J].
        exponent: exponent of the budget; its sign differs between suites.
        log_coefficient: natural log; ill-conditioned, compare ratios instead.
        num_fitted: lower thresholds the line goes through; the others are extrapolated.
        at_edge: thresholds whose best ratio is the lowest or highest tested one.
    """

    delta: float
    thresholds: Array
    budgets: Array
    utds: Array
    exponent: Estimate
    log_coefficient: float
    num_fitted: int
    at_edge: tuple[float, ...]

    def utd(self, budget: float) -> float:
        """Return the line's ratio for a budget, FLOP."""
        return float(np.exp(self.log_coefficient + self.exponent.value * np.log(budget)))


def budget_law(
    law: UpdatesLaw, delta: float, *, num_extrapolated: int = 2, level: float = 0.8
) -> BudgetLaw:
    """Find the UTD of least compute + delta x data per threshold, and fit it to the budget.

    Args:
        law: law of data and compute.
        delta: FLOP that one environment step is worth, such as 1e10 (DeepMind Control) or 4e9 (Gym)
            in the paper; not negative.
        num_extrapolated: highest thresholds left out of the line, whose ratios it forecasts.
        level: probability inside the exponent's interval, 0..1.

    Returns:
        The line with the points behind it.

    Raises:
        FitError: delta is negative, or fewer than two thresholds remain.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), section 5, equation 6.
    """
    count = len(law.thresholds) - num_extrapolated
    if count < 2 or num_extrapolated < 0 or not delta >= 0:
        raise FitError(
            f"{count} thresholds and delta {delta:g}: a budget law needs two thresholds at least "
            f"and delta >= 0"
        )
    # A fine grid over the tested ratios is exact enough (neighbours differ by less than .4 %) and
    # never leaves the range in which the law was fitted, as a free minimizer would.
    ratios = np.geomspace(law.utds[0], law.utds[-1], _GRID)
    price = law.flops_per_step(ratios) + delta
    least = [_least(law.steps(threshold, ratios) * price, ratios) for threshold in law.thresholds]
    size = min(len(budgets) for budgets, _ in least)
    budgets, utds = (np.stack([pair[index][:size] for pair in least], axis=1) for index in range(2))
    logs = np.log(budgets[:, :count]), np.log(utds[:, :count])
    lines = np.array([np.polyfit(*pair, 1) for pair in zip(*logs, strict=True)])
    on_edge = (utds[0] <= ratios[0] * 1.0001) | (utds[0] >= ratios[-1] / 1.0001)
    return BudgetLaw(
        delta=delta,
        thresholds=law.thresholds,
        budgets=budgets[0],
        utds=utds[0],
        exponent=Estimate.over(lines[:, 0], level),
        log_coefficient=float(lines[0, 1]),
        num_fitted=count,
        at_edge=tuple(law.thresholds[on_edge].tolist()),
    )


def _least(budgets: Array, ratios: Array) -> tuple[Array, Array]:
    """Return the least budget and its ratio for each resampling, [1 + B]."""
    at = budgets.argmin(axis=1)
    return budgets[np.arange(len(at)), at], ratios[at]


@dataclass(frozen=True, kw_only=True, slots=True)
class BestUpdates:
    """How to spend a budget.

    Attributes:
        utd: best ratio, within the tested ones.
        threshold: highest return the budget reaches; the highest fitted one when it reaches
            further.
        data: environment steps to that return.
        flops: training FLOP to that return.
        is_extrapolated: whether the budget exceeds that of the highest fitted return.
    """

    utd: float
    threshold: float
    data: float
    flops: float
    is_extrapolated: bool


def best_updates_to_data(law: UpdatesLaw, budget: float, delta: float) -> BestUpdates:
    """Choose the UTD for a total budget of compute and data.

    The ratio is that of the budget law fitted to all thresholds; the return is the highest whose
    cost at that ratio fits.

    Args:
        law: law of data and compute.
        budget: F = compute + delta x data, FLOP.
        delta: FLOP that one environment step is worth.

    Returns:
        The ratio and what it reaches.

    Raises:
        FitError: the budget does not reach the lowest threshold; the least budget is named.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), section 5.
    """
    line = budget_law(law, delta, num_extrapolated=0)
    if not budget >= line.budgets[0]:
        raise FitError(
            f"a budget of {budget:.4g} FLOP does not reach return {law.thresholds[0]:g}, which "
            f"takes {line.budgets[0]:.4g}",
            hint="raise the budget, or fit lower thresholds",
        )
    utd = float(np.clip(line.utd(budget), law.utds[0], law.utds[-1]))
    returns = np.linspace(law.thresholds[0], law.thresholds[-1], 400)
    steps = np.array([law.steps(value, np.array([utd]))[0, 0] for value in returns])
    price = float(law.flops_per_step(np.array([utd]))[0])
    reached = np.flatnonzero(steps * (price + delta) <= budget)
    best = int(reached[-1]) if len(reached) else 0
    return BestUpdates(
        utd=utd,
        threshold=float(returns[best]),
        data=float(steps[best]),
        flops=float(steps[best] * price),
        is_extrapolated=bool(budget > line.budgets[-1]),
    )
