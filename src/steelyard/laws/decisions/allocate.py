"""The best model size, token count and epochs for a compute budget under a fitted law."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.quantity import Provenance

__all__ = ["Allocation", "Limits", "allocate", "optimal_log_parameters"]

_GOLDEN = (5**0.5 - 1) / 2
_LOG_RANGE = (0.0, 46.0)
"""Model sizes searched where no closed form is known: 1 to 1e20 parameters."""
_GRID = 257
_ITERATIONS = 44
_INFERENCE_FLOPS = 2.0


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


@dataclass(frozen=True)
class _Budget:
    """A budget with its limits: which token count goes with a model size.

    Attributes:
        flops: total budget, FLOP.
        per_token: training FLOP per parameter and token.
        limits: limits on size and tokens.
    """

    flops: float
    per_token: float
    limits: Limits

    @property
    def log_range(self) -> tuple[float, float]:
        """Log sizes that spend the budget within the limits; equal ends leave a single size."""
        served = _INFERENCE_FLOPS * self.limits.inference_tokens
        least = (
            self.flops / (self.per_token * self.limits.max_tokens + served)
            if np.isfinite(self.limits.max_tokens)
            else 1.0
        )
        most = self.flops / max(served, self.per_token)
        # At the largest size nothing would be left for tokens, so the range ends just below it.
        high = np.log(min(most * (1 - 1e-9), self.limits.max_parameters))
        return min(max(np.log(least), _LOG_RANGE[0]), high), min(high, _LOG_RANGE[1])

    def tokens(self, sizes: Array) -> Array:
        """Return the training tokens that are left at each size."""
        left = self.flops / sizes - _INFERENCE_FLOPS * self.limits.inference_tokens
        return np.minimum(np.maximum(left, 1e-300) / self.per_token, self.limits.max_tokens)

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
    flops_per_parameter_token: float = 6.0,
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
        flops_per_parameter_token: FLOP per parameter and token, 6 for a forward and a backward
            pass.
        level: probability inside the intervals, 0..1.
        extrapolate: allow a run more than two decades beyond the points.

    Returns:
        Size, tokens, epochs and loss with bootstrap intervals; intervals without width for
        published laws.

    Raises:
        FitError: the law has other inputs, the budget is not positive and finite, a law of the
            recipe needs what is not known, or the run lies too far beyond the points.

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3; inference in the budget: Sardana
        et al. 2024 (arXiv 2401.00448).
    """
    limits = limits or Limits()
    _check(fit, flops, flops_per_parameter_token, limits)
    budget = _Budget(flops, flops_per_parameter_token, limits)
    sizes = np.exp(_best_log_sizes(fit.law, fit.thetas, budget))
    tokens = budget.tokens(sizes)
    best = budget.runs(fit.law, sizes[:1])
    said = fit.predict(best, level, extrapolate=extrapolate)
    return Allocation(
        flops=float(flops),
        training_flops=float(flops_per_parameter_token * sizes[0] * tokens[0]),
        parameters=Estimate.over(sizes, level),
        tokens=Estimate.over(tokens, level),
        epochs=Estimate.over(tokens / limits.unique_tokens, level)
        if np.isfinite(limits.unique_tokens)
        else None,
        loss=said.first,
        recipe=_follow(recipe or {}, best, level, extrapolate),
        binding=_binding(limits, float(sizes[0]), float(tokens[0])),
        distance=float(fit.distance(best)[0]),
        level=level,
        provenance=fit.provenance,
        source=fit.source,
    )


def _check(fit: Fit, flops: float, per_token: float, limits: Limits) -> None:
    """Refuse laws without size and tokens, and budgets that buy nothing."""
    if set(fit.law.inputs) - {"unique_tokens"} != {"parameters", "tokens"}:
        raise FitError(
            f"law {fit.law.name} has inputs {', '.join(fit.law.inputs)}; an allocation needs "
            f"parameters and tokens"
        )
    if not (np.isfinite(flops) and flops > per_token > 0):
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
        return optimal_log_parameters(
            law, theta, budget.flops, flops_per_parameter_token=budget.per_token
        )
    return _search(law, theta, budget)


def optimal_log_parameters(
    law: Law, theta: Array, flops: float, *, flops_per_parameter_token: float = 6.0
) -> Array:
    """Find the model size of least loss under a budget without limits.

    Closed form for sums of a power of parameters and one of tokens: G (C/c)^(beta/(alpha+beta))
    with G = (alpha A / (beta B))^(1/(alpha+beta)); a grid and a golden-section search, all
    parameter sets at once, for other laws.

    Args:
        law: law with inputs "parameters" and "tokens".
        theta: fitted coordinates, [S, P].
        flops: budget in FLOP.
        flops_per_parameter_token: c in C = c N D.

    Returns:
        Log of the best parameter counts, [S].

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), equation 4.
    """
    powers = law.powers
    if set(powers) == {"parameters", "tokens"}:
        column = law.columns(theta)
        log_a, alpha = (column[name] for name in powers["parameters"])
        log_b, beta = (column[name] for name in powers["tokens"])
        log_product = np.log(flops) - np.log(flops_per_parameter_token)
        found = (np.log(alpha / beta) + log_a - log_b + beta * log_product) / (alpha + beta)
        return np.broadcast_to(found[:, 0], (len(theta),))
    return _search(law, theta, _Budget(flops, flops_per_parameter_token, Limits()))


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
