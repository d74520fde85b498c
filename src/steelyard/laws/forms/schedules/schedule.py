"""Loss as a function of the learning-rate schedule: the multi-power law."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, normal, tails
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Array, Derivatives, Term, Transform
from steelyard.laws.forms.schedules.schedule_rates import (
    Drops,
    LearningRates,
    anneal,
    collect_drops,
)
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "CooldownGain",
    "Curve",
    "cooldown_gain",
    "fit_curves",
    "multi_power",
    "predict_curve",
]

_LINEAR_FROM = 0.9
"""Where the annealed part takes more than this share of the rest, the log continues as a straight
line, so that no set of parameters gives a negative loss; fitted laws stay far below."""
_REMEMBERED = 4
_BELIEFS = {"beta": Prior(0.6, 0.05), "gamma": Prior(0.65, 0.05)}
"""Published fits of 25M, 100M and 400M parameters lie within .58-.60 and .63-.66 (Luo et al. 2025);
wider here. A few curves fit many pairs of beta and gamma about equally well, and those far from
here predict longer decays worse."""


@dataclass(frozen=True)
class _MultiPowerTerm(Term):
    """L0 + A total^-alpha - B sum of drops x [1 - (1 + C rate^-gamma since)^-beta].

    Attributes:
        schedules: K of them; input "schedule" counts them from 1.
        growth: width of the lumped blocks, see `collect_drops`.
    """

    schedules: tuple[LearningRates, ...]
    growth: float = 1.15
    _drops: dict[bytes, Drops] = field(default_factory=dict, compare=False, repr=False)

    transforms: ClassVar[dict[str, Transform]] = {
        "L0": "log",
        "A": "log",
        "B": "log",
        "C": "log",
        "alpha": "identity",
        "beta": "identity",
        "gamma": "identity",
    }
    inputs: ClassVar[tuple[str, ...]] = ("schedule", "step")

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log loss, [S, n]; see `Term.evaluate`."""
        drops = self._collected(inputs)
        trunk = theta["A"] - theta["alpha"] * drops.log_total
        base = np.logaddexp(theta["L0"], trunk)
        share = np.exp(trunk - base)
        annealed, by_c, by_beta, by_gamma = anneal(drops, theta["C"], theta["beta"], theta["gamma"])
        scale = np.exp(np.minimum(theta["B"] - base, 500.0))  # beyond e^500 sums would overflow
        # Starts far from the optimum could take away more than the whole loss. From 90 % on the log
        # continues as its tangent, which is finite everywhere and leads back.
        part = scale * annealed
        over = part > _LINEAR_FROM
        left = np.where(over, 1 - _LINEAR_FROM, 1 - part)
        log = base + np.log(left) - np.where(over, (part - _LINEAR_FROM) / left, 0.0)
        by_base = 1 + part / left
        return log, {
            "L0": by_base * (1 - share),
            "A": by_base * share,
            "alpha": -by_base * share * drops.log_total,
            "B": -part / left,
            "C": -scale * by_c / left,
            "beta": -scale * by_beta / left,
            "gamma": -scale * by_gamma / left,
        }

    def _collected(self, inputs: Mapping[str, Array]) -> Drops:
        """Lump the drops once per set of points; the last few sets are remembered."""
        # The minimizer asks for the same points again and again; a bootstrap asks for a few sets.
        key = inputs["schedule"].tobytes() + inputs["step"].tobytes()
        if key not in self._drops:
            while len(self._drops) >= _REMEMBERED:
                self._drops.pop(next(iter(self._drops)))
            self._drops[key] = collect_drops(
                self.schedules, inputs["schedule"], inputs["step"], growth=self.growth
            )
        return self._drops[key]


def multi_power(schedules: Sequence[LearningRates], *, growth: float = 1.15) -> Law:
    """Loss = L0 + A S(t)^-alpha - B sum_k (eta_{k-1} - eta_k) G_k(t).

    G_k(t) = 1 - (1 + C eta_k^-gamma S_k(t))^-beta. S(t) is the sum of all learning rates up to step
    t, warm-up included, and S_k(t) that from step k on. The sum runs over all changes of the rate;
    the rise of the warm-up counts as negative drops, so schedules that are compared share their
    warm-up.

    Args:
        schedules: K of them, every step's rate.
        growth: ratio of successive distances at which older drops are lumped; 1.15 keeps the loss
            within 1e-4 nats of the exact sum, 1 is exact and many times slower.

    Returns:
        The law with inputs "schedule" (1..K) and "step", 7 parameters; B and C have the unit of a
        reciprocal learning rate.

    Raises:
        FitError: there is no schedule.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), equation 1; parameters and warm-up as in the
        authors' code.
    """
    if not schedules:
        raise FitError(
            "a multi-power law needs at least one schedule",
            hint="give the learning rates of every run, see LearningRates",
        )
    return Law(
        name="multi_power",
        term=_MultiPowerTerm(tuple(schedules), growth),
        parameters=_parameters(schedules),
        conditions=("schedule", "step"),
        formula="L0 + A S^-alpha - B sum_k (eta_{k-1} - eta_k) [1 - (1 + C eta_k^-gamma "
        "S_k)^-beta]",
    )


