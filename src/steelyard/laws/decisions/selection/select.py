"""Choose the model that will be best after fine-tuning on all data, from a fraction of it."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import FitError, InfeasibleError, SteelyardWarning
from steelyard.laws.decisions.selection.accept_then_stop import accept_then_stop
from steelyard.laws.decisions.selection.candidates import Candidate, LossAt, Measurements
from steelyard.laws.decisions.selection.racing import (
    FULL_FIELD_RUNGS,
    KEPT_SHARE,
    error_growth,
    race,
    step_error,
)
from steelyard.laws.fitting.estimate import Estimate, tails
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.rectified import fit_rectified, fit_vanilla

__all__ = [
    "Candidate",
    "Method",
    "RankedModel",
    "Selection",
    "relative_accuracy",
    "score_correlation",
    "select_model",
]

Method = Literal["ats", "rectified", "vanilla", "subtuning", "zero_shot", "size", "halving"]

_LADDER_METHODS = ("ats", "rectified", "vanilla", "halving")
_NUM_START = 3
_THRESHOLD = 5.0
_RISE = 0.05
_BOOTSTRAPS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedModel:
    """A model's place.

    Attributes:
        name: name of the candidate.
        score: number that ranks, lower is better: expected loss, measured loss, or minus the log of
            the parameters.
        expected_loss: loss after tuning on the target with its interval; None for methods that do
            not forecast.
        max_examples: largest size it was tuned on.
        flops: compute spent on it.
    """

    name: str
    score: float
    expected_loss: Estimate | None
    max_examples: int
    flops: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Models in the order of their promise.

    Attributes:
        method: method that ranked; "subtuning" where too few sizes were left for the one asked for.
        models: models, best first; those that failed are not among them.
        failed: reason why a model was given up, by name.
        dropped: largest size a racing model was measured at before it was dropped, by name.
        flops: compute spent on all models, failed ones included.
        target_examples: number of examples of the final tuning.
        level: probability inside the intervals.
    """

    method: Method
    models: tuple[RankedModel, ...]
    failed: Mapping[str, str]
    dropped: Mapping[str, int]
    flops: float
    target_examples: int
    level: float

    @property
    def best(self) -> str:
        """Name of the chosen model."""
        return self.models[0].name

    @property
    def rank(self) -> tuple[str, ...]:
        """Names, best first."""
        return tuple(item.name for item in self.models)

    @property
    def scores(self) -> dict[str, float]:
        """Score by name; lower is better."""
        return {item.name: item.score for item in self.models}


def select_model(
    candidates: Sequence[Candidate],
    losses: LossAt,
    target_examples: int,
    *,
    method: Method = "ats",
    max_examples: int | None = None,
    min_examples: int = 200,
    budget_flops: float | None = None,
    loss_unit: Literal["per_token", "per_byte", "per_example"] = "per_token",
    force: bool = False,
    level: float = 0.8,
) -> Selection:
    """Rank models by the loss they will have after tuning on the target, from tuning them on less.

    "ats" extends the line of the power phase, "rectified" and "vanilla" fit a law with a floor,
    "subtuning" takes the loss at the largest size, "zero_shot" the loss before tuning, "size" the
    parameters, and "halving" races: all models on little data, then the promising half of the cost
    on twice as much (see `race`).

    Args:
        candidates: at least two, with different names.
        losses: `losses(name, examples)` tunes a fresh copy of a model and returns its test loss,
            NaN where it diverged; or a table by name and examples, whose own sizes are then used.
        target_examples: number of examples of the final tuning.
        method: way to rank.
        max_examples: largest size any model is tuned on; an eighth of the target when neither this
            nor a budget is given.
        min_examples: smallest size.
        budget_flops: the largest size whose ladder costs no more is chosen.
        loss_unit: unit of the losses; "per_token" ones compare only within one tokenizer.
        force: rank losses per token across tokenizers all the same.
        level: probability inside the intervals, 0..1.

    Returns:
        The ranking, with what it cost.

    Raises:
        FitError: bad candidates or sizes, losses per token across tokenizers, no loss before tuning
            for "zero_shot", or every model failed.
        InfeasibleError: the budget does not pay for the smallest ladder.

    Example:
        >>> select_model(models, tune, 100_000, method="halving").best  # doctest: +SKIP
        'facebook/opt-1.3b'

    Source: Lin et al. 2024 (arXiv 2402.02314), algorithm 1 and section 5; "halving" is ours.
    """
    named = _check(candidates, losses, target_examples, loss_unit, force)
    tails(level)
    found = Measurements(named, losses)
    sizes = _sizes(found, target_examples, max_examples, min_examples, budget_flops, method)
    if method in _LADDER_METHODS and len(sizes) <= _NUM_START:
        message = (
            f"{len(sizes)} sizes are fewer than {_NUM_START + 1}; models are ranked by "
            f"their loss at {sizes[-1]} examples"
        )
        warnings.warn(message, SteelyardWarning, stacklevel=2)
        method = "subtuning"
    dropped = _measure(found, sizes, target_examples, method, level)
    _warn_of_rises(found)
    ranked = _rank(found, target_examples, method, level)
    if not ranked:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.failed.items())
        raise FitError(
            f"no model is left to rank ({reasons})",
            hint="check the tuning: a loss of NaN is a diverged run",
        )
    return Selection(
        method=method,
        models=tuple(sorted(ranked, key=lambda item: item.score)),
        failed=dict(found.failed),
        dropped=dropped,
        flops=found.flops(),
        target_examples=target_examples,
        level=level,
    )


