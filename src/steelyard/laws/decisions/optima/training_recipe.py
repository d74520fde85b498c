"""The best batch and learning rate of a run, from one sweep and in one call."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.horizons import (
    HorizonError,
    fit_learning_rate,
    leave_one_horizon_out,
)
from steelyard.laws.decisions.optima.learning_rate import (
    LEARNING_RATE_PENALTY,
    LearningRate,
    Penalty,
    recommend_learning_rate,
)
from steelyard.laws.decisions.optima.optimum import Optima, optima
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.forms.learning_rate import LEARNING_RATE_LAWS, learning_rate
from steelyard.laws.forms.named import law_named

__all__ = ["TrainingRecipe", "best_batch", "recipe_for"]

_CELL = ("parameters", "tokens", "batch_tokens")
_NEAR_SIZE = math.log(4.0)
"""Sizes further off say little about where a run diverges."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRecipe:
    """Batch and learning rate of a run.

    Attributes:
        parameters: model size.
        tokens: tokens of the whole training.
        batch_tokens: best tokens per step, with its interval.
        learning_rate: peak learning rate at that batch, and what it risks.
        law: law of the learning rate that foretold the sweep's training lengths best.
        errors: how well each law foretold the lengths it was not fitted to, the best first.
        num_cells: cells of the sweep with an optimum.
        refused: cells without one, with the reason.
    """

    parameters: float
    tokens: float
    batch_tokens: Estimate
    learning_rate: LearningRate
    law: str
    errors: tuple[HorizonError, ...]
    num_cells: int
    refused: tuple[tuple[dict[str, float], str], ...]


def best_batch(cells: Optima, *, bootstrap: Bootstrap | None = None) -> Fit:
    """Fit the batch of least loss, learning rate tuned, as a power of tokens.

    Args:
        cells: optima of "learning_rate" by parameters, tokens and batch_tokens.
        bootstrap: resampled fits.

    Returns:
        The fit of "batch_law:tokens".

    Raises:
        FitError: no training length has a best batch inside its sweep, or too few have.
    """
    best = optima(cells.columns, "batch_tokens", "least", ("parameters", "tokens"))
    return fit(
        law_named("batch_law:tokens"),
        best.columns,
        "batch_tokens",
        weights=best.weights(),
        delta=math.inf,
        bootstrap=bootstrap or Bootstrap(),
    )


def recipe_for(
    sweep: Mapping[str, ArrayLike],
    parameters: float,
    tokens: float,
    *,
    target: str = "loss",
    penalty: Penalty = LEARNING_RATE_PENALTY,
    level: float = 0.8,
    bootstrap: Bootstrap | None = None,
    extrapolate: bool = False,
) -> TrainingRecipe:
    """Recommend batch and learning rate of a run from a sweep of both over sizes and lengths.

    The best learning rate of each cell, then the best batch of each size and length at its best
    rate, then the batch as a power of tokens, then the law of the learning rate about that batch
    which foretells left-out training lengths best.

    Args:
        sweep: columns "parameters", "tokens", "batch_tokens", "learning_rate" and the target, one
            run per row.
        parameters: model size, counted as in the sweep.
        tokens: tokens of the whole training.
        target: column with the loss.
        penalty: what learning rates too low and too high cost.
        level: probability inside the intervals.
        bootstrap: resampled fits.
        extrapolate: allow a run more than two decades beyond the sweep, or a batch beyond the swept
            ones.

    Returns:
        Batch and learning rate with intervals, and how well the law behind them did.

    Raises:
        FitError: a column is missing, the sweep is too small to tell the effects apart, or the run
            lies too far out.

    Source: Bjorck et al. 2024 (arXiv 2409.19913) for the law by tokens; its dependence on the batch
        from the sweep of Li et al. 2025 (arXiv 2503.04715).
    """
    if not (0 < parameters < math.inf and 0 < tokens < math.inf):
        raise FitError(
            f"parameters {parameters:g} and tokens {tokens:g} must be positive and finite"
        )
    cells = optima(sweep, "learning_rate", target, _CELL)
    law = best_batch(cells, bootstrap=bootstrap)
    said = law.predict({"tokens": tokens}, level, extrapolate=extrapolate).first
    center = (law.params["c"], law.params["q"])
    errors = leave_one_horizon_out(
        cells, [learning_rate(kind, *center) for kind in LEARNING_RATE_LAWS]
    )
    fitted = fit_learning_rate(cells, law_named(errors[0].law), bootstrap=bootstrap or Bootstrap())
    return TrainingRecipe(
        parameters=float(parameters),
        tokens=float(tokens),
        batch_tokens=said,
        learning_rate=recommend_learning_rate(
            fitted,
            parameters,
            tokens,
            said.value,
            penalty=penalty,
            stable_to=_stable_to(cells, parameters),
            level=level,
            extrapolate=extrapolate,
        ),
        law=errors[0].law,
        errors=errors,
        num_cells=len(cells),
        refused=cells.refused,
    )


def _stable_to(cells: Optima, parameters: float) -> float:
    """Return the learning rate beyond which runs of about the size diverged; infinite for none."""
    known = np.array([item.stable_to for item in cells.found], dtype=np.float64)
    is_near = np.abs(np.log(cells.cells["parameters"] / parameters)) <= _NEAR_SIZE
    return float(np.min(known, initial=math.inf, where=is_near))
