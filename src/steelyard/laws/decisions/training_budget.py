"""A compute budget with its limits, and the model size at which a law's loss is least in it."""

from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.cost_law import SIX_N_D, CostLaw
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array

__all__ = [
    "Limits",
    "TrainingBudget",
    "best_log_sizes",
    "optimal_log_parameters",
]

_GOLDEN = (5**0.5 - 1) / 2
_LOG_RANGE = (0.0, 46.0)
"""Model sizes searched where no closed form is known: 1 to 1e20 parameters."""
_GRID = 257
_ITERATIONS = 44
_BISECTIONS = 60
_INFERENCE_FLOPS = 2.0
"""FLOP per parameter and token served."""


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


@dataclass(frozen=True)
class TrainingBudget:
    """A budget with its limits: which token count goes with a model size.

    Attributes:
        flops: total budget, FLOP.
        cost: training FLOP of size and tokens.
        limits: limits on size and tokens.
    """

    flops: float
    cost: CostLaw
    limits: Limits

    def __post_init__(self) -> None:
        """Refuse budgets that buy nothing."""
        if not (np.isfinite(self.flops) and self.flops > self.cost.k):
            raise FitError(
                f"a budget of {self.flops:g} FLOP cannot train one parameter on one token",
                hint="give the budget like 1e22",
            )
        if self.flops <= _INFERENCE_FLOPS * self.limits.inference_tokens:
            raise FitError(
                f"{self.limits.inference_tokens:g} served tokens alone exceed {self.flops:g} FLOP "
                f"at one parameter",
                hint="raise the budget",
            )

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

    def binding(self, size: float, tokens: float) -> tuple[str, ...]:
        """Name the limits that a run touches."""
        touched = {
            "max_parameters": size / self.limits.max_parameters,
            "max_tokens": tokens / self.limits.max_tokens,
        }
        return tuple(name for name, share in touched.items() if share > 1 - 1e-6)


def best_log_sizes(law: Law, theta: Array, budget: TrainingBudget) -> Array:
    """Find the best size of each parameter set within the limits of a budget.

    Args:
        law: law with inputs "parameters" and "tokens".
        theta: fitted coordinates, [S, P].
        budget: the budget with its limits.

    Returns:
        Log of the best parameter counts, [S].
    """
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
    return _search(law, theta, TrainingBudget(flops, cost, Limits()))


def _search(law: Law, theta: Array, budget: TrainingBudget) -> Array:
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


def _loss(law: Law, theta: Array, log_sizes: Array, budget: TrainingBudget) -> Array:
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
