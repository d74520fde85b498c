"""The learning-rate schedule of least final loss under a fitted multi-power law."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules import multipliers
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

__all__ = ["BestSchedule", "best_schedule", "final_loss", "rival_schedules"]

_SINGLE, _GROWTH = 100, 1.02
"""The last 100 steps are searched one by one, earlier ones in stretches that lengthen by 2 %."""
_COOLDOWNS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
_Objective = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True, kw_only=True, eq=False)
class BestSchedule:
    """The best schedule found and what it beats.

    Attributes:
        rates: learning rate of every step, warm-up included.
        loss: loss predicted at the end, in the unit of the fitted losses.
        rivals: predicted final losses of cosine and trapezoid schedules of the same length, peak,
            warm-up and lowest rate.
        lowest_fitted: lowest rate after warm-up among the fitted curves; below it the law is
            extrapolated.
    """

    rates: LearningRates
    loss: float
    rivals: dict[str, float]
    lowest_fitted: float

    @property
    def best_rival(self) -> str:
        """Name of the rival with the least loss."""
        return min(self.rivals, key=self.rivals.__getitem__)

    @property
    def gain(self) -> float:
        """Loss of the best rival minus ours."""
        return self.rivals[self.best_rival] - self.loss


def best_schedule(
    fit: Fit,
    steps: int,
    peak: float,
    *,
    warmup: int = 0,
    final: float = 0.0,
    iterations: int = 1000,
) -> BestSchedule:
    """Search the non-increasing schedule of least final loss.

    Projected gradient on the rates of stretches that shorten towards the end: after each
    accelerated step, isotonic regression and clipping give the nearest non-increasing rates. It
    starts from the two best rivals and never ends above them.

    Args:
        fit: fit of the multi-power law, see `fit_curves`.
        steps: length of the run, warm-up included.
        peak: highest rate allowed, in the unit of the fitted schedules.
        warmup: steps of the linear rise; as in the fitted curves, because the law counts the rise.
        final: lowest rate allowed as a fraction of the peak, 0..1.
        iterations: most steps of the search from each start.

    Returns:
        The schedule, its loss and those of its rivals.

    Raises:
        FitError: the law does not know schedules, the peak or final is out of range, or the warm-up
            takes the whole run.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), section 5: the optimized schedule; projected
        gradient instead of Adam.
    """
    if fit.law.name != "multi_power" or not (np.isfinite(peak) and peak > 0) or not 0 <= final < 1:
        raise FitError(
            f"law {fit.law.name}, peak {peak:g}, final {final:g}: a schedule is searched under "
            f"the multi-power law",
            hint="fit with fit_curves; the peak is positive, final lies in 0..1",
        )
    if not 0 <= warmup < steps:
        raise FitError(
            f"a run of {steps} steps with {warmup} of warm-up leaves no step to search",
            hint="the warm-up is shorter than the run",
        )
    params = {**fit.law.fixed, **fit.params}
    rivals = rival_schedules(steps, peak, warmup=warmup, final=final)
    losses = {name: final_loss(params, rates.rates)[0] for name, rates in rivals.items()}
    search = _Search.of(params, steps, peak, warmup, final)
    starts = [rivals[name] for name in sorted(losses, key=losses.__getitem__)[:2]]
    found = [starts[0], *(search.run(rates, iterations) for rates in starts)]
    loss, best = min(
        ((final_loss(params, rates.rates)[0], rates) for rates in found), key=lambda item: item[0]
    )
    lowest = min(
        float(item.rates[int(item.rates.argmax()) :].min())
        for item in getattr(fit.law.term, "schedules", ())
    )
    return BestSchedule(rates=best, loss=loss, rivals=losses, lowest_fitted=lowest)


def rival_schedules(
    steps: int, peak: float, *, warmup: int = 0, final: float = 0.0
) -> dict[str, LearningRates]:
    """List cosine and trapezoid schedules of one length, peak and lowest rate.

    Args:
        steps: length of the run, warm-up included.
        peak: highest rate.
        warmup: steps of the linear rise.
        final: rate at the end as a fraction of the peak.

    Returns:
        Schedules by name; cooldowns take 5 % to 60 % of the steps where they fit.
    """
    rivals = {f"cosine to {final:g}": LearningRates.cosine(steps, peak, warmup, final)}
    for share in _COOLDOWNS:
        if round(share * steps) + warmup < steps:
            for shape in ("1-sqrt", "linear"):
                rivals[f"{shape} over {share:g}"] = LearningRates.trapezoid(
                    steps, peak, warmup, share, shape, final
                )
    return rivals


def final_loss(
    params: Mapping[str, float], rates: Array, width: Array | None = None
) -> tuple[float, Array]:
    """Return the multi-power law's loss at the last step and its gradient by every rate.

    Args:
        params: L0, A, alpha, B, C, beta and gamma, natural values.
        rates: learning rate of every step, or of the middles of stretches between which the rate
            changes gradually, [T].
        width: steps per stretch, [T]; None for one.

    Returns:
        The loss and its derivatives, [T].

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), equation 1.
    """
    # A drop between two stretches is spread over the steps around their border. It acts at the rate
    # of its middle, which lies `upper` of the way from the lower rate to the higher one.
    steps = np.ones(len(rates)) if width is None else width
    upper = 0.5 - 1 / (steps[:-1] + steps[1:])
    ramp = rates[1:] + upper * (rates[:-1] - rates[1:])
    # A rate of 0 has no negative power; the gradient by it is 0 there.
    floored = np.maximum(ramp, 1e-6 * rates.max())
    since = np.cumsum((rates * steps)[::-1])[::-1]
    total = since[0]
    drop = rates[:-1] - rates[1:]
    scale = params["C"] * floored ** -params["gamma"]
    grown = 1 + scale * since[1:]
    left = grown ** -params["beta"]
    held = drop * params["beta"] * left / grown * scale
    loss = (
        params["L0"]
        + params["A"] * total ** -params["alpha"]
        - params["B"] * float(drop @ (1 - left))
    )
    by_ramp = np.where(ramp >= floored, params["gamma"] * held * since[1:] / floored, 0.0)
    reduced = np.zeros(len(rates))
    reduced[:-1] += 1 - left - upper * by_ramp
    reduced[1:] += left - 1 + np.cumsum(held) * steps[1:] - (1 - upper) * by_ramp
    by_total = -params["alpha"] * params["A"] * total ** (-params["alpha"] - 1)
    return float(loss), by_total * steps - params["B"] * reduced


@dataclass(frozen=True)
class _Search:
    """A run cut into stretches, single steps at the end and longer ones before.

    The search moves the square roots of the rates as fractions of the peak: near 0 the loss bends
    less in them.
    """

    params: dict[str, float]
    peak: float
    final: float
    warm: Array
    width: Array
    """Length of each stretch after the warm-up, steps."""

    @classmethod
    def of(
        cls, params: dict[str, float], steps: int, peak: float, warmup: int, final: float
    ) -> "_Search":
        body = steps - warmup
        far = np.rint(
            _SINGLE
            * _GROWTH
            ** np.arange(1, 1 + max(0, int(np.log(max(body / _SINGLE, 1)) / np.log(_GROWTH))))
        )
        ends = np.unique(
            np.concatenate([np.arange(min(_SINGLE, body) + 1), far[far < body], [body]])
        )
        return cls(
            params,
            peak,
            final,
            peak * multipliers.constant(steps, warmup=warmup)[:warmup],
            np.diff(ends)[::-1].astype(np.float64),
        )

    def rates(self, heights: Array) -> LearningRates:
        """Draw straight lines between the middles of the stretches, after the warm-up."""
        ends = np.cumsum(self.width)
        body = np.interp(np.arange(int(ends[-1])), ends - 0.5 * (self.width + 1), heights)
        return LearningRates(np.concatenate([self.warm, self.peak * body]))

    def loss(self, roots: Array) -> tuple[float, Array]:
        """Return the final loss and its gradient by the roots."""
        width = np.concatenate([np.ones(len(self.warm)), self.width])
        value, slope = final_loss(
            self.params, np.concatenate([self.warm, self.peak * roots**2]), width
        )
        return value, 2 * self.peak * roots * slope[len(self.warm) :]

    def run(self, start: LearningRates, iterations: int) -> LearningRates:
        """Descend from a schedule."""
        middles = (np.cumsum(self.width) - 0.5 * (self.width + 1)).astype(np.int64)
        roots = self._nearest(np.sqrt(start.rates[len(self.warm) + middles] / self.peak))
        return self.rates(
            _descend(self.loss, roots, self.width / self.width.sum(), self._nearest, iterations)
            ** 2
        )

    def _nearest(self, roots: Array) -> Array:
        """Project onto non-increasing roots within the bounds."""
        from scipy.optimize import isotonic_regression

        nearest = isotonic_regression(roots, weights=self.width, increasing=False).x
        return np.clip(nearest, max(self.final, 1e-9) ** 0.5, 1.0)


def _descend(
    objective: _Objective,
    start: Array,
    mass: Array,
    project: Callable[[Array], Array],
    iterations: int,
) -> Array:
    """Run accelerated projected gradient with backtracking and restarts of the momentum."""
    best, best_value = start, objective(start)[0]
    ahead = start
    momentum = size = 1.0
    idle = 0
    for _ in range(iterations):
        value, slope = objective(ahead)
        trial, trial_value = ahead, value
        # Halve the step until the loss lies below its quadratic bound (Beck and Teboulle 2009).
        while size > 1e-12:
            trial = project(ahead - size * slope / mass)
            trial_value = objective(trial)[0]
            move = trial - ahead
            if trial_value <= value + slope @ move + (mass * move) @ move / (2 * size) + 1e-15:
                break
            size *= 0.5
        if trial_value >= best_value:
            # Momentum has carried the search past the valley: go on from the best point without it.
            idle += 1
            ahead, momentum = best, 1.0
            if idle > 3:
                break
            continue
        idle = idle + 1 if best_value - trial_value < 1e-9 * best_value else 0
        grown = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        ahead = project(trial + (momentum - 1) / grown * (trial - best))
        best, best_value = trial, trial_value
        momentum = grown
        size *= 1.5  # steps that were halved once may grow again
        if idle > 3:
            break
    return best
