"""Rolling evaluation: what a forecaster's windows at the end of every series scored."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError, TraceError
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.sample_forecast import CRPS_LEVELS, SampleForecast, pinball
from steelyard.operate.series import SeriesSet

__all__ = ["ForecastReport", "PastWindows", "SeriesScore", "evaluate", "scored"]

_EXACT = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesScore:
    """How the windows of one series, or of all pooled, were forecast.

    Attributes:
        crps: mean quantile loss over the levels .1 to .9, doubled and divided by the sum of |y|;
            dimensionless, lower is better.
        nd: sum of |y - median| over the sum of |y|.
        smape: mean of 2 |y - median| / (|y| + |median|), 0 to 2.
        mase: mean |y - median| over the mean absolute one-season difference of the context.
        coverage: share of observed steps inside the 80 % interval.
        steps: observed steps that were scored.
        windows: windows that were scored.
    """

    crps: float
    nd: float
    smape: float
    mase: float
    coverage: float
    steps: int
    windows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastReport:
    """Scores of one forecaster on one set.

    Attributes:
        forecaster: its name.
        horizon: steps of each forecast.
        series: scores by series id.
        pooled: scores over all windows of all series.
        seconds_per_window: wall time of forecasting over windows.
    """

    forecaster: str
    horizon: int
    series: Mapping[str, SeriesScore]
    pooled: SeriesScore
    seconds_per_window: float

    def crps_ratio(self, other: "ForecastReport") -> tuple[float, int]:
        """Compare with another forecaster on the same windows.

        Args:
            other: its report.

        Returns:
            Geometric mean over series of this one's CRPS over the other's, and on how many series
            it is lower. A CRPS below 1e-5 counts as 1e-5: such a forecast is exact.
        """
        own = np.array([item.crps for item in self.series.values()])
        their = np.array([other.series[name].crps for name in self.series])
        # A series that hardly ever changes has scores of 0; below the floor nobody cares.
        own, their = np.maximum(own, _EXACT), np.maximum(their, _EXACT)
        return float(np.exp(np.mean(np.log(own / their)))), int((own < their).sum())


@dataclass(frozen=True, slots=True)
class PastWindows:
    """Windows of the past, each with what was known before it and what came in it.

    Attributes:
        context: what was known, a row a window; the windows of a series follow one another.
        rows: the series of each window, int64 [n].
        actual: what came in each, [n, horizon]; NaN where nothing was observed.
        stride: steps from one window of a series to the next.
    """

    context: SeriesSet
    rows: np.ndarray
    actual: np.ndarray
    stride: int

    @property
    def overlap(self) -> int:
        """How many windows of a series before one still hold steps of it."""
        return -(-self.actual.shape[1] // self.stride) - 1

    @classmethod
    def of(
        cls,
        series: SeriesSet,
        horizon: int,
        windows: int,
        stride: int,
        *,
        context_steps: int = 0,
    ) -> "PastWindows":
        """Cut the last windows of every series, as `evaluate` scores them.

        Args:
            series: the series; every one needs values before its first window.
            horizon: steps of each window.
            windows: windows a series; the last one ends at its end.
            stride: steps from one window to the next.
            context_steps: most steps of context; 0 for all there are.

        Returns:
            The windows.

        Raises:
            ConfigError: a count is below 1.
            TraceError: a series is too short.
        """
        if min(horizon, windows, stride) < 1:
            raise ConfigError(
                f"horizon {horizon}, windows {windows}, stride {stride}",
                hint="give 1 or more of each",
            )
        rows, ends = _window_ends(series, horizon, windows, stride)
        starts = ends - context_steps if context_steps else np.zeros_like(ends)
        pairs = zip(rows, ends, strict=True)
        actual = np.array([series.row(row)[end : end + horizon] for row, end in pairs], np.float64)
        context = series.cut(rows, starts, ends)
        return cls(context, rows, actual.reshape(len(rows), horizon), stride)


def evaluate(
    forecaster: Forecaster,
    series: SeriesSet,
    horizon: int,
    windows: int,
    stride: int,
    *,
    context_steps: int = 0,
) -> ForecastReport:
    """Forecast the last windows of every series, each from what was known before it.

    Args:
        forecaster: fitted on nothing that lies in these windows.
        series: the series; every one needs values before its first window.
        horizon: steps of each forecast.
        windows: windows a series; the last one ends at its end.
        stride: steps from one window to the next.
        context_steps: most steps of context; 0 for all there are.

    Returns:
        Scores by series and pooled; all but the seconds are equal at every call.

    Raises:
        ConfigError: a count is below 1.
        TraceError: a series is too short, or none of its steps were observed.
    """
    past = PastWindows.of(series, horizon, windows, stride, context_steps=context_steps)
    begin = time.perf_counter()
    forecasts = forecaster.predict(past.context, horizon)
    took_s = time.perf_counter() - begin
    return scored(forecaster.name, forecasts, series, past, took_s)


def scored(
    name: str,
    forecasts: Sequence[SampleForecast],
    series: SeriesSet,
    past: PastWindows,
    seconds: float = float("nan"),
) -> ForecastReport:
    """Score forecasts of windows.

    Args:
        name: the forecaster.
        forecasts: one a window.
        series: the series that the windows are of.
        past: the windows, equally many of every series.
        seconds: what all the forecasts took.

    Returns:
        Scores by series and pooled.

    Raises:
        TraceError: none of a series' steps were observed.
    """
    parts = [
        _window_sums(item, past.actual[place], past.context.row(place), past.context.season(place))
        for place, item in enumerate(forecasts)
    ]
    table = np.array(parts).reshape(len(series), len(forecasts) // len(series), -1)
    return ForecastReport(
        forecaster=name,
        horizon=past.actual.shape[1],
        series={
            item: _score(rows, len(rows), item)
            for item, rows in zip(series.ids, table, strict=True)
        },
        pooled=_score(table.reshape(-1, table.shape[-1]), len(forecasts), "all"),
        seconds_per_window=seconds / len(forecasts),
    )


def _window_ends(
    series: SeriesSet, horizon: int, windows: int, stride: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the series of each window and the step at which its context ends."""
    back = horizon + stride * np.arange(windows - 1, -1, -1)
    short = np.flatnonzero(series.lengths - back[0] < 2)
    if len(short):
        name = series.ids[short[0]]
        raise TraceError(
            f"series {name!r} has {series.lengths[short[0]]} values, too few for {windows} windows "
            f"of {horizon} steps",
            hint=f"give at least {back[0] + 2} values, or ask for fewer windows",
        )
    rows = np.repeat(np.arange(len(series)), windows)
    return rows, (series.lengths[:, None] - back).reshape(-1)


