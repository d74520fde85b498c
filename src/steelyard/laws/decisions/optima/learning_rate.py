"""The learning rate to run with, from a fitted law or from another training length."""

import math
import warnings
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.optima.penalty import LEARNING_RATE_PENALTY, Penalty
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.quantiles import normal
from steelyard.laws.forms.learning_rate import PUBLISHED_BATCH

__all__ = ["LearningRate", "RateTransfer", "recommend_learning_rate", "transfer_learning_rate"]

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
    if not all(
        0 < number < math.inf for number in (learning_rate, tokens_from, tokens_to, batch_tokens)
    ):
        raise FitError("learning rate, tokens and batch must be positive and finite")
    if fitted is not None:
        return _transfer_by_fit(fitted, learning_rate, (tokens_from, tokens_to), batch_tokens)
    best = PUBLISHED_BATCH[0] * min(tokens_from, tokens_to) ** PUBLISHED_BATCH[1]
    is_valid = batch_tokens <= best
    if not is_valid:
        message = (
            f"a batch of {batch_tokens:g} tokens is above the best one for the shorter training, "
            f"about {best:.2g}: there the best learning "
            "rate rises with training length, and the rule of thumb is wrong; fit a law with the "
            "batch in it"
        )
        warnings.warn(message, SteelyardWarning, stacklevel=2)
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
