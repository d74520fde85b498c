"""The best peak learning rate as a function of model size, training tokens and batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.optimum import Optima
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Derivatives, Product, Term, Transform
from steelyard.laws.forms.powers import product_form
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "LEARNING_RATE_LAWS",
    "PUBLISHED_BATCH",
    "HorizonError",
    "fit_learning_rate",
    "learning_rate",
    "leave_one_horizon_out",
]

LEARNING_RATE_LAWS = ("horizon", "size", "batch", "square", "cube", "smooth", "curved")
"""Nested laws, each with one term more than the one before."""

_AXES = ("tokens", "parameters", "batch_tokens")
_SMOOTH_TERMS = ("square", "cube", "tilt", "bend")
_PIVOT_TOKENS = 1e10
PUBLISHED_BATCH = (0.58, 0.571)
"""Best batch in tokens, coefficient x tokens^exponent, Li et al. 2025 (arXiv 2503.04715)."""
_SAME_AXIS_SD = 0.03


@dataclass(frozen=True)
class _BatchCurve(Term):
    """exp(square u^2 + cube u^3 + tilt u v + bend v^2).

    u = ln(batch / best batch for the tokens) and v = ln(tokens / 1e10).
    """

    terms: tuple[str, ...]
    coefficient: float
    exponent: float

    @property
    def transforms(self) -> dict[str, Transform]:
        """The chosen terms."""
        return dict.fromkeys(self.terms, "identity")

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "batch_tokens")

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the exponent, [S, n]; see `Term.evaluate`."""
        log_tokens = np.log(inputs["tokens"])
        u = np.log(inputs["batch_tokens"]) - math.log(self.coefficient) - self.exponent * log_tokens
        v = log_tokens - math.log(_PIVOT_TOKENS)
        features = {"square": u**2, "cube": u**3, "tilt": u * v, "bend": v**2}
        slopes: Derivatives = {name: features[name] for name in self.terms}
        parts = [theta[name] * features[name] for name in self.terms]
        return sum(parts[1:], parts[0]), slopes


def learning_rate(
    kind: str = "smooth",
    coefficient: float | str = PUBLISHED_BATCH[0],
    exponent: float | str = PUBLISHED_BATCH[1],
) -> Law:
    """Best peak learning rate; the laws are nested.

    "horizon" C D^slope_tokens, "size" adds N^slope_parameters, "batch" adds B^slope_batch_tokens;
    "square", "cube" and "smooth" multiply by exp(square u^2), exp(cube u^3), exp(tilt u v);
    "curved" by exp(bend v^2). u = ln(B / best batch(D)) and v = ln(D / 1e10). The slope by tokens
    at a fixed batch changes its sign with u, which no product of powers can follow.

    Args:
        kind: one of `LEARNING_RATE_LAWS`.
        coefficient: coefficient of the best batch in tokens, coefficient x tokens^exponent,
            positive.
        exponent: exponent of the best batch.

    Returns:
        The law of a learning rate with inputs "tokens", then "parameters", then "batch_tokens", in
        tokens, 2 to 8 parameters.

    Raises:
        FitError: no such kind, or a best batch that is not positive.

    Source: Bjorck et al. 2024 (arXiv 2409.19913), the laws for one and for all model sizes; the
        defaults of the best batch from Li et al. 2025 (arXiv 2503.04715).
    """
    if kind not in LEARNING_RATE_LAWS:
        raise FitError(
            f"unknown learning-rate law {kind!r}", hint=f"known: {', '.join(LEARNING_RATE_LAWS)}"
        )
    best = (float(coefficient), float(exponent))
    if not (best[0] > 0 and math.isfinite(best[0]) and math.isfinite(best[1])):
        raise FitError(
            f"best batch {best[0]:g} x tokens^{best[1]:g}: the coefficient must be positive"
        )
    order = LEARNING_RATE_LAWS.index(kind)
    slopes = {name: real(f"slope_{name}", -4.0, 4.0, 0.0) for name in _AXES[: order + 1]}
    plane = product_form(f"learning_rate:{kind}", positive("C", -150.0, 150.0, 0.0), slopes)
    plane = replace(plane, conditions=tuple(slopes)[2:])
    extra = _SMOOTH_TERMS[: max(order - 2, 0)]
    if not extra:
        return plane
    # The published best batch is left out of the name, so that stored fits of it stay short.
    suffix = "" if best == PUBLISHED_BATCH else f":{best[0]!r}:{best[1]!r}"
    return replace(
        plane,
        name=plane.name + suffix,
        term=Product((plane.term, _BatchCurve(extra, *best))),
        parameters=(*plane.parameters, *(real(name, -4.0, 4.0, 0.0) for name in extra)),
        formula=f"{plane.formula} exp({', '.join(extra)})",
    )


