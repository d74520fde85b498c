"""The learning rate to run with, and the cost of a wrong one."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.estimate import normal
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.points import check_positive
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.learning_rate import PUBLISHED_BATCH

__all__ = [
    "LEARNING_RATE_PENALTY",
    "LearningRate",
    "Penalty",
    "RateTransfer",
    "fit_penalty",
    "recommend_learning_rate",
    "transfer_learning_rate",
]

_NEAR, _FAR = math.log(1.6), math.log(2.6)
_FEWEST_A_SIDE = 2


@dataclass(frozen=True, slots=True)
class Penalty:
    """Relative rise of the loss beside the optimum.

    Below x ln(ratio)^2 for settings too low, above x ln(ratio)^2 for too high.

    Attributes:
        below: positive, relative loss per squared factor e.
        above: positive, relative loss per squared factor e.
    """

    below: float
    above: float

    def __post_init__(self) -> None:
        """Refuse sides that do not rise."""
        check_positive(penalty_below=self.below, penalty_above=self.above)

    def at(self, ratio: ArrayLike) -> Array:
        """Return the relative rise of the loss at `ratio` times the optimum, [n]; 0 at ratio 1."""
        log = np.log(np.asarray(ratio, dtype=np.float64))
        return np.where(log < 0, self.below, self.above) * log**2

    @property
    def quantile(self) -> float:
        """Quantile of a log-normal belief about the optimum with the least expected penalty.

        It lies below .5 when the side above is steeper. It does not depend on how wide the belief
        is, because both sides are quadratic.
        """
        from scipy.special import ndtr

        return float(ndtr(self.shift))

    @property
    def shift(self) -> float:
        """Distance to keep from the middle of the belief, in its standard deviations."""
        from scipy.optimize import brentq

        return brentq(self._slope, -40.0, 40.0)  # pyright: ignore[reportReturnType]

    def expected(self, log_sd: float, shift: float | None = None) -> float:
        """Return the expected relative rise of the loss.

        Args:
            log_sd: standard deviation of the log of the optimum, not negative.
            shift: place of the setting, in standard deviations from the middle; None for the
                best place.

        Returns:
            A fraction of the loss; 0 when the optimum is known exactly.
        """
        from scipy.special import ndtr

        place = self.shift if shift is None else shift
        # Mean squares of a standard normal belief beyond the place, on its either side.
        density = math.exp(-0.5 * place**2) / math.sqrt(2 * math.pi)
        low = (1 + place**2) * float(ndtr(-place)) - place * density
        return log_sd**2 * (self.below * low + self.above * (1 + place**2 - low))

    def _slope(self, place: float) -> float:
        """Return half the derivative of the expected penalty by the place."""
        from scipy.special import ndtr

        density = math.exp(-0.5 * place**2) / math.sqrt(2 * math.pi)
        too_low, too_high = density - place * ndtr(-place), density + place * ndtr(place)
        return float(self.above * too_high - self.below * too_low)


def fit_penalty(ratios: ArrayLike, rises: ArrayLike) -> Penalty:
    """Measure both sides of the penalty from runs beside known optima.

    Only runs between a factor 1.6 and 2.6 from the optimum take part: nearer ones show noise,
    farther ones rise faster than quadratically. The median keeps a diverging cell from deciding.

    Args:
        ratios: setting over the optimum of its cell, positive, [n].
        rises: relative rise of the loss over the least one of its cell, [n].

    Returns:
        The penalty: per side the median of rise / ln(ratio)^2.

    Raises:
        FitError: a side has fewer than two such runs, or does not rise.
    """
    log, rise = np.log(np.asarray(ratios, dtype=np.float64)), np.asarray(rises, dtype=np.float64)
    used = (np.abs(log) >= _NEAR) & (np.abs(log) <= _FAR) & np.isfinite(rise)
    sides = [used & (log < 0), used & (log > 0)]
    if min(side.sum() for side in sides) < _FEWEST_A_SIDE:
        raise FitError(
            f"a penalty needs runs on both sides of the optimum, given {sides[0].sum()} below and "
            f"{sides[1].sum()} above",
            hint="add runs at half and at twice the best setting",
        )
    return Penalty(*(float(np.median(rise[side] / log[side] ** 2)) for side in sides))


LEARNING_RATE_PENALTY = Penalty(below=0.0034 / math.log(2) ** 2, above=0.0080 / math.log(2) ** 2)
"""Half and twice the best run's learning rate: +.34 % and +.80 % loss, medians of 15 dense cells of
Li et al. 2025 (arXiv 2503.04715).  Beside the optimum of a local quadratic instead of the best run
the sides are nearer to each other, about +.4 % and +.6 %. """


_RULE_OF_THUMB = 0.32
_BEYOND_BATCH = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """A learning rate to run with.

    Attributes:
        value: recommended peak learning rate: below the likeliest optimum, because too high costs
            more than too low.
        optimum: likeliest best learning rate.
        low: lower end of the optimum's interval.
        high: upper end.
        level: probability inside.
        quantile: quantile of the belief about the optimum that `value` is, 0..1.
        expected_penalty: expected relative rise of the loss over that at the true optimum, a
            fraction.
        is_capped: whether the stability edge, not the penalty, set the value.
        distance: how far the run lies outside the fitted cells, in factors of e.
    """

    value: float
    optimum: float
    low: float
    high: float
    level: float
    quantile: float
    expected_penalty: float
    is_capped: bool
    distance: float


def recommend_learning_rate(
    fitted: Fit,
    parameters: float,
    tokens: float,
    batch_tokens: float,
    *,
    penalty: Penalty = LEARNING_RATE_PENALTY,
    stable_to: float = math.inf,
    level: float = 0.8,
    extrapolate: bool = False,
) -> LearningRate:
    """Recommend the learning rate of a run.

    Args:
        fitted: fit of a law of `learning_rate`.
        parameters: model size, counted as in the fitted cells.
        tokens: tokens of the whole training run.
        batch_tokens: tokens per step.
        penalty: what too low and too high cost.
        stable_to: largest learning rate seen to be stable, such as the least `Optimum.stable_to` of
            near cells.
        level: probability inside the interval, 0..1.
        extrapolate: allow runs more than two decades beyond the fitted cells.

    Returns:
        The recommendation with interval and expected penalty.

    Raises:
        FitError: the fit is of another law, or the run lies too far out.

    Source: expected asymmetric quadratic loss, minimized exactly: the value is an expectile of the
        belief.
    """
    from scipy.special import ndtr

    _refuse_other_law(fitted)
    if not stable_to > 0:
        raise FitError(
            f"stable_to {stable_to:g} must be positive", hint="leave it out when no run diverged"
        )
    inputs = {"parameters": parameters, "tokens": tokens, "batch_tokens": batch_tokens}
    said = fitted.predict(inputs, level, extrapolate=extrapolate).first
    if not extrapolate:
        _refuse_batch(fitted, batch_tokens)
    sd = max(math.log(said.high / said.low) / (2 * normal(level)), 1e-12)
    wanted = said.value * math.exp(penalty.shift * sd)
    value = min(wanted, stable_to)
    # The stability edge may have moved the value; its quantile and penalty are those of the place
    # it really has in the belief.
    place = math.log(value / said.value) / sd
    return LearningRate(
        value=value,
        optimum=said.value,
        low=said.low,
        high=said.high,
        level=level,
        quantile=float(ndtr(place)),
        expected_penalty=penalty.expected(sd, place),
        is_capped=value < wanted,
        distance=float(fitted.distance(inputs)[0]),
    )


def _refuse_batch(fitted: Fit, batch_tokens: float) -> None:
    """Refuse a batch outside the swept ones."""
    # The smooth terms are polynomials of the batch, which bend away right behind the last one, so
    # two decades, which other inputs may lie beyond the points, would be far too much.
    swept = fitted.inputs.get("batch_tokens")
    if (
        swept is not None
        and not swept.min() / _BEYOND_BATCH <= batch_tokens <= swept.max() * _BEYOND_BATCH
    ):
        raise FitError(
            f"a batch of {batch_tokens:g} tokens lies beyond the swept {swept.min():g} to "
            f"{swept.max():g} by more than {_BEYOND_BATCH:g}x",
            hint="sweep nearer to it, or pass extrapolate=True",
        )


@dataclass(frozen=True, slots=True)
class RateTransfer:
    """A learning rate carried from one training length to another.

    Attributes:
        value: learning rate for the other length.
        beta: exponent used: value = given x (tokens from / tokens to)^beta.
        is_rule_of_thumb: whether beta is the published .32, not fitted.
        is_valid: whether the rule of thumb may be used: the batch is at most the best one for the
            shorter training; always true with a fit.
    """

    value: float
    beta: float
    is_rule_of_thumb: bool
    is_valid: bool


def transfer_learning_rate(
    learning_rate: float,
    tokens_from: float,
    tokens_to: float,
    batch_tokens: float,
    *,
    fitted: Fit | None = None,
) -> RateTransfer:
    """Carry a good learning rate from one training length to another at the same batch.

    Args:
        learning_rate: best learning rate at `tokens_from`.
        tokens_from: training tokens it was found at.
        tokens_to: training tokens of the other run.
        batch_tokens: tokens per step of both.
        fitted: fit of a law of `learning_rate`; None for the rule of thumb, beta = .32.

    Returns:
        The learning rate with the exponent used. The rule of thumb warns above the best batch of
        the shorter training, where published sweeps show the optimum rising with training length.

    Raises:
        FitError: a number is not positive, or the fit is of another law.

    Source: Bjorck et al. 2024 (arXiv 2409.19913); limits of the rule from the sweep of Li et al.
        2025 (arXiv 2503.04715).
    """
    check_positive(
        learning_rate=learning_rate,
        tokens_from=tokens_from,
        tokens_to=tokens_to,
        batch_tokens=batch_tokens,
    )
    if fitted is not None:
        return _transfer_by_fit(fitted, learning_rate, (tokens_from, tokens_to), batch_tokens)
    best = PUBLISHED_BATCH[0] * min(tokens_from, tokens_to) ** PUBLISHED_BATCH[1]
    is_valid = batch_tokens <= best
    if not is_valid:
        warnings.warn(
            f"a batch of {batch_tokens:g} tokens is above the best one for the shorter training, "
            f"about {best:.2g}: there the best learning "
            "rate rises with training length, and the rule of thumb is wrong; fit a law with the "
            "batch in it",
            SteelyardWarning,
            stacklevel=2,
        )
    return RateTransfer(
        learning_rate * (tokens_from / tokens_to) ** _RULE_OF_THUMB, _RULE_OF_THUMB, True, is_valid
    )


def _transfer_by_fit(
    fitted: Fit, learning_rate: float, tokens: tuple[float, float], batch_tokens: float
) -> RateTransfer:
    """Change the learning rate as the fitted law does."""
    _refuse_other_law(fitted)
    # Model size cancels, because it enters these laws as a factor; any size will do.
    inputs = {
        "parameters": np.ones(2),
        "tokens": np.array(tokens),
        "batch_tokens": np.full(2, batch_tokens),
    }
    logs = fitted.law.predict(fitted.theta[None], inputs)[0]
    change = float(logs[1] - logs[0])
    beta = -change / math.log(tokens[1] / tokens[0]) if tokens[0] != tokens[1] else 0.0
    return RateTransfer(learning_rate * math.exp(change), beta, False, True)


def _refuse_other_law(fitted: Fit) -> None:
    """Refuse a fit that says nothing about learning rates."""
    if "slope_tokens" not in fitted.law.term.transforms:
        raise FitError(
            f"law {fitted.law.name} is not a learning-rate law",
            hint="fit one with fit_learning_rate",
        )
