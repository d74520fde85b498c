"""The best peak learning rate as a function of model size, training tokens and batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Derivatives, Product, Term, Transform
from steelyard.laws.forms.powers import product_form
from steelyard.laws.forms.terms import positive, real

__all__ = [
    "LEARNING_RATE_LAWS",
    "PUBLISHED_BATCH",
    "learning_rate",
]

LEARNING_RATE_LAWS = ("horizon", "size", "batch", "square", "cube", "smooth", "curved")
"""Nested laws, each with one term more than the one before."""

_AXES = ("tokens", "parameters", "batch_tokens")
_SMOOTH_TERMS = ("square", "cube", "tilt", "bend")
_PIVOT_TOKENS = 1e10
PUBLISHED_BATCH = (0.58, 0.571)
"""Best batch in tokens, coefficient x tokens^exponent, Li et al. 2025 (arXiv 2503.04715)."""


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
