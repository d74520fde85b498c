"""The best use of a budget under several forms at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.allocate import Allocation, allocate, follow_recipe
from steelyard.laws.decisions.cost_law import SIX_N_D, CostLaw
from steelyard.laws.decisions.forecasting.forecast import Ensemble
from steelyard.laws.decisions.training_budget import Limits, TrainingBudget, best_log_sizes
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, tails
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array

__all__ = ["FormOptimum", "JointAllocation", "allocate_together"]

_AXES = ("parameters", "tokens")
_GRID = 129
_ROUNDS = 4
_EDGE_STEPS = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class FormOptimum:
    """What one form alone holds best.

    Attributes:
        name: the form.
        weight: its weight among the forms that trade size against data; they sum to 1.
        parameters: its best size, mean of both weightings of the runs.
        tokens: the tokens that go with it.
    """

    name: str
    weight: float
    parameters: float
    tokens: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JointAllocation:
    """The best use of a budget under several forms.

    Attributes:
        allocation: size, tokens and loss; intervals span the forms.
        forms: what each form alone holds best, heaviest first.
        left_out: forms with a weight that do not trade size against data, such as a plane in the
            logs.
    """

    allocation: Allocation
    forms: tuple[FormOptimum, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _Trade:
    """An entrant that trades size against data: its number, weight and best log size."""

    index: int
    name: str
    weight: float
    log_size: float


def allocate_together(
    found: Ensemble,
    flops: float,
    *,
    limits: Limits | None = None,
    recipe: Mapping[str, Fit] | None = None,
    cost: CostLaw = SIX_N_D,
    level: float = 0.8,
    bootstrap: Bootstrap = Bootstrap(),
    extrapolate: bool = False,
    source: str = "several forms",
) -> JointAllocation:
    """Split a budget between model size and tokens as several forms together advise.

    The best size is where the weighted mean of the forms is least; forms without a best size take
    no part. Its interval holds the weighted quantiles of the forms' own best sizes and the
    bootstrap interval of the heaviest form, so that it is never narrower than either.

    Args:
        found: forms fitted to runs over parameters and tokens, with their weights.
        flops: budget in FLOP, positive.
        limits: limits on size and tokens; None for none.
        recipe: laws by the name of what they predict; see `allocate`.
        cost: what training costs.
        level: probability inside the intervals, 0..1.
        bootstrap: how the heaviest form is resampled.
        extrapolate: allow a run more than two decades beyond the points.
        source: where the runs come from.

    Returns:
        The allocation, and what each form alone holds best.

    Raises:
        FitError: the runs have other axes, no form trades size against data, or every form that
            does is refused by `allocate`.
    """
    if {*_AXES} != {*found.rolling.inputs}:
        raise FitError(
            f"an allocation needs runs over parameters and tokens, given "
            f"{', '.join(found.rolling.inputs)}",
            hint="add runs of other sizes and other token counts",
        )
    budget = TrainingBudget(flops, cost, limits or Limits())
    trades = _trades(found, budget)
    own = _first_allowed(
        found,
        trades,
        bootstrap,
        lambda fitted: allocate(
            fitted, flops, limits=limits, cost=cost, level=level, extrapolate=extrapolate
        ),
    )
    parameters, tokens = _split(found, trades, own, budget)
    run = {"parameters": np.array([parameters.value]), "tokens": np.array([tokens.value])}
    said = found.predict(run, level)
    unique = budget.limits.unique_tokens
    epochs = Estimate(*(end / unique for end in (tokens.value, tokens.low, tokens.high)))
    allocation = replace(
        own,
        training_flops=float(cost.flops(parameters.value, tokens.value)),
        parameters=parameters,
        tokens=tokens,
        epochs=epochs if np.isfinite(unique) else None,
        loss=said.prediction.first,
        recipe=follow_recipe(recipe or {}, run, level, extrapolate),
        binding=budget.binding(parameters.value, tokens.value),
        distance=float(said.reach[0]),
        source=source,
    )
    return JointAllocation(
        allocation=allocation, forms=_forms(trades, budget), left_out=_left_out(found, trades)
    )


def _split(
    found: Ensemble, trades: list[_Trade], own: Allocation, budget: TrainingBudget
) -> tuple[Estimate, Estimate]:
    """Return the best size and its tokens under all forms, with ends that hold every interval."""
    best = _least(_mean_loss(found, trades, budget), *budget.log_range)
    size, low, high = np.exp([best, *_ends(trades, own.level)])
    parameters = _joined(float(size), (float(low), float(high)), own.parameters)
    # The larger the model, the fewer its tokens.
    sizes = np.array([parameters.value, parameters.high, parameters.low])
    fed, least, most = budget.tokens(sizes).tolist()
    return parameters, _joined(fed, (least, most), own.tokens)


def _trades(found: Ensemble, budget: TrainingBudget) -> list[_Trade]:
    """List the entrants whose loss has a least value inside every size the budget buys."""
    free = TrainingBudget(budget.flops, budget.cost, Limits())
    low, high = free.log_range
    rows: list[_Trade] = []
    for index, (item, theta) in enumerate(
        zip(found.rolling.entrants, found.rolling.theta[-1], strict=True)
    ):
        weight = float(found.stacked.weights[index])
        if item.law is None or not len(theta) or not weight or {*item.law.inputs} != {*_AXES}:
            continue
        alone = float(best_log_sizes(item.law, theta[None], free)[0])
        if low + _EDGE_STEPS < alone < high - _EDGE_STEPS:
            size = float(best_log_sizes(item.law, theta[None], budget)[0])
            rows.append(_Trade(index, item.name, weight, size))
    if not rows:
        raise FitError(
            "none of the forms that describe these runs trades size against data",
            hint="add runs of one budget with other splits, or name forms with --law",
        )
    total = sum(row.weight for row in rows)
    return [_Trade(row.index, row.name, row.weight / total, row.log_size) for row in rows]


def _weights(trades: list[_Trade]) -> dict[str, float]:
    """Return the weight of each form, both weightings together, heaviest first."""
    total: dict[str, float] = {}
    for row in trades:
        total[row.name] = total.get(row.name, 0.0) + row.weight
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def _first_allowed(
    found: Ensemble,
    trades: list[_Trade],
    bootstrap: Bootstrap,
    ask: Callable[[Fit], Allocation],
) -> Allocation:
    """Allocate by the heaviest form that is not refused."""
    laws = {item.name: item.law for item in found.rolling.entrants if item.law is not None}
    refused: list[FitError] = []
    for name in _weights(trades):
        try:
            return ask(
                fit(laws[name], found.rolling.inputs, found.rolling.target, bootstrap=bootstrap)
            )
        except FitError as error:
            refused.append(error)
    raise refused[0]


def _mean_loss(
    found: Ensemble, trades: list[_Trade], budget: TrainingBudget
) -> Callable[[Array], Array]:
    """Return the forms' weighted mean of the log loss over log sizes."""
    share = np.array([row.weight for row in trades])
    rows = [row.index for row in trades]

    def loss(log_sizes: Array) -> Array:
        sizes = np.exp(log_sizes)
        said = found.rolling.ask({"parameters": sizes, "tokens": budget.tokens(sizes)})
        return share @ said[rows]

    return loss


