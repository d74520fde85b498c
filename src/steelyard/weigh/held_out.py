"""The largest model of a study, forecast from the others: what its law is worth."""

from collections.abc import Sequence

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import ensemble
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.train.result import TrainResult
from steelyard.train.study import CellOutcome

__all__ = ["best_points", "forecast_largest"]


def best_points(outcomes: Sequence[CellOutcome]) -> list[TrainResult]:
    """Return one result per size and length: that of the best learning rate.

    Args:
        outcomes: cells of a study; those without a result are left out.

    Returns:
        Results; of several seeds each one at the rate with the lowest mean loss.
    """
    by_rate: dict[tuple[int, int], dict[float, list[TrainResult]]] = {}
    for item in outcomes:
        if item.result is not None:
            key = (item.result.parameters, item.result.tokens)
            rates = by_rate.setdefault(key, {})
            rates.setdefault(item.cell.config.learning_rate, []).append(item.result)
    return [result for rates in by_rate.values() for result in min(rates.values(), key=_mean_loss)]


def _mean_loss(results: list[TrainResult]) -> float:
    """Return the mean held-out loss."""
    return float(np.mean([item.eval_loss for item in results]))


def forecast_largest(results: Sequence[TrainResult]) -> Check | None:
    """Forecast the longest run of the largest model from all smaller models.

    Args:
        results: annealed runs of one study.

    Returns:
        The loss that was forecast beside the measured one; None where the smaller models are too
        few for a law.
    """
    largest = max((item.parameters for item in results), default=0)
    seen = [item for item in results if item.parameters < largest]
    points = {
        "parameters": np.array([float(item.parameters) for item in seen]),
        "tokens": np.array([float(item.tokens) for item in seen]),
    }
    losses = np.array([item.eval_loss for item in seen])
    longest = max((item.tokens for item in results if item.parameters == largest), default=0)
    kept = [item for item in results if (item.parameters, item.tokens) == (largest, longest)]
    if len({item.parameters for item in seen}) < 2:
        return None
    try:
        said = ensemble(points, losses).predict({"parameters": largest, "tokens": longest})
    except FitError:
        return None
    measured = [item.eval_loss for item in kept]
    return Check(
        Forecast(
            quantity="eval.loss",
            value=float(said.value[0]),
            low=float(said.low[0]),
            high=float(said.high[0]),
            provenance="fitted",
            source=f"{len(seen)} runs of {len({item.parameters for item in seen})} smaller models",
        ),
        Measurement(
            quantity="eval.loss",
            value=float(np.mean(measured)),
            spread=float(np.std(measured)),
            count=len(measured),
        ),
    )
