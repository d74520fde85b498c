"""The best model size, token count and epochs for a compute budget under a fitted law."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.cost_law import SIX_N_D, CostLaw
from steelyard.laws.decisions.fit_trouble import refuse_blind_allocation, residual_trouble
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.trouble import Trouble
from steelyard.quantity import Provenance

__all__ = ["Allocation", "Limits", "allocate", "optimal_log_parameters"]

_GOLDEN = (5**0.5 - 1) / 2
_LOG_RANGE = (0.0, 46.0)
"""Model sizes searched where no closed form is known: 1 to 1e20 parameters."""
_GRID = 257
_ITERATIONS = 44
_BISECTIONS = 60
_INFERENCE_FLOPS = 2.0
_EDGE = 1.1
"""Tokens per parameter a tenth beyond those of the points are still theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What bounds an allocation besides the budget; the defaults bound nothing.

    Attributes:
        max_parameters: largest model that may be trained, such as what fits the serving machine.
        max_tokens: most training tokens, repeats counted.
        unique_tokens: distinct training tokens at hand; laws of repetition say what more passes
            over them are worth.
        inference_tokens: tokens the model will serve; their 2 FLOP per parameter and token come out
            of the budget too.
    """

    max_parameters: float = np.inf
    max_tokens: float = np.inf
    unique_tokens: float = np.inf
    inference_tokens: float = 0.0

    def __post_init__(self) -> None:
        """Refuse limits that allow nothing."""
        if not (
            self.max_parameters > 0
            and self.max_tokens > 0
            and self.unique_tokens > 0
            and 0 <= self.inference_tokens < np.inf
        ):
            raise FitError(
                f"limits must be positive, inference tokens 0 or more and finite; given {self}",
                hint="leave out what is not bounded",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The best use of a budget.

    Attributes:
        flops: the budget, FLOP.
        training_flops: what training at the best size spends of it; the rest serves, or is left
            over where limits bind.
        parameters: best model size, counted as the fit's points were.
        tokens: training tokens, repeats counted.
        epochs: passes over the unique tokens, below 1 when not all are used; None when their number
            was not given.
        loss: predicted loss of that run.
        recipe: what the laws of the recipe say for that run, such as its batch and learning rate,
            in their units.
        binding: limits that hold the optimum back: "max_parameters", "max_tokens", both, or none.
        distance: how far it lies outside the fitted points, in factors of e; 0 inside, and for
            published laws.
        level: probability inside the intervals.
        provenance: provenance of the numbers, that of the fit.
        source: source of the fit.
        trouble: what makes the answer doubtful, in words; where the best tokens per parameter lie
            beyond those of the points, size and tokens reach to the nearest that was measured.
        cost: what training was taken to cost.
    """

    flops: float
    training_flops: float
    parameters: Estimate
    tokens: Estimate
    epochs: Estimate | None
    loss: Estimate
    recipe: dict[str, Estimate] = field(default_factory=dict)
    binding: tuple[str, ...] = ()
    distance: float
    level: float
    provenance: Provenance
    source: str
    trouble: tuple[Trouble, ...] = ()
    cost: CostLaw = SIX_N_D


@dataclass(frozen=True)
class _Budget:
    """A budget with its limits: which token count goes with a model size.

    Attributes:
        flops: total budget, FLOP.
        cost: training FLOP of size and tokens.
        limits: limits on size and tokens.
    """

    flops: float
    cost: CostLaw
    limits: Limits

    @property
    def log_range(self) -> tuple[float, float]:
        """Log sizes that spend the budget within the limits; equal ends leave a single size."""
        least = (
            self._largest(self.limits.max_tokens) if np.isfinite(self.limits.max_tokens) else 1.0
        )
        # At the largest size nothing would be left for tokens, so the range ends just below it.
        most = self._largest(0.0 if self.cost.is_product else 1.0)
        high = np.log(min(most * (1 - 1e-9), self.limits.max_parameters))
        return min(max(np.log(least), _LOG_RANGE[0]), high), min(high, _LOG_RANGE[1])

    def _largest(self, tokens: float) -> float:
        """Return the size at which so many tokens spend the budget."""
        served = _INFERENCE_FLOPS * self.limits.inference_tokens
        if self.cost.is_product:
            return self.flops / max(self.cost.k * tokens + served, self.cost.k if not tokens else 0)
        low, high = _LOG_RANGE
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            spent = self.cost.flops(np.exp(middle), tokens) + served * np.exp(middle)
            low, high = (middle, high) if spent < self.flops else (low, middle)
        return float(np.exp(low))

    def tokens(self, sizes: Array) -> Array:
        """Return the training tokens that are left at each size."""
        left = self.flops / sizes - _INFERENCE_FLOPS * self.limits.inference_tokens
        afforded = self.cost.tokens(sizes, np.maximum(left, 1e-300) * sizes)
        return np.minimum(afforded, self.limits.max_tokens)

    def runs(self, law: Law, sizes: Array) -> dict[str, Array]:
        """Return the law's inputs at each size."""
        inputs = {"parameters": sizes, "tokens": self.tokens(sizes)}
        if "unique_tokens" in law.inputs:
            inputs["unique_tokens"] = np.minimum(self.limits.unique_tokens, inputs["tokens"])
        return inputs


