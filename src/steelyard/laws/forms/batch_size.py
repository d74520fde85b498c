"""How many steps a batch saves: steps to a target, the critical batch, and the cheapest batch."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.censored import fit_censored
from steelyard.laws.fitting.estimate import Estimate, tails
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Constant, Input, Product, Sum
from steelyard.laws.forms.powers import power_form
from steelyard.laws.forms.terms import Number, Quotient, positive, real

__all__ = [
    "CostOptimalBatch",
    "CriticalBatch",
    "Tradeoff",
    "batch_for_exchange_rate",
    "cost_optimal_batch",
    "critical_batch",
    "fit_steps",
    "steps_to_reach",
    "steps_to_target",
    "time_compute",
    "tradeoff",
]

_LOG_REACH = 30.0
_BISECTIONS = 60


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
    bootstrap: Bootstrap = Bootstrap(),
) -> Fit:
    """Fit the steps to a target; runs that reached their cap first count as "more than the cap".

    Args:
        batch: batch size of each run, positive, [n].
        steps: number of steps to the target, [n]; NaN or infinite where the cap came first.
        caps: most steps of a run, [n] or one number; infinite for none.
        bootstrap: refits for the intervals, and their seed.

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
        bootstrap=bootstrap,
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
    found = np.exp(_log_critical(fitted.law, fitted.thetas, math.log(base), math.log1p(overhead)))
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


def time_compute() -> Law:
    """Steps = S_min (1 + B_crit / batch).

    This is (S / S_min - 1) (E / E_min - 1) = 1 with E = S batch and E_min = S_min B_crit.

    Returns:
        The law of a number of steps with input "batch", in examples, 2 parameters.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), section 2.3.
    """
    ratio = Quotient((Constant("B_crit"), Input("batch")))
    return Law(
        name="time_compute",
        term=Product((Constant("S_min"), Sum((Number(1.0), ratio)))),
        parameters=(
            positive("S_min", -5.0, 40.0, 2.0, 6.0, 10.0),
            positive("B_crit", -10.0, 40.0, 2.0, 5.0, 10.0),
        ),
        formula="S_min (1 + B_crit / batch)",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tradeoff:
    """Steps against examples to one target.

    Attributes:
        steps_min: fewest steps, at an endless batch.
        examples_min: fewest examples, at the smallest batch.
        batch_critical: ratio of the two; there both are twice their least.
        r2: explained share of the variance, the lesser of that of ln steps and of ln examples over
            the batches.
        level: probability inside the intervals.
        fit: fit of `time_compute`.
    """

    steps_min: Estimate
    examples_min: Estimate
    batch_critical: Estimate
    r2: float
    level: float
    fit: Fit

    def steps(self, batch: ArrayLike) -> Array:
        """Return steps to the target at batches, [n]."""
        return self.steps_min.value * (
            1 + self.batch_critical.value / np.asarray(batch, dtype=np.float64)
        )

    def examples(self, batch: ArrayLike) -> Array:
        """Return examples to the target at batches, [n]."""
        return self.steps(batch) * np.asarray(batch, dtype=np.float64)


def tradeoff(
    steps: ArrayLike,
    examples: ArrayLike,
    *,
    caps: ArrayLike = math.inf,
    level: float = 0.8,
    bootstrap: Bootstrap = Bootstrap(),
) -> Tradeoff:
    """Fit the trade-off to runs of several batches that reached one target.

    Args:
        steps: number of steps each run took, [n]; where it equals its cap the run had not reached
            the target.
        examples: number of examples each run used, [n].
        caps: most steps of a run, [n] or one number; infinite for none.
        level: probability inside the intervals, 0..1.
        bootstrap: refits for the intervals, and their seed.

    Returns:
        Fewest steps, fewest examples and the critical batch.

    Raises:
        FitError: a single batch, fewer than four runs, or numbers that are not positive.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), section 2.3.
    """
    step = np.asarray(steps, dtype=np.float64)
    example = np.asarray(examples, dtype=np.float64)
    if step.shape != example.shape or step.ndim != 1:
        raise FitError(f"steps {step.shape} and examples {example.shape}: give one of each per run")
    if not (np.isfinite(step) & np.isfinite(example) & (step > 0) & (example > 0)).all():
        raise FitError(
            "steps and examples must be positive and finite",
            hint="give a run that missed the target its cap as steps",
        )
    fitted = fit_censored(
        time_compute(), {"batch": example / step}, step, caps, bootstrap=bootstrap
    )
    seen = step < np.broadcast_to(np.asarray(caps, dtype=np.float64), step.shape)
    unexplained = float((fitted.residuals[seen] ** 2).sum())
    # ln steps fall with the batch by themselves, so their R2 is near 1 for any fit; the lesser
    # spread of the two tells a good one.
    spread = [
        float(((column - column.mean()) ** 2).sum())
        for column in (np.log(step[seen]), np.log(example[seen]))
    ]
    return Tradeoff(
        steps_min=fitted.derive(lambda params: params["S_min"], level),
        examples_min=fitted.derive(lambda params: params["S_min"] * params["B_crit"], level),
        batch_critical=fitted.derive(lambda params: params["B_crit"], level),
        r2=1 - unexplained / max(min(spread), 1e-300),
        level=level,
        fit=fitted,
    )


@dataclass(frozen=True, slots=True)
class CostOptimalBatch:
    """The batch of least cost.

    Attributes:
        batch: batch size in examples.
        steps: number of steps to the target.
        examples: number of examples to the target.
        cost: cost of the run, in the unit of the prices.
    """

    batch: float
    steps: float
    examples: float
    cost: float


def cost_optimal_batch(
    curve: Tradeoff, *, cost_per_step: float, cost_per_example: float
) -> CostOptimalBatch:
    """Weigh time against compute: minimize cost per step x steps + cost per example x examples.

    Args:
        curve: the trade-off.
        cost_per_step: what the time of one step is worth, positive.
        cost_per_example: what computing one example costs, positive, same unit.

    Returns:
        batch = sqrt(cost_per_step / cost_per_example x B_crit) and what it needs.

    Raises:
        FitError: a cost is not positive.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), section 2.3, with a price on both axes.
    """
    if not (cost_per_step > 0 and cost_per_example > 0):
        raise FitError(
            f"costs per step {cost_per_step:g} and per example {cost_per_example:g} must be "
            f"positive"
        )
    batch = float(
        batch_for_exchange_rate(curve.batch_critical.value, cost_per_step / cost_per_example)
    )
    steps = float(curve.steps(batch))
    return CostOptimalBatch(
        batch, steps, steps * batch, cost_per_step * steps + cost_per_example * steps * batch
    )


def batch_for_exchange_rate(noise_scale: ArrayLike, examples_per_step: float) -> Array:
    """Return the batch to use now when a step is worth so many examples: sqrt(rate x noise scale).

    Args:
        noise_scale: gradient noise scale or critical batch, in examples, positive, [n].
        examples_per_step: exchange rate, positive; equal to the noise scale at the knee.

    Returns:
        Batches in examples, [n].

    Raises:
        FitError: a number is not positive.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), adaptive batch size in the appendix.
    """
    scale = np.asarray(noise_scale, dtype=np.float64)
    if not ((scale > 0).all() and examples_per_step > 0):
        raise FitError("noise scale and exchange rate must be positive")
    return np.sqrt(examples_per_step * scale)
