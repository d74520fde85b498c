"""Arithmetic that no finite context makes overflow, and the range that a forecast may not leave."""

from collections.abc import Callable, Sequence

import numpy as np

from steelyard.errors import TraceError
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = [
    "LEVELS",
    "forecast_all",
    "forecast_each",
    "known_values",
    "quantiles_of_rows",
    "reach",
    "within_reach",
]

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


def within_reach(quantiles: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Hold quantiles in the context's range, widened by its width on either side, in order.

    A forecast beyond that is an explosion of a trend or of a model, never what a series of the
    past has shown; a constant context thus has its constant as forecast.

    Args:
        quantiles: [n, K, H], finite or not.
        low: least value of each context, [n, 1, 1].
        high: largest value of each, [n, 1, 1].

    Returns:
        Finite quantiles [n, K, H], ascending along K.
    """
    middle = 0.5 * low + 0.5 * high
    held = np.where(np.isnan(quantiles), middle, quantiles)
    return np.sort(np.clip(held, *reach(low, high)), axis=1)


def reach(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of contexts, widened by their widths on either side.

    Args:
        low: least value of each context, of any shape.
        high: largest value of each.

    Returns:
        The lowest and the highest values that a forecast may have.
    """
    width = high - low  # infinite where the range of floats is left: then nothing is cut off
    return low - width, high + width


def quantiles_of_rows(values: np.ndarray, levels: np.ndarray = LEVELS) -> np.ndarray:
    """Return linear quantiles of each row, as `numpy.nanquantile` does, all rows at once.

    Args:
        values: [n, N]; NaN counts as missing.
        levels: [K], in [0, 1].

    Returns:
        [n, K]; NaN for a row without values.
    """
    ordered = np.sort(values, axis=1)  # NaN last
    most = np.maximum(np.isfinite(values).sum(1, keepdims=True) - 1, 0)
    place = levels * most
    below = place.astype(np.int64)
    low = np.take_along_axis(ordered, below, 1)
    high = np.take_along_axis(ordered, np.minimum(below + 1, most), 1)
    return low + (place - below) * (high - low)


def forecast_all(
    context: SeriesSet,
    horizon: int,
    name: str,
    forecast: Callable[[list[np.ndarray], int, np.ndarray], Sequence[np.ndarray] | np.ndarray],
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
    if not len(context):
        return []
    rows = [known_values(context.row(i), item, least) for i, item in enumerate(context.ids)]
    ends = np.array([(np.fmin.reduce(row), np.fmax.reduce(row)) for row in rows])
    low, high = ends.T[:, :, None, None]
    # In units of the largest value no sum or square can overflow, however large the values.
    units = np.maximum(np.abs(ends).max(1), _TINY)[:, None, None]
    scaled = [row / unit for row, unit in zip(rows, units[:, 0, 0], strict=True)]
    seasons = np.array([context.season(i) for i in range(len(context))], np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        made = np.asarray(forecast(scaled, horizon, seasons), np.float64)
        held = within_reach(made, low / units, high / units) * units
        # The product rounds, so the reach is held once more in the series' own unit.
        held = np.clip(within_reach(held, low, high), -_HUGE, _HUGE)
    pairs = zip(held, context.ids, strict=True)
    return [SampleForecast(quantiles, LEVELS, name, item) for quantiles, item in pairs]


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
