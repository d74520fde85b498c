"""Forecasters that know their error: simple rules, models, and what they scored.

Every one of them is a `Forecaster`: `fit` on a `SeriesSet`, `predict` for a batch of contexts; each
answer is a `SampleForecast`. `evaluate` scores any of them on rolling windows.
"""

from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.evaluation import ForecastReport, SeriesScore, evaluate
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.levels import Levels
from steelyard.operate.forecast.sample_forecast import CRPS_LEVELS, SampleForecast, pinball
from steelyard.operate.forecast.simple import (
    RecentQuantiles,
    SeasonalNaive,
    SeasonalProfile,
)

__all__ = [
    "CRPS_LEVELS",
    "LEVELS",
    "ForecastReport",
    "Forecaster",
    "Levels",
    "RecentQuantiles",
    "SampleForecast",
    "SeasonalNaive",
    "SeasonalProfile",
    "SeriesScore",
    "evaluate",
    "pinball",
]
