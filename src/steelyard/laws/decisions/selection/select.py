"""Choose the model that will be best after fine-tuning on all data, from a fraction of it."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.selection.candidates import Candidate, LossAt, Measurements
from steelyard.laws.decisions.selection.racing import (
    NUM_START,
    Method,
    accept_then_stop,
    error_growth,
    ladder_sizes,
    race,
    step_error,
)
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, band, normal, tails
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.rectified import fit_rectified

__all__ = [
    "Candidate",
    "Method",
    "RankedModel",
    "Selection",
    "select_model",
]

_LADDER_METHODS: tuple[Method, ...] = ("ats", "rectified", "vanilla", "halving")
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
        candidates: two candidates or more, with different names.
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
    tails(level)  # refuses a level outside 0..1 before anything is trained
    found = Measurements(_check(candidates, losses, target_examples, loss_unit, force), losses)
    sizes = ladder_sizes(found, target_examples, max_examples, min_examples, budget_flops, method)
    if method in _LADDER_METHODS and len(sizes) <= NUM_START:
        warnings.warn(
            f"{len(sizes)} sizes are fewer than {NUM_START + 1}; models are ranked by "
            f"their loss at {sizes[-1]} examples",
            SteelyardWarning,
            stacklevel=2,
        )
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


def _measure(
    found: Measurements, sizes: list[int], target: int, method: Method, level: float
) -> dict[str, int]:
    """Measure the losses a method needs; return the models that a race dropped."""
    if method == "halving":
        return race(
            found,
            sizes,
            target,
            num_start=NUM_START,
            threshold=_THRESHOLD,
            quantile=normal(level),
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
    spread = step_error(found, found.alive, NUM_START)
    ranked = []
    for name in found.alive:
        sizes, loss = found.curve(name)
        if method == "size":
            score, expected = -math.log(found.candidates[name].parameters), None
        elif method == "zero_shot":
            score, expected = found.known[name][0], None
        elif not len(sizes) or (method != "subtuning" and len(sizes) < NUM_START):
            found.failed[name] = f"{len(sizes)} sizes are too few for {method}"
            continue
        elif method == "subtuning":
            score, expected = float(loss[-1]), None
        else:
            expected = _forecast(sizes, loss, target, method, level, spread)
            score = expected.value
        ranked.append(
            RankedModel(
                name=name,
                score=score,
                expected_loss=expected,
                max_examples=int(sizes[-1]) if len(sizes) else 0,
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
        return law_fit.predict({"examples": float(target)}, level, extrapolate=True).first
    phase = accept_then_stop(sizes, loss, num_start=NUM_START, threshold=_THRESHOLD)
    noise = math.hypot(spread * error_growth(sizes[-1], target), phase.residual_sd)
    return band(np.array([[phase.log_loss(target)]]), level, noise=noise).first


def _fit(sizes: Array, loss: Array, method: Method) -> Fit | None:
    """Fit the law of a method; None for the line, and where the sizes are too few."""
    # Two sizes more than parameters are needed. Few points are the rule here, so their warning is
    # not repeated for every model.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        if method in ("rectified", "vanilla") and len(sizes) >= 5 + (method == "rectified"):
            return fit_rectified(sizes, loss, law=method, bootstrap=Bootstrap(count=_BOOTSTRAPS))
    return None


def _warn_of_rises(found: Measurements) -> None:
    """Warn of curves whose loss rises with more data."""
    curves = {name: found.curve(name)[1] for name in found.alive}
    rising = [name for name, loss in curves.items() if (loss[1:] > (1 + _RISE) * loss[:-1]).any()]
    if rising:
        warnings.warn(
            f"the loss of {', '.join(rising)} rises with more data by over {_RISE:.0%}; "
            f"tune their learning rate per size",
            SteelyardWarning,
            stacklevel=3,
        )