def _parameters(schedules: Sequence[LearningRates]) -> tuple[Parameter, ...]:
    """Declare the parameters; the starts of the scales follow from rates and lengths."""
    # B and C have the unit of a reciprocal rate, so no fixed start fits all peaks. With these the
    # trunk's power is .5 at a tenth of the longest sum of rates, a drop from the peak to 0 takes .1
    # off the loss, and C rate^-gamma since is 1 after about ten steps at the peak.
    peak = max(item.peak for item in schedules)
    middle = np.log(max(float(item.rates.sum()) for item in schedules) / 10)
    step_scale = float(np.log(0.1) - (1 - 0.6) * np.log(peak))
    trunk = float(np.log(0.5) + 0.5 * middle)
    fall = float(np.log(0.1 / peak))
    return (
        positive("L0", -7.0, 7.0, 0.0, 1.0),
        positive("A", -25.0, 25.0, trunk),
        real("alpha", 0.02, 3.0, 0.3, 0.6),
        positive("B", -25.0, 30.0, fall),
        positive("C", -25.0, 30.0, step_scale - 1.0, step_scale + 1.0),
        real("beta", 0.02, 5.0, 0.5, prior=_BELIEFS["beta"]),
        real("gamma", -1.0, 3.0, 0.6, prior=_BELIEFS["gamma"]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """A measured loss curve and the learning rates behind it.

    Attributes:
        rates: learning rate of every step, warm-up included.
        step: steps at which the loss was measured, within the schedule, positive, [n].
        loss: measured loss, positive, such as nats per token, [n].
    """

    rates: LearningRates
    step: Array
    loss: Array

    def __post_init__(self) -> None:
        """Refuse columns that do not belong together."""
        if (
            np.ndim(self.step) != 1
            or np.shape(self.step) != np.shape(self.loss)
            or not len(self.step)
        ):
            raise FitError(
                f"a curve has one loss per step, given shapes {np.shape(self.step)} and "
                f"{np.shape(self.loss)}"
            )


def fit_curves(
    curves: Sequence[Curve],
    *,
    law: Law | None = None,
    prior: Literal["published"] | None = "published",
    block_steps: int = 2000,
    bootstrap: Bootstrap = Bootstrap(count=0),
    source: str = "",
) -> Fit:
    """Fit one law to whole loss curves.

    Neighboring points of a curve err alike, so a block of steps counts as one point: the bootstrap
    draws blocks, and the prior weighs against the number of blocks.

    Args:
        curves: K of them; a cosine, a constant run and a two-stage run determine all parameters.
        law: law of inputs "schedule" and "step", or "step" alone; None for the multi-power law of
            these curves.
        prior: "published" believes beta and gamma near those of published fits; None fits them
            freely.
        block_steps: length of the blocks, in steps.
        bootstrap: resampled fits for the intervals and their seed; 0 for none.
        source: where the curves come from.

    Returns:
        The fit; `predict_curve` predicts other schedules from it.

    Raises:
        FitError: no curves, or points that do not allow the fit.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), section 3: Huber loss of log residuals with
        delta 1e-3.
    """
    chosen = law or multi_power([curve.rates for curve in curves])
    number = np.concatenate(
        [np.full(len(curve.step), index + 1.0) for index, curve in enumerate(curves)]
    )
    step = np.concatenate([np.asarray(curve.step, dtype=np.float64) for curve in curves])
    loss = np.concatenate([np.asarray(curve.loss, dtype=np.float64) for curve in curves])
    spans = np.stack([number, step // max(block_steps, 1)], axis=1)
    blocks = np.unique(spans, axis=0, return_inverse=True)[1].reshape(-1)
    # The engine weighs a prior against the number of points; narrowing it by sqrt(blocks / points)
    # weighs it against the blocks, which are what is independent.
    shrink = float(np.sqrt((blocks.max() + 1) / len(blocks)))
    own = {
        name: Prior(item.center, item.sd * shrink)
        for name, item in _BELIEFS.items()
        if name in chosen.names
    }
    return fit(
        chosen,
        {"schedule": number, "step": step},
        loss,
        starts=_starts(chosen, loss),
        groups=blocks,
        prior=own if prior and own else None,
        bootstrap=bootstrap,
        source=source,
    )


def _starts(law: Law, loss: Array) -> Array:
    """Put the floor a little and well below the lowest loss."""
    # A floor above the lowest loss has no way down where the trunk is steep, so starts of the grid
    # are moved below it: one just below, one far below for curves that are still falling.
    grid = law.start_grid()
    if "L0" not in law.names or not (loss > 0).all():
        return grid
    column = law.names.index("L0")
    low, spread = loss.min(), loss.max() - loss.min()
    below = np.log([max(low - share * spread, 0.3 * low) for share in (0.05, 0.3)])
    grid[:, column] = np.where(grid[:, column] == grid[:, column].min(), below[0], below[1])
    return grid


def predict_curve(
    fit: Fit, rates: LearningRates, steps: ArrayLike, level: float = 0.8
) -> Prediction:
    """Predict the losses of a run with another schedule.

    Args:
        fit: fit of a law with inputs "schedule" and "step", or "step" alone.
        rates: learning rate of every step of the run, with the warm-up of the fitted curves.
        steps: steps at which to predict, [n].
        level: probability inside the interval, 0..1; it holds the spread of the parameters and the
            noise of one point.

    Returns:
        Losses with low and high, [n].

    Raises:
        FitError: a step lies outside the schedule, or the level is not between 0 and 1.
    """
    law = _for_schedules(fit, (rates,)) if fit.law.name == "multi_power" else fit.law
    step = np.atleast_1d(np.asarray(steps, dtype=np.float64))
    inputs = {"schedule": np.ones_like(step), "step": step}
    center, *draws = law.predict(np.concatenate([fit.theta[None], fit.samples]), inputs)
    low, high = np.quantile(draws or [center], tails(level), axis=0)
    noise = normal(level) * fit.noise
    return Prediction(
        np.exp(center),
        np.exp(center - np.hypot(np.maximum(center - low, 0.0), noise)),
        np.exp(center + np.hypot(np.maximum(high - center, 0.0), noise)),
    )


def _for_schedules(fit: Fit, schedules: Sequence[LearningRates]) -> Law:
    """Return the fitted law with other schedules."""
    if fit.law.groups:
        raise FitError(
            "a grouped law has a set of parameters per group",
            hint="fit the curves of one group alone",
        )
    law = multi_power(schedules)
    return law.fix(**fit.law.fixed) if fit.law.fixed else law


@dataclass(frozen=True, kw_only=True, slots=True)
class CooldownGain:
    """What cooling down is worth at one length.

    Attributes:
        steps: length of the run.
        trunk: loss of the constant rate after as many steps.
        cooled: loss after the cooldown.
        gain: trunk minus cooled.
    """

    steps: int
    trunk: Estimate
    cooled: Estimate
    gain: Estimate


def cooldown_gain(
    fit: Fit, trunk: LearningRates, cooled: LearningRates, level: float = 0.8
) -> CooldownGain:
    """Predict the gain of a cooldown over its trunk from the law, without running it.

    Args:
        fit: fit of the multi-power law.
        trunk: the run that is not cooled down.
        cooled: the run that is; of the same length.
        level: probability inside the intervals, 0..1; they hold the spread of the parameters.

    Returns:
        Losses at the last step and their difference, in the unit of the fitted losses.

    Raises:
        FitError: the runs differ in length, or the law does not know schedules.
    """
    if fit.law.name != "multi_power" or trunk.steps != cooled.steps:
        raise FitError(
            f"law {fit.law.name}, runs of {trunk.steps} and {cooled.steps} steps: a cooldown's "
            f"gain needs the multi-power law "
            "and two runs of one length",
            hint="fit with fit_curves and cut the trunk with until(steps)",
        )
    theta = np.concatenate([fit.theta[None], fit.samples])
    inputs = {"schedule": np.array([1.0, 2.0]), "step": np.full(2, trunk.steps - 1.0)}
    losses = np.exp(_for_schedules(fit, (trunk, cooled)).predict(theta, inputs))
    ends = (losses[:, 0], losses[:, 1], losses[:, 0] - losses[:, 1])
    first, second, gain = (Estimate.of(float(column[0]), column[1:], level) for column in ends)
    return CooldownGain(steps=trunk.steps, trunk=first, cooled=second, gain=gain)