def fit_learning_rate(
    optima: Optima, law: Law | None = None, *, bootstrap: Bootstrap = Bootstrap()
) -> Fit:
    """Fit a learning-rate law to the optima of a sweep, by weighted least squares of the log.

    Args:
        optima: optima of "learning_rate" by "tokens", and as the law needs "parameters" and
            "batch_tokens".
        law: law made by `learning_rate`; None for the smooth one.
        bootstrap: resampled fits.

    Returns:
        The fit.

    Raises:
        FitError: columns are missing, or there are too few cells, horizons, sizes or batches.
    """
    law, columns = law or learning_rate(), optima.columns
    if "batch_tokens" in law.inputs and "batch_tokens" in columns:
        _check_batches(columns)
    return fit(
        law,
        columns,
        optima.x,
        weights=optima.weights(),
        delta=math.inf,
        bootstrap=bootstrap,
    )


def _check_batches(columns: Mapping[str, Array]) -> None:
    """Refuse sweeps in which the batch is constant or follows the tokens."""
    log_tokens, log_batch = np.log(columns["tokens"]), np.log(columns["batch_tokens"])
    # What of the batch does not follow the tokens is all that tells their effects apart.
    own = log_batch - np.polyval(np.polyfit(log_tokens, log_batch, 1), log_tokens)
    if own.std() < _SAME_AXIS_SD:
        raise FitError(
            "batch_tokens is constant or follows tokens in every cell, so its effect cannot be "
            "told apart",
            hint='sweep several batches per training length, or fit learning_rate("size")',
        )


@dataclass(frozen=True, slots=True)
class HorizonError:
    """How well a law predicts the optima of horizons it was not fitted to.

    Attributes:
        law: name of the law.
        rms: root mean square error of ln learning rate over all cells.
        r2: explained share of the variance of ln learning rate.
        num_parameters: number of free parameters.
    """

    law: str
    rms: float
    r2: float
    num_parameters: int


def leave_one_horizon_out(optima: Optima, laws: Sequence[Law]) -> tuple[HorizonError, ...]:
    """Compare laws by predicting each horizon from the others.

    Args:
        optima: optima of "learning_rate", with at least three different "tokens".
        laws: laws made by `learning_rate`.

    Returns:
        Errors, the best law first.

    Raises:
        FitError: fewer than three horizons, or too few cells without one of them.
    """
    columns = optima.columns
    horizons = np.unique(columns["tokens"])
    if len(horizons) < 3:
        raise FitError(
            f"{len(horizons)} training lengths cannot be left out in turn",
            hint="sweep at least three, each a factor 2 apart",
        )
    goal = np.log(columns[optima.x])
    found = []
    for law in laws:
        error = np.empty(len(optima))
        for horizon in horizons:
            held = columns["tokens"] == horizon
            known = fit_learning_rate(optima.where(~held), law, bootstrap=Bootstrap(count=0))
            inputs = {name: columns[name][held] for name in law.inputs}
            error[held] = goal[held] - law.predict(known.theta[None], inputs)[0]
        r2 = 1 - float((error**2).sum() / ((goal - goal.mean()) ** 2).sum())
        found.append(
            HorizonError(law.name, float(np.sqrt((error**2).mean())), r2, len(law.parameters))
        )
    return tuple(sorted(found, key=lambda item: item.rms))
