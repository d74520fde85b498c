"""Weights of a mean of quantiles: those that would have lost least, drawn to a prior."""

import numpy as np

from steelyard.operate.forecast.bounds import LEVELS

__all__ = ["learned_weights"]

_ROUNDS = 30
_STEP = 2.0
_STEEPEST = 5.0
_EXACT = 1e-3
_CALM = 0.1
_SCORED = slice(2, -2)
"""The levels .1 to .9, over which the CRPS is a mean."""


def learned_weights(
    said: np.ndarray, actual: np.ndarray, prior: np.ndarray, pull: float
) -> np.ndarray:
    """Return the weights whose mean of quantiles had the least quantile loss, drawn to a prior.

    What is minimized is the loss over that of the best part, a mean of windows that count alike,
    plus `pull` times the weights' divergence from the prior. So on these windows the weights lose
    at most `1 + pull * ln(1 / p)` times what the best part lost, if its prior weight is p.

    Args:
        said: quantiles of each part at `LEVELS`, [parts, windows, K, H].
        actual: what came, [windows, H]; NaN where nothing came.
        prior: weight of each part before anything was seen, [parts], above 0, summing to 1.
        pull: how strongly weights are drawn to the prior, in (0, 0.5).

    Returns:
        Weights [parts], summing to 1; the prior where nothing came or no part ever erred.

    Source: Kivinen and Warmuth 1997, "Exponentiated Gradient versus Gradient Descent for Linear
        Predictors" (Information and Computation 132-1), section 3; Berrisch and Ziel 2021 (arXiv
        2102.00968), section 2.2: the gradient of the combination's own quantile loss.
    """
    levels = LEVELS[_SCORED]
    errors, came = _errors(said[:, :, _SCORED], actual)
    slopes = levels[:, None]
    losses = np.maximum(-slopes * errors, (1 - slopes) * errors).mean((2, 3))  # [parts, windows]
    usual = np.median(losses, axis=0)
    if not usual.any():
        return prior
    # Windows count alike: one of ten times the level would else decide alone. The second part
    # keeps a window in which nothing happened from counting without end.
    unit = usual + _CALM * usual.mean()
    best = max(float((losses / unit).mean(1).min()), _EXACT)
    points = np.moveaxis(errors / (best * unit)[None, :, None, None], 2, 3)[:, came]
    count = points.shape[1]
    points = points.reshape(len(prior), -1)
    drawn = weights = np.log(prior)
    kept = np.zeros_like(prior)
    for turn in range(_ROUNDS):
        shares = np.exp(weights)
        over = (shares @ points > 0).reshape(count, -1) - levels
        slope = points @ over.reshape(-1) / over.size
        # A part that erred a hundredfold would else be thrown out too far to be drawn back.
        slope = np.clip(slope - slope @ shares, -_STEEPEST, _STEEPEST)
        weights = (1 - _STEP * pull) * weights + _STEP * (pull * drawn - slope)
        weights -= np.logaddexp.reduce(weights)
        # Steps of constant size circle around the minimum; the mean of the later ones is nearer.
        if turn >= _ROUNDS // 2:
            kept += shares
    return kept / kept.sum()


def _errors(said: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what parts said less what came [parts, windows, K, H], and which steps came."""
    came = np.isfinite(actual)
    # In units of the largest value no difference overflows, however large the values.
    size = max(float(np.abs(said).max()), float(np.abs(actual).max(where=came, initial=0.0)))
    size = size or 1.0
    errors = said / size - (actual / size)[None, :, None, :]
    return np.where(came[None, :, None, :], errors, 0.0), came