def allocate(
    fit: Fit,
    flops: float,
    *,
    limits: Limits | None = None,
    recipe: Mapping[str, Fit] | None = None,
    cost: CostLaw = SIX_N_D,
    level: float = 0.8,
    extrapolate: bool = False,
) -> Allocation:
    """Split a budget between model size and tokens.

    Args:
        fit: fit of a law with inputs "parameters" and "tokens", and "unique_tokens" for laws of
            repetition; fitted or published.
        flops: budget in FLOP, positive; of training, and of serving where `limits` has inference
            tokens.
        limits: limits on size and tokens; None for none.
        recipe: laws by the name of what they predict, such as {"batch": ..., "learning_rate": ...};
            each may use parameters, tokens, unique_tokens and what those before it predict.
        cost: what training costs, such as `CostLaw.fit(table)` where 6 FLOP per parameter and token
            are wrong.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the points.

    Returns:
        Size, tokens, epochs and loss with bootstrap intervals; intervals without width for
        published laws.

    Raises:
        FitError: the law has other inputs, the budget is not positive and finite, a law of the
            recipe needs what is not known, the run lies too far beyond the points, or the points do
            not tell what size and tokens are worth.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3; inference in the budget: Sardana
        et al. 2024 (arXiv 2401.00448).
    """
    limits = limits or Limits()
    _check(fit, flops, cost, limits)
    budget = _Budget(flops, cost, limits)
    sizes = np.exp(_best_log_sizes(fit.law, fit.thetas, budget))
    tokens = budget.tokens(sizes)
    best = budget.runs(fit.law, sizes[:1])
    said = fit.predict(best, level, extrapolate=extrapolate)
    binding = _binding(limits, float(sizes[0]), float(tokens[0]))
    parameters, fed = Estimate.over(sizes, level), Estimate.over(tokens, level)
    edges = () if binding else _at_edge(fit, parameters.value, fed.value)
    for edge in edges:
        parameters, fed = _widened(budget, parameters, fed, edge)
    return Allocation(
        flops=float(flops),
        training_flops=float(cost.flops(sizes[0], tokens[0])),
        parameters=parameters,
        tokens=fed,
        epochs=Estimate.over(tokens / limits.unique_tokens, level)
        if np.isfinite(limits.unique_tokens)
        else None,
        loss=said.first,
        recipe=_follow(recipe or {}, best, level, extrapolate),
        binding=binding,
        distance=float(fit.distance(best)[0]),
        level=level,
        provenance=fit.provenance,
        source=fit.source,
        trouble=(*residual_trouble(fit), *(_edge_trouble(fit, best, edge) for edge in edges)),
        cost=cost,
    )


def _at_edge(fit: Fit, size: float, tokens: float) -> tuple[float, ...]:
    """Return the points' tokens per parameter nearest to the optimum's; nothing when within."""
    if not fit.num_points:
        return ()
    used = fit.weights > 0
    known = (fit.inputs["tokens"] / fit.inputs["parameters"])[used]
    ratio, low, high = tokens / size, float(known.min()), float(known.max())
    if low / _EDGE <= ratio <= high * _EDGE:
        return ()
    return (low,) if ratio < low else (high,)


def _widened(
    budget: _Budget, size: Estimate, tokens: Estimate, ratio: float
) -> tuple[Estimate, Estimate]:
    """Let both intervals reach the run whose tokens per parameter were measured."""
    # The bootstrap knows the form only where runs lie; that the optimum is not at their edge is the
    # form's word alone.
    grid = np.linspace(*budget.log_range, _GRID)
    fed = np.log(budget.tokens(np.exp(grid)))
    at = float(np.interp(-np.log(ratio), grid - fed, grid))
    near, with_it = float(np.exp(at)), float(budget.tokens(np.exp(np.array([at])))[0])
    return (
        Estimate(size.value, min(size.low, near), max(size.high, near)),
        Estimate(tokens.value, min(tokens.low, with_it), max(tokens.high, with_it)),
    )


def _edge_trouble(fit: Fit, best: Mapping[str, Array], ratio: float) -> Trouble:
    """Say that the best run is unlike every run that was measured."""
    known = fit.inputs["tokens"] / fit.inputs["parameters"]
    wanted = float(best["tokens"][0] / best["parameters"][0])
    return Trouble(
        kind="edge",
        sentence=f"the best {wanted:.3g} tokens per parameter lie beyond those of the runs, "
        f"{known.min():.3g} to {known.max():.3g}; the intervals reach to {ratio:.3g}",
        advice="add runs with about as many tokens per parameter before believing the split",
        columns=("parameters", "tokens"),
    )