def _window_sums(
    forecast: SampleForecast, actual: np.ndarray, context: np.ndarray, season: int
) -> tuple[float, ...]:
    """Sum up one window: loss, |y|, errors, relative errors, scaled errors, covered, steps."""
    came = np.isfinite(actual)
    target = actual[came]
    quantiles = forecast.quantile(CRPS_LEVELS)[:, came]
    median, low, high = quantiles[len(CRPS_LEVELS) // 2], quantiles[0], quantiles[-1]
    loss = 2 * pinball(target, quantiles, np.array(CRPS_LEVELS)).mean(axis=0).sum()
    error = np.abs(target - median)
    size = np.abs(target) + np.abs(median)
    relative = np.divide(2 * error, size, out=np.zeros_like(error), where=size > 0)
    past = np.asarray(context, np.float64)
    lag = season if len(past) > season else 1
    usual = np.nanmean(np.abs(past[lag:] - past[:-lag])) if len(past) > lag else np.nan
    scaled = error.sum() / usual if usual > 0 else np.nan
    inside = ((low <= target) & (target <= high)).sum()
    return (loss, np.abs(target).sum(), error.sum(), relative.sum(), scaled, inside, len(target))


def _score(sums: np.ndarray, windows: int, name: str) -> SeriesScore:
    """Make the scores of windows' sums [W, 7]."""
    loss, level, error, relative, _, inside, steps = sums.sum(axis=0)
    if steps == 0:
        raise TraceError(
            f"series {name!r} has no observed step in its last {windows} windows",
            hint="leave it out, or ask for more windows",
        )
    scaled = sums[:, 4]
    known = np.isfinite(scaled)
    # A series that is 0 throughout is scored on its own unit instead of relative to 0.
    level = level or 1.0
    return SeriesScore(
        crps=float(loss / level),
        nd=float(error / level),
        smape=float(relative / steps),
        mase=float(scaled[known].sum() / sums[known, 6].sum()) if known.any() else float("nan"),
        coverage=float(inside / steps),
        steps=int(steps),
        windows=windows,
    )
