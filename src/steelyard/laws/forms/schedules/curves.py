"""Whole loss curves: a law fitted to them, and the curves of other schedules predicted from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, Prediction, band, normal
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.holdout import ASSUMED_DRIFT
from steelyard.laws.fitting.law import Law, Prior
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules.drift import ASSUMED_SHARE, Known, pooled_drift
from steelyard.laws.forms.schedules.schedule import BELIEFS, multi_power, with_schedules
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

__all__ = ["CooldownGain", "Curve", "cooldown_gain", "fit_curves", "predict_curve"]

_OTHER_SIZE = {"A": 0.3, "alpha": 0.1, "B": 0.3, "C": 0.3, "beta": 0.05, "gamma": 0.05}
"""Standard deviations, in fitted coordinates, by which the parameters of two sizes are believed to
differ; the floor L0 is the size's own."""
_BLOCKS = 12
_THINNED = 60
_FEWEST = 3
"""Curves from which on one can be left out: the other two still hold a drop and a constant rate."""


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
    prior: Literal["published"] | Fit | None = "published",
    block_steps: int | None = None,
    bootstrap: Bootstrap = Bootstrap(count=0),
    source: str = "",
) -> Fit:
    """Fit one law to whole loss curves.

    Neighboring points of a curve err alike, so a block of steps counts as one point: the bootstrap
    draws blocks, and the prior weighs against the number of blocks. Curves err as a whole under
    schedules that no other curve had: with intervals asked for, each curve is left out in turn, and
    how far the others miss it becomes the drift of `predict_curve`.

    Args:
        curves: K of them; a cosine, a constant run and a two-stage run determine all parameters.
        law: law of inputs "schedule" and "step", or "step" alone; None for the multi-power law of
            these curves.
        prior: "published" believes beta and gamma near those of published fits; a fit of another
            model size lends all but the floor, so that one or two curves of this size are enough,
            and its drift; None fits freely.
        block_steps: length of the blocks, in steps; None for a twelfth of the longest curve.
        bootstrap: resampled fits for the intervals and their seed; 0 for none, and a drift that is
            assumed.
        source: where the curves come from.

    Returns:
        The fit; `predict_curve` predicts other schedules from it. Its drift is the error as a share
        of the predicted change from the nearest fitted curve, its `drift_source` "holdout" when
        curves were left out for it (those of the other size's fit, where it is the prior) and
        "assumed" when there were fewer than three.

    Raises:
        FitError: no curves, or points that do not allow the fit.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), section 3: Huber loss of log residuals with
        delta 1e-3.
    """
    found = _fitted(curves, law, prior, block_steps, bootstrap, source)
    if isinstance(prior, Fit) and prior.drift_source == "holdout" and len(curves) < _FEWEST:
        return replace(found, drift=prior.drift, drift_source="holdout")
    assumed = ASSUMED_SHARE if _knows_schedules(found.law) else ASSUMED_DRIFT
    if not bootstrap.count or len(curves) < _FEWEST:
        return replace(found, drift=assumed, drift_source="assumed")
    errors, novelties = [], []
    few = [_thinned(curve) for curve in curves]
    for index, curve in enumerate(few):
        others = [item for other, item in enumerate(few) if other != index]
        within = with_schedules(law, [item.rates for item in others]) if law else None
        less = _fitted(others, within, prior, block_steps, Bootstrap(count=0), source)
        errors.append(np.log(curve.loss) - _log_losses(less, curve.rates, curve.step))
        novelties.append(_novelty(less, curve.rates, curve.step))
    drift = pooled_drift(errors, novelties, found.noise, assumed)
    return replace(found, drift=drift, drift_source="holdout")


def _thinned(curve: Curve) -> Curve:
    """Take points at even distances: how far whole curves err needs no more."""
    rows = np.unique(np.linspace(0, len(curve.step) - 1, _THINNED).round().astype(np.int64))
    return Curve(
        rates=curve.rates, step=np.asarray(curve.step)[rows], loss=np.asarray(curve.loss)[rows]
    )