def relative_accuracy(chosen: str, measured: Mapping[str, float]) -> float:
    """Return (worst - chosen) / (worst - best) of the true losses; 1 is the best choice.

    Source: Lin et al. 2024 (arXiv 2402.02314), section 5.1 (RelAcc).
    """
    worst, best = max(measured.values()), min(measured.values())
    return (worst - measured[chosen]) / (worst - best) if worst > best else 1.0


def score_correlation(scores: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Return the Pearson correlation of scores and true losses; NaN for fewer than three models.

    Source: Lin et al. 2024 (arXiv 2402.02314), section 5.1 (PearCorr); its row of model size has
        the opposite sign, because it correlates the size itself.
    """
    names = [name for name in scores if name in measured]
    if len(names) < 3:
        return math.nan
    return float(
        np.corrcoef([scores[name] for name in names], [measured[name] for name in names])[0, 1]
    )


def _check(
    candidates: Sequence[Candidate], losses: LossAt, target: int, unit: str, force: bool
) -> dict[str, Candidate]:
    """Refuse candidates that cannot be compared."""
    named = {item.name: item for item in candidates}
    if len(named) < 2 or len(named) != len(candidates):
        raise FitError(
            f"{len(candidates)} candidates with {len(named)} names",
            hint="give at least two models, each name once",
        )
    if target < 1:
        raise FitError(
            f"a target of {target} examples cannot be tuned on",
            hint="give the number of examples you will have",
        )
    tokenizers = {item.tokenizer for item in candidates}
    if unit == "per_token" and len(tokenizers) > 1 and not force:
        shown = ", ".join(sorted(name or "(none given)" for name in tokenizers))
        raise FitError(
            f"losses per token of {len(tokenizers)} tokenizers do not compare: {shown}",
            hint="measure the loss per byte or per example and say loss_unit, or insist with "
            "force=True",
        )
    missing = [] if callable(losses) else [name for name in named if name not in losses]
    if missing:
        raise FitError(
            f"the table of losses lacks {', '.join(missing)}",
            hint="leave those models out of the candidates or add their rows",
        )
    return named


def _sizes(
    found: Measurements,
    target: int,
    most: int | None,
    least: int,
    budget_flops: float | None,
    method: Method,
) -> list[int]:
    """Choose the ladder of data sizes, rising."""
    if method in ("zero_shot", "size"):
        return [0]
    ceiling = most or (target if budget_flops is not None else target // 8)
    if callable(found.losses):
        ladder = [ceiling]
        while ladder[0] // 2 >= least:
            ladder.insert(0, ladder[0] // 2)
    else:
        ladder = sorted(
            {
                size
                for name in found.candidates
                for size in found.losses[name]
                if least <= size <= ceiling
            }
        )
    if not ladder or ceiling < least or ceiling > target:
        raise FitError(
            f"no data sizes between {least} and {ceiling} examples for a target of {target}",
            hint="sizes must not exceed the target; lower min_examples or raise max_examples",
        )
    if budget_flops is None:
        return ladder
    prices = [item.cost_flops for item in found.candidates.values()]
    while ladder and _planned_flops(prices, ladder, method) > budget_flops:
        ladder = (
            [size // 2 for size in ladder if size // 2 >= least]
            if callable(found.losses)
            else ladder[:-1]
        )
    if not ladder:
        raise InfeasibleError(
            f"{budget_flops:.3g} FLOP do not pay for tuning {len(prices)} models on {least} "
            f"examples",
            hint=f"{least * sum(prices):.3g} FLOP is the least; drop large models or raise the "
            f"budget",
        )
    return ladder


def _planned_flops(prices: list[float], ladder: list[int], method: Method) -> float:
    """Return what a ladder costs at most, FLOP."""
    field = sum(prices)
    if method == "subtuning":
        return field * ladder[-1]
    if method != "halving" or len(ladder) <= _NUM_START:
        return field * sum(ladder)
    full = max(len(ladder) - FULL_FIELD_RUNGS, _NUM_START)
    shares = [
        max(KEPT_SHARE ** (index + 1) * field, *prices) for index in range(len(ladder) - full)
    ]
    return field * sum(ladder[:full]) + sum(
        share * size for share, size in zip(shares, ladder[full:], strict=True)
    )


def _measure(
    found: Measurements, sizes: list[int], target: int, method: Method, level: float
) -> dict[str, int]:
    """Measure the losses a method needs; return the models that a race dropped."""
    if method == "halving":
        return race(
            found,
            sizes,
            target,
            num_start=_NUM_START,
            threshold=_THRESHOLD,
            quantile=_quantile(level),
        )
    if method == "size":
        return {}
    for size in sizes[-1:] if method == "subtuning" else sizes:
        found.measure(found.alive, size)
    unmeasured = [name for name in found.alive if not found.known.get(name)]
    if unmeasured and method == "zero_shot":
        raise FitError(
            f"no loss before tuning (0 examples) for {', '.join(unmeasured)}",
            hint="evaluate them, or choose another method",
        )
    return {}


def _rank(found: Measurements, target: int, method: Method, level: float) -> list[RankedModel]:
    """Score every model that did not fail, in no order."""
    spread = step_error(found, found.alive, _NUM_START) * _quantile(level)
    ranked = []
    for name in found.alive:
        sizes, loss = found.curve(name)
        if method == "size":
            score, expected = -math.log(found.candidates[name].parameters), None
        elif method == "zero_shot":
            score, expected = found.known[name][0], None
        elif not len(sizes) or (method != "subtuning" and len(sizes) < _NUM_START):
            found.failed[name] = f"{len(sizes)} sizes are too few for {method}"
            continue
        elif method == "subtuning":
            score, expected = float(loss[-1]), None
        else:
            expected = _forecast(sizes, loss, target, method, level, spread)
            score = expected.value
        most = int(sizes[-1]) if len(sizes) else 0
        ranked.append(
            RankedModel(
                name=name,
                score=score,
                expected_loss=expected,
                max_examples=most,
                flops=found.flops([name]),
            )
        )
    return ranked


def _forecast(
    sizes: Array, loss: Array, target: int, method: Method, level: float, spread: float
) -> Estimate:
    """Forecast one model's loss at the target by the method's law, or by the line."""
    law_fit = _fit(sizes, loss, method)
    if law_fit is not None:
        said = law_fit.predict({"examples": float(target)}, level, extrapolate=True)
        return Estimate(float(said.value[0]), float(said.low[0]), float(said.high[0]))
    phase = accept_then_stop(sizes, loss, num_start=_NUM_START, threshold=_THRESHOLD)
    center = phase.log_loss(target)
    width = math.hypot(
        spread * error_growth(sizes[-1], target), _quantile(level) * phase.residual_sd
    )
    return Estimate(math.exp(center), math.exp(center - width), math.exp(center + width))


def _fit(sizes: Array, loss: Array, method: Method) -> Fit | None:
    """Fit the law of a method; None for the line, and where the sizes are too few."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        if method == "rectified" and len(sizes) >= 6:
            return fit_rectified(sizes, loss, bootstraps=_BOOTSTRAPS)
        if method == "vanilla" and len(sizes) >= 5:
            return fit_vanilla(sizes, loss, bootstraps=_BOOTSTRAPS)
    return None


def _warn_of_rises(found: Measurements) -> None:
    """Warn of curves whose loss rises with more data."""
    rising = []
    for name in found.alive:
        loss = found.curve(name)[1]
        if len(loss) > 1 and (loss[1:] > (1 + _RISE) * loss[:-1]).any():
            rising.append(name)
    if rising:
        message = (
            f"the loss of {', '.join(rising)} rises with more data by over {_RISE:.0%}; "
            f"tune their learning rate per size"
        )
        warnings.warn(message, SteelyardWarning, stacklevel=3)


def _quantile(level: float) -> float:
    """Return the normal quantile of an interval's upper end."""
    from scipy.special import ndtri

    return float(ndtri(tails(level)[1]))
