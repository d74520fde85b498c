"""How many steps a batch saves: steps to a target, the critical batch, and how that batch grows."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.censored import fit_censored
from steelyard.laws.fitting.estimate import Estimate, tails
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.powers import power_form, product_form
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "CriticalBatch",
    "batch_law",
    "batch_of_loss",
    "critical_batch",
    "critical_batch_at_loss",
    "fit_steps",
    "steps_to_reach",
    "steps_to_target",
]

_LOG_REACH = 30.0
_BISECTIONS = 60
_KAPLAN = (2e8, 0.21)
"""Critical batch in tokens at a loss of 1 nat per token, and alpha_B: Kaplan et al. 2020 (arXiv
2001.08361), critical batch size."""


def steps_to_target() -> Law:
    """Fewest steps to a target loss = a + b / batch^alpha, every other setting tuned per batch.

    Returns:
        The law of a number of steps with input "batch", in examples, sequences or tokens, 3
        parameters.

    Source: Zhang et al. 2024 (arXiv 2410.21676), section 2.
    """
    parameters = (
        positive("a", -5.0, 30.0, 3.0, 6.0, 9.0),
        positive("b", -5.0, 60.0, 6.0, 10.0, 14.0, 20.0),
        real("alpha", 0.2, 3.0, 0.7, 1.0, 1.4),
    )
    roles = ("b", "alpha", "a")
    return power_form("steps_to_target", "batch", roles, parameters, "a + b / batch^alpha")


def fit_steps(
    batch: ArrayLike,
    steps: ArrayLike,
    caps: ArrayLike = math.inf,
    *,
    bootstraps: int = 300,
    seed: int = 0,
) -> Fit:
    """Fit the steps to a target; runs that reached their cap first count as "more than the cap".

    Args:
        batch: batch size of each run, positive, [n].
        steps: number of steps to the target, [n]; NaN or infinite where the cap came first.
        caps: most steps of a run, [n] or one number; infinite for none.
        bootstraps: refits for the intervals.
        seed: seed of the resampling.

    Returns:
        The fit of `steps_to_target`.

    Raises:
        FitError: a single batch, too few runs that reached the target, or numbers that are not
            positive.
    """
    return fit_censored(
        steps_to_target(),
        {"batch": np.asarray(batch)},
        steps,
        caps,
        bootstraps=bootstraps,
        seed=seed,
    )


def steps_to_reach(steps: ArrayLike, loss: ArrayLike, target: float) -> float:
    """Return the step at which a run first reaches a loss, log-linear between measurements.

    Args:
        steps: rising, positive, [n].
        loss: loss at those steps, [n].
        target: loss to reach.

    Returns:
        The step; infinite when the curve never gets there, to be given a cap; the first step when
        it starts below.

    Raises:
        FitError: no measurements, or steps that do not rise.
    """
    step, value = np.asarray(steps, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if (
        step.shape != value.shape
        or not len(step)
        or not (np.diff(step) > 0).all()
        or not step[0] > 0
    ):
        raise FitError("a loss curve needs one loss per step and positive, rising steps")
    reached = np.flatnonzero(value <= target)
    if not len(reached):
        return math.inf
    row, before = reached[0], max(reached[0] - 1, 0)
    share = (value[before] - target) / (value[before] - value[row]) if row else 0.0
    return float(step[before] * (step[row] / step[before]) ** share)


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """The largest batch that still pays.

    Attributes:
        batch: largest batch whose examples to the target exceed those of the reference by at most
            the overhead; infinite when the fit saw no end of perfect scaling.
        reference: batch compared with, in the unit of the fit.
        overhead: allowed excess of examples, a fraction.
        level: probability inside the interval.
    """

    batch: Estimate
    reference: float
    overhead: float
    level: float


def critical_batch(
    fitted: Fit, *, overhead: float = 0.2, reference: float | None = None, level: float = 0.8
) -> CriticalBatch:
    """Find the batch up to which more data parallelism saves steps almost in proportion.

    B* = max {B: f(B) B <= (1 + overhead) f(reference) reference}, by bisection for the fit and each
    of its bootstraps.

    Args:
        fitted: fit of `steps_to_target`, or another law of steps with the one input "batch".
        overhead: allowed excess of examples, positive; .2 is the convention.
        reference: batch compared with; None for the fitted batch of fewest examples within the
            points.
        level: probability inside the interval, 0..1.

    Returns:
        The critical batch with its interval.

    Raises:
        FitError: a law with other inputs, or an overhead or reference that is not positive.

    Source: Zhang et al. 2024 (arXiv 2410.21676), definition of the critical batch size.
    """
    if (
        fitted.law.inputs != ("batch",)
        or not overhead > 0
        or (reference is not None and not reference > 0)
    ):
        raise FitError(
            f"law {fitted.law.name} with overhead {overhead:g}: needs a law of batch and positive "
            f"overhead and reference"
        )
    base = reference if reference is not None else _fewest_examples(fitted)
    theta = np.concatenate([fitted.theta[None], fitted.samples])
    found = np.exp(_log_critical(fitted.law, theta, math.log(base), math.log1p(overhead)))
    # Draws may be infinite, where the fit sees no end of perfect scaling; interpolated quantiles
    # would turn those into numbers that are not, so the draws themselves are taken.
    ordered = np.sort(found[1:]) if len(found) > 1 else found
    low, high = (float(ordered[round(tail * (len(ordered) - 1))]) for tail in tails(level))
    return CriticalBatch(
        Estimate(float(found[0]), min(low, float(found[0])), max(high, float(found[0]))),
        base,
        overhead,
        level,
    )


def _fewest_examples(fitted: Fit) -> float:
    """Return the batch within the points at which the fit needs fewest examples."""
    batches = np.geomspace(fitted.inputs["batch"].min(), fitted.inputs["batch"].max(), 400)
    examples = fitted.law.predict(fitted.theta[None], {"batch": batches})[0] + np.log(batches)
    return float(batches[examples.argmin()])


def _log_critical(law: Law, theta: Array, log_reference: float, log_excess: float) -> Array:
    """Bisect ln B per parameter set, [S]; infinite where the allowance is never exceeded."""

    def examples(log_batch: Array) -> Array:
        return np.diagonal(law.predict(theta, {"batch": np.exp(log_batch)})) + log_batch

    # Examples rise with the batch beyond the best one, so one crossing lies between.
    allowed = examples(np.full(len(theta), log_reference)) + log_excess
    low = np.full(len(theta), log_reference)
    high = low + _LOG_REACH
    endless = examples(high) <= allowed
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_inside = examples(middle) <= allowed
        low, high = np.where(is_inside, middle, low), np.where(is_inside, high, middle)
    return np.where(endless, math.inf, low)


def batch_law(*of: str) -> Law:
    """Critical or best batch = c parameters^p tokens^q.

    Args:
        *of: inputs, among "parameters" and "tokens"; none for both.

    Returns:
        The law of a batch, 2 or 3 parameters.

    Raises:
        FitError: other inputs.

    Source: Zhang et al. 2024 (arXiv 2410.21676), section 4.
    """
    exponents = {"parameters": "p", "tokens": "q"}
    names = of or tuple(exponents)
    if any(name not in exponents for name in names) or len(set(names)) != len(names):
        raise FitError(
            f"batch law of {', '.join(names)}", hint="its inputs are parameters, tokens or both"
        )
    powers = {name: real(exponents[name], -2.0, 3.0, 0.3) for name in names}
    return product_form(":".join(("batch_law", *of)), positive("c", -80.0, 80.0, 0.0), powers)


def batch_of_loss() -> Law:
    """Critical batch = B_star / loss^exponent, the exponent being 1 / alpha_B.

    Returns:
        The law of a batch with input "loss", 2 parameters.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), critical batch size.
    """
    parameters = (
        positive("B_star", -10.0, 60.0, 10.0, 20.0),
        real("exponent", 0.1, 20.0, 2.0, 5.0),
    )
    roles = ("B_star", "exponent")
    return power_form("batch_of_loss", "loss", roles, parameters, "B_star / L^exponent")


def critical_batch_at_loss(loss: ArrayLike) -> Array:
    """Return the critical batch of language models at a loss, as published.

    2e8 / loss^(1 / .21) tokens.

    Args:
        loss: nats per token of the paper's tokenizer, positive, [n].

    Returns:
        Tokens per step at which steps and examples are both twice their least, [n].

    Raises:
        FitError: a loss that is not positive.

    Source: Kaplan et al. 2020 (arXiv 2001.08361), critical batch size.
    """
    value = np.asarray(loss, dtype=np.float64)
    if not (value > 0).all():
        raise FitError("losses must be positive")
    return _KAPLAN[0] / value ** (1 / _KAPLAN[1])