def _least(loss: Callable[[Array], Array], low: float, high: float) -> float:
    """Find where a function is least by grids that narrow around their lowest value."""
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, _GRID)
        at = int(loss(grid).argmin())
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, _GRID - 1)])
    return (low + high) / 2


def _ends(trades: list[_Trade], level: float) -> tuple[float, float]:
    """Return the weighted quantiles of the forms' best log sizes."""
    order = sorted(trades, key=lambda row: row.log_size)
    reached = np.cumsum([row.weight for row in order])
    low, high = tails(level)
    last = len(order) - 1
    return (
        order[min(int(np.searchsorted(reached, low)), last)].log_size,
        order[min(int(np.searchsorted(reached, high)), last)].log_size,
    )


def _joined(value: float, ends: tuple[float, float], own: Estimate) -> Estimate:
    """Join the forms' ends and the heaviest form's interval around a value."""
    return Estimate(value, min(value, *ends, own.low), max(value, *ends, own.high))


def _forms(trades: list[_Trade], budget: TrainingBudget) -> tuple[FormOptimum, ...]:
    """Return each form's own optimum, heaviest first."""
    shown: list[FormOptimum] = []
    for name, weight in _weights(trades).items():
        own = [row for row in trades if row.name == name]
        size = np.exp(sum(row.weight * row.log_size for row in own) / weight)
        tokens = float(budget.tokens(np.array([size]))[0])
        shown.append(FormOptimum(name=name, weight=weight, parameters=float(size), tokens=tokens))
    return tuple(shown)


def _left_out(found: Ensemble, trades: list[_Trade]) -> tuple[str, ...]:
    """Name the forms that have a weight in the forecast and no best size."""
    known = {row.name for row in trades}
    pairs = zip(found.rolling.entrants, found.stacked.weights, strict=True)
    return tuple(
        dict.fromkeys(item.name for item, weight in pairs if weight and item.name not in known)
    )
