"""The largest model of a study, forecast from the others: what its law is worth."""

import math
from collections.abc import Sequence

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import ensemble
from steelyard.quantity import Z80, Check, Forecast, Measurement
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

    Runs of one model and seed share their first part, and what it drew: the forms that are fitted
    cannot see it. Where there are several seeds, their scatter is carried to the largest model, and
    the interval is no narrower than that.

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
    # The forms' own interval allows for usual scatter; it is widened where there is more of it.
    below, above = (
        max(abs(math.log(float(end[0]) / value)), Z80 * scatter) for end in (said.low, said.high)
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
    by_cell: dict[tuple[int, int], dict[int, float]] = {}
    for item in seen:
        cell = by_cell.setdefault((item.parameters, item.tokens), {})
        cell[item.seed] = math.log(item.eval_loss)
    seeds = {item.seed for item in seen}
    cells = [cell for cell in by_cell.values() if set(cell) == seeds]
    if len(seeds) < 2 or not cells:
        return 0.0
    logs = np.array([[cell[seed] for seed in seeds] for cell in cells])
    # What a seed shifts in all cells, such as by its data, it shifts at the largest model too.
    off_cell = logs - logs.mean(axis=1, keepdims=True)
    variance = float(np.var(off_cell - off_cell.mean(axis=0), axis=1).mean())
    variance *= len(seeds) / (len(seeds) - 1)
    # A line through the sizes' means weighs each by these shares at the largest model.
    places = np.log(np.array(sorted({size for size, _ in by_cell}), dtype=np.float64))
    off = places - places.mean()
    shares = 1 / len(places) + off * (math.log(largest) - places.mean()) / float(off @ off)
    return math.sqrt(variance * (float(shares @ shares) / len(seeds) + 1 / max(repeats, 1)))
