"""Arithmetic that no finite context makes overflow, and the range that a forecast may not leave."""

from collections.abc import Callable

import numpy as np

from steelyard.errors import TraceError
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["LEVELS", "forecast_all", "forecast_each", "known_values", "reach", "within_reach"]

LEVELS = np.array([0.01, 0.05, *(level / 10 for level in range(1, 10)), 0.95, 0.99])
"""Levels of the quantiles that forecasters of this package return."""
_TINY = 1e-280
_HUGE = np.finfo(np.float64).max


def known_values(row: np.ndarray, name: str, least: int = 1) -> np.ndarray:
    """Return a context from its first observed value on.

    Args:
        row: values [T], NaN where nothing was observed.
        name: id of the series, for the message.
        least: fewest observed values that are enough.

    Returns:
        float64 [T - missing at the beginning].

    Raises:
        TraceError: fewer were observed.
    """
    known = np.isfinite(row)
    if known.sum() < least:
        raise TraceError(
            f"series {name!r} has {int(known.sum())} observed values before the forecast",
            hint=f"give a context of at least {least}",
        )
    return np.asarray(row[int(known.argmax()) :], np.float64)


def within_reach(quantiles: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Hold quantiles in the context's range, widened by its width on either side, in order.

    A forecast beyond that is an explosion of a trend or of a model, never what a series of the
    past has shown; a constant context thus has its constant as forecast.

    Args:
        quantiles: [K, H], finite or not.
        context: values of the past [T]; NaN where nothing was observed.

    Returns:
        Finite quantiles [K, H], ascending along K.
    """
    middle = 0.5 * np.nanmin(context) + 0.5 * np.nanmax(context)
    held = np.where(np.isnan(quantiles), middle, quantiles)
    return np.sort(np.clip(held, *reach(context)), axis=0)


def reach(context: np.ndarray) -> tuple[float, float]:
    """Return the range of a context, widened by its width on either side.

    Args:
        context: values of the past [T]; NaN where nothing was observed.

    Returns:
        The lowest and the highest value that a forecast may have.
    """
    low, high = np.nanmin(context), np.nanmax(context)
    width = high - low  # infinite where the range of floats is left: then nothing is cut off
    return low - width, high + width


def forecast_all(
    context: SeriesSet,
    horizon: int,
    name: str,
    forecast: Callable[[list[np.ndarray], int, np.ndarray], list[np.ndarray]],
    least: int = 1,
) -> list[SampleForecast]:
    """Forecast contexts together, each in its own unit, within its reach.

    Args:
        context: the contexts.
        horizon: steps ahead.
        name: the forecaster.
        forecast: called with the values [T] of each context over the largest of their sizes, in
            [-1, 1], from the first observed one; the horizon; and steps of a season, int64 [n].
            Returns quantiles [len(LEVELS), horizon] of each.
        least: fewest observed values.

    Returns:
        One forecast a context.

    Raises:
        TraceError: a context has too few values.
    """
    rows = [known_values(context.row(i), item, least) for i, item in enumerate(context.ids)]
    # In units of the largest value no sum or square can overflow, however large the values.
    units = [max(float(np.nanmax(np.abs(row))), _TINY) for row in rows]
    scaled = [row / unit for row, unit in zip(rows, units, strict=True)]
    seasons = np.array([context.season(i) for i in range(len(context))], np.int64)
    made = []
    with np.errstate(over="ignore", invalid="ignore"):
        found = forecast(scaled, horizon, seasons)
        parts = zip(context.ids, found, rows, scaled, units, strict=True)
        for item, quantiles, row, small, unit in parts:
            held = within_reach(quantiles, small) * unit
            # The product rounds, so the reach is held once more in the series' own unit.
            held = np.clip(within_reach(held, row), -_HUGE, _HUGE)
            made.append(SampleForecast(held, LEVELS, name, item))
    return made


def forecast_each(
    context: SeriesSet,
    horizon: int,
    name: str,
    forecast: Callable[[np.ndarray, int, int], np.ndarray],
    least: int = 1,
) -> list[SampleForecast]:
    """Forecast every context on its own; else as `forecast_all`.

    Args:
        context: the contexts.
        horizon: steps ahead.
        name: the forecaster.
        forecast: called with one context's values, the horizon and the steps of a season.
        least: fewest observed values.

    Returns:
        One forecast a context.

    Raises:
        TraceError: a context has too few values.
    """

    def one_by_one(rows: list[np.ndarray], steps: int, seasons: np.ndarray) -> list[np.ndarray]:
        pairs = zip(rows, seasons, strict=True)
        return [forecast(row, steps, int(season)) for row, season in pairs]

    return forecast_all(context, horizon, name, one_by_one, least)