def _fitted(
    curves: Sequence[Curve],
    law: Law | None,
    prior: Literal["published"] | Fit | None,
    block_steps: int | None,
    bootstrap: Bootstrap,
    source: str,
) -> Fit:
    """Fit curves without measuring the drift."""
    chosen = law or multi_power([curve.rates for curve in curves])
    number = np.concatenate(
        [np.full(len(curve.step), index + 1.0) for index, curve in enumerate(curves)]
    )
    step = np.concatenate([np.asarray(curve.step, dtype=np.float64) for curve in curves])
    loss = np.concatenate([np.asarray(curve.loss, dtype=np.float64) for curve in curves])
    apart = block_steps or max(curve.rates.steps for curve in curves) // _BLOCKS
    spans = np.stack([number, step // max(apart, 1)], axis=1)
    blocks = np.unique(spans, axis=0, return_inverse=True)[1].reshape(-1)
    # The engine weighs a prior against the number of points; narrowing it by sqrt(blocks / points)
    # weighs it against the blocks, which are what is independent.
    shrink = float(np.sqrt((blocks.max() + 1) / len(blocks)))
    own = {
        name: Prior(item.center, item.sd * shrink)
        for name, item in _believed(prior).items()
        if name in chosen.names
    }
    return fit(
        chosen,
        {"schedule": number, "step": step},
        loss,
        starts=_starts(chosen, loss),
        groups=blocks,
        prior=own or None,
        bootstrap=bootstrap,
        source=source,
    )


def _believed(prior: Literal["published"] | Fit | None) -> dict[str, Prior]:
    """Resolve a prior into beliefs by parameter."""
    if not isinstance(prior, Fit):
        return BELIEFS if prior else {}
    center = dict(zip(prior.law.names, prior.theta.tolist(), strict=True))
    return {name: Prior(center[name], sd) for name, sd in _OTHER_SIZE.items() if name in center}


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
        level: probability inside the interval, 0..1; it holds the spread of the parameters, the
            noise of one point and, where no fitted curve had these rates, the drift of the fit.

    Returns:
        Losses with low and high, [n].

    Raises:
        FitError: a step lies outside the schedule, or the level is not between 0 and 1.
    """
    step = np.atleast_1d(np.asarray(steps, dtype=np.float64))
    law = with_schedules(fit.law, (rates,))
    inputs = {"schedule": np.ones_like(step), "step": step}
    new = _novelty(fit, rates, step)
    return band(
        law.predict(fit.thetas, inputs), level, noise=fit.noise, drift=fit.drift, distance=new
    )


def _log_losses(fit: Fit, rates: LearningRates, step: Array) -> Array:
    """Predict log losses under one schedule, [n]."""
    inputs = {"schedule": np.ones_like(step), "step": step}
    return with_schedules(fit.law, (rates,)).predict(fit.theta[None], inputs)[0]


def _knows_schedules(law: Law) -> bool:
    """Say whether a law tells schedules apart."""
    return "schedule" in law.inputs


def _novelty(fit: Fit, rates: LearningRates, step: Array) -> Array:
    """Return what the drift of a fit multiplies at some steps of a schedule, [n]."""
    if not fit.inputs:
        # A published set has no curves to be far from: what is new to it is not known.
        return np.zeros_like(step)
    if not _knows_schedules(fit.law):
        # Every curve is the same to it, so its drift is the error itself.
        return np.ones_like(step)
    number, known = fit.inputs["schedule"], fit.inputs["step"]
    return Known(
        predict=lambda rates, at: _log_losses(fit, rates, at),
        rates=getattr(fit.law.term, "schedules", ()),
        last=[float(known[number == row].max()) for row in np.unique(number)],
        first=float(known.min()),
    ).novelty(rates, step)


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
        level: probability inside the intervals, 0..1; they hold the spread of the parameters, that
            of the gain also the drift of the fit.

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
    losses = np.exp(with_schedules(fit.law, (trunk, cooled)).predict(theta, inputs))
    ends = (losses[:, 0], losses[:, 1], losses[:, 0] - losses[:, 1])
    first, second, gain = (Estimate.over(column, level) for column in ends)
    # The gain is what the law says the fall is worth, of which the drift is a share.
    drift = normal(level) * fit.drift * abs(gain.value) if fit.inputs else 0.0
    low = gain.value - float(np.hypot(gain.value - gain.low, drift))
    high = gain.value + float(np.hypot(gain.high - gain.value, drift))
    return CooldownGain(
        steps=trunk.steps, trunk=first, cooled=second, gain=Estimate(gain.value, low, high)
    )
