"""The largest model of a study, forecast from the others: what its law is worth."""

import math
from collections.abc import Sequence

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import ensemble
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.train.result import TrainResult
from steelyard.train.study import CellOutcome

__all__ = ["best_points", "forecast_largest"]

_Z_80 = 1.2816
"""Half-width of an 80 % interval of a normal distribution, in standard deviations."""


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

    Runs of one model and seed share their first part, and what it drew: the forms that are fitted
    cannot see it. Where there are several seeds, their scatter is carried to the largest model and
    joins the interval.

    Args:
        results: annealed runs of one study.

    Returns:
        The loss that was forecast beside the measured one; None where the smaller models are too
        few for a law.
    """
    largest = max((item.parameters for item in results), default=0)
    seen = [item for item in results if item.parameters < largest]
    columns = ("parameters", "tokens")
    points = {name: np.array([float(getattr(item, name)) for item in seen]) for name in columns}
    losses = np.array([item.eval_loss for item in seen])
    longest = max((item.tokens for item in results if item.parameters == largest), default=0)
    kept = [item for item in results if (item.parameters, item.tokens) == (largest, longest)]
    sizes = {item.parameters for item in seen}
    if len(sizes) < 2:
        return None
    try:
        said = ensemble(points, losses).predict({"parameters": largest, "tokens": longest})
    except FitError:
        return None
    measured = [item.eval_loss for item in kept]
    value, scatter = float(said.value[0]), _carried_scatter(seen, largest, len(kept))
    below, above = (
        math.hypot(math.log(float(end[0]) / value), _Z_80 * scatter)
        for end in (said.low, said.high)
    )
    words = f"{len(seen)} runs of {len(sizes)} smaller models"
    words += f", seeds {scatter:.1%} apart there" if scatter else ", scatter of seeds unknown"
    return Check(
        Forecast(
            quantity="eval.loss",
            value=value,
            low=value * math.exp(-below),
            high=value * math.exp(above),
            provenance="fitted",
            source=words,
        ),
        Measurement(
            quantity="eval.loss",
            value=float(np.mean(measured)),
            spread=float(np.std(measured)),
            count=len(measured),
        ),
    )


def _carried_scatter(seen: Sequence[TrainResult], largest: int, repeats: int) -> float:
    """Return the deviation of ln loss that seeds cause at the largest model; 0 for one seed."""
    by_cell: dict[tuple[int, int], list[float]] = {}
    for item in seen:
        by_cell.setdefault((item.parameters, item.tokens), []).append(math.log(item.eval_loss))
    seeds = min(len(logs) for logs in by_cell.values())
    if seeds < 2:
        return 0.0
    variance = float(np.mean([np.var(logs, ddof=1) for logs in by_cell.values()]))
    # A line through the sizes' means weighs each by these shares at the largest model.
    places = np.log(np.array(sorted({size for size, _ in by_cell}), dtype=np.float64))
    off = places - places.mean()
    shares = 1 / len(places) + off * (math.log(largest) - places.mean()) / float(off @ off)
    return math.sqrt(variance * (float(shares @ shares) / seeds + 1 / max(repeats, 1)))