def _check(fit: Fit, flops: float, cost: CostLaw, limits: Limits) -> None:
    """Refuse laws without size and tokens, and budgets that buy nothing."""
    if set(fit.law.inputs) - {"unique_tokens"} != {"parameters", "tokens"}:
        raise FitError(
            f"law {fit.law.name} has inputs {', '.join(fit.law.inputs)}; an allocation needs "
            f"parameters and tokens"
        )
    if not (np.isfinite(flops) and flops > cost.k):
        raise FitError(
            f"a budget of {flops:g} FLOP cannot train one parameter on one token",
            hint="give the budget like 1e22",
        )
    if flops <= _INFERENCE_FLOPS * limits.inference_tokens:
        raise FitError(
            f"{limits.inference_tokens:g} served tokens alone exceed {flops:g} FLOP at one "
            f"parameter",
            hint="raise the budget",
        )
    if "unique_tokens" in fit.law.inputs and not np.isfinite(limits.unique_tokens):
        raise FitError(
            f"law {fit.law.name} needs to know the unique tokens at hand",
            hint="give Limits(unique_tokens=...) (--unique-tokens)",
        )
    refuse_blind_allocation(fit)


def _binding(limits: Limits, size: float, tokens: float) -> tuple[str, ...]:
    """Name the limits the best run touches."""
    touched = {
        "max_parameters": size / limits.max_parameters,
        "max_tokens": tokens / limits.max_tokens,
    }
    return tuple(name for name, share in touched.items() if share > 1 - 1e-6)


def _follow(
    recipe: Mapping[str, Fit], run: Mapping[str, Array], level: float, extrapolate: bool
) -> dict[str, Estimate]:
    """Ask each law of the recipe about the run; later ones may use what earlier ones said."""
    known = dict(run)
    said = {}
    for name, law in recipe.items():
        answer = law.predict(
            {key: known[key] for key in law.law.inputs if key in known},
            level,
            extrapolate=extrapolate,
        )
        known[name] = answer.value
        said[name] = answer.first
    return said


def _best_log_sizes(law: Law, theta: Array, budget: _Budget) -> Array:
    """Return the log of the best size for each parameter set, [S]."""
    if budget.limits == Limits() and "unique_tokens" not in law.inputs:
        return optimal_log_parameters(law, theta, budget.flops, cost=budget.cost)
    return _search(law, theta, budget)


def optimal_log_parameters(
    law: Law, theta: Array, flops: float, *, cost: CostLaw = SIX_N_D
) -> Array:
    """Find the model size of least loss under a budget without limits.

    Closed form for sums of a power of parameters and one of tokens: G (C/c)^(beta/(alpha+beta))
    with G = (alpha A / (beta B))^(1/(alpha+beta)) where compute is c N D; a grid and a
    golden-section search, all parameter sets at once, for other laws and costs.

    Args:
        law: law with inputs "parameters" and "tokens".
        theta: fitted coordinates, [S, P].
        flops: budget in FLOP.
        cost: what training costs.

    Returns:
        Log of the best parameter counts, [S].

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 4.
    """
    powers = law.powers
    if set(powers) == {"parameters", "tokens"} and cost.is_product:
        column = law.columns(theta)
        log_a, alpha = (column[name] for name in powers["parameters"])
        log_b, beta = (column[name] for name in powers["tokens"])
        log_product = np.log(flops) - np.log(cost.k)
        found = (np.log(alpha / beta) + log_a - log_b + beta * log_product) / (alpha + beta)
        return np.broadcast_to(found[:, 0], (len(theta),))
    return _search(law, theta, _Budget(flops, cost, Limits()))


def _search(law: Law, theta: Array, budget: _Budget) -> Array:
    """Minimize the loss over log sizes by a common grid and a golden section per set, [S]."""
    # Under limits the loss over sizes may have several valleys; the grid finds the lowest one, and
    # the golden section narrows it to 1e-9 of a grid step.
    grid = np.linspace(*budget.log_range, _GRID)
    least = law.predict(theta, budget.runs(law, np.exp(grid))).argmin(axis=1)
    low, high = grid[np.maximum(least - 1, 0)], grid[np.minimum(least + 1, _GRID - 1)]
    for _ in range(_ITERATIONS):
        left = high - _GOLDEN * (high - low)
        right = low + _GOLDEN * (high - low)
        is_left = _loss(law, theta, left, budget) <= _loss(law, theta, right, budget)
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
    return (low + high) / 2


def _loss(law: Law, theta: Array, log_sizes: Array, budget: _Budget) -> Array:
    """Return the log loss of each parameter set at its own size, [S]."""
    # The law is evaluated for every set at every size and only the diagonal is kept, so parts of
    # 256 sets keep the square small enough for memory.
    parts = [slice(begin, begin + 256) for begin in range(0, len(theta), 256)]
    return np.concatenate(
        [
            np.diagonal(law.predict(theta[part], budget.runs(law, np.exp(log_sizes[part]))))
            for part in parts
        ]
    )
