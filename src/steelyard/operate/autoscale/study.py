"""A demand in two parts: a history that chooses the forecaster, and the time that is replayed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.operate.autoscale.config import AutoscaleConfig, scalers_of, service_of
from steelyard.operate.autoscale.replay import ScalerRun, lead_steps, replay_all
from steelyard.operate.autoscale.scaler import DemandForecast
from steelyard.operate.forecast import Forecaster
from steelyard.operate.forecast.choosing import ChosenForecaster
from steelyard.operate.forecast.recent_errors import RecentErrors
from steelyard.operate.series import SeriesSet
from steelyard.sim.autoscale import Service

__all__ = ["AutoscaleStudy", "DemandForecaster", "choose_forecaster", "run_study", "usable_demand"]

_FEWEST = 48
_WINDOWS = 96
_NAME = "demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleStudy:
    """What each scaler would have done.

    Attributes:
        service: the service.
        demand: [n] load of each step that was replayed.
        step_s: seconds of a step.
        runs: runs by name; "best fixed" and "oracle" come last.
        forecaster: name of the forecaster.
        scores: its error and that of the others on the history: mean quantile loss over the mean
            load, by name.
        history_steps: steps that were known before.
        lead_steps: steps that a decision covers.
    """

    service: Service
    demand: NDArray[np.float64]
    step_s: float
    runs: Mapping[str, ScalerRun]
    forecaster: str
    scores: Mapping[str, float]
    history_steps: int
    lead_steps: int


class DemandForecaster:
    """Lets a forecaster of series forecast a demand that grows step by step."""

    def __init__(
        self, forecaster: Forecaster, *, step_s: float, horizon: int, name: str = ""
    ) -> None:
        """Keep what every forecast needs.

        Args:
            forecaster: fitted, or without parameters.
            step_s: seconds of a step.
            horizon: steps to forecast.
            name: what tables call it; the forecaster's own name when empty.
        """
        self.forecaster, self.step_s, self.horizon = forecaster, step_s, horizon
        self.name = name or forecaster.name

    def __call__(self, demand: NDArray[np.float64]) -> DemandForecast:
        """Return the forecast of the steps behind a demand."""
        context = SeriesSet.from_arrays([demand], step_s=self.step_s, ids=[_NAME])
        return self.forecaster.predict(context, self.horizon)[0]


def usable_demand(series: SeriesSet, index: int = 0) -> NDArray[np.float64]:
    """Return a series as a demand: holes take the value before them.

    Args:
        series: the series.
        index: which of them.

    Returns:
        [n] values of 0 or more.

    Raises:
        TraceError: it is too short, begins with a hole, or goes below 0.
    """
    values = np.asarray(series.row(index), dtype=np.float64)
    name = series.ids[index]
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < _FEWEST:
        raise TraceError(
            f"series {name!r} has {len(known)} observed values, but {_FEWEST} are needed",
            hint="give a longer record",
        )
    low = np.flatnonzero(values < 0)
    if len(low):
        raise TraceError(
            f"series {name!r} is {values[low[0]]} in row {low[0] + 1}, but a load is never below 0",
            hint="difference counters first",
        )
    values = values[known[0] :]
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return values[last]


def choose_forecaster(
    history: NDArray[np.float64], *, step_s: float, horizon: int
) -> tuple[DemandForecaster, dict[str, float]]:
    """Return the forecaster that was best on the end of the history, and what all scored there.

    Args:
        history: [n] demand that may be looked at.
        step_s: seconds of a step.
        horizon: steps of a forecast.

    Returns:
        The forecaster, and scores by name: quantile loss over the mean load, lower is better; none
        where the history is too short to try any.
    """
    chosen = ChosenForecaster([RecentErrors()], horizon=horizon, windows=_WINDOWS)
    chosen.fit(SeriesSet.from_arrays([history], step_s=step_s, ids=[_NAME]))
    scores = {name: report.pooled.crps for name, report in chosen.reports.items()}
    used = chosen.choices[_NAME].used
    return DemandForecaster(chosen, step_s=step_s, horizon=horizon, name=used), scores


def run_study(
    demand: NDArray[np.float64], config: AutoscaleConfig, *, step_s: float
) -> AutoscaleStudy:
    """Replay every scaler on the later part of a demand.

    Args:
        demand: [n] load of each step; the first `config.history_share` of it is the history.
        config: the options.
        step_s: seconds of a step.

    Returns:
        All runs with their regret.

    Raises:
        TraceError: the demand is too short.
        ConfigError: an option is out of range.
    """
    cut = round(len(demand) * config.history_share)
    if min(cut, len(demand) - cut) < 2:
        raise TraceError(f"{len(demand)} steps do not make a history and a replay")
    history, replayed = demand[:cut], demand[cut:]
    service = service_of(config, history)
    lead = lead_steps(service, step_s)
    forecaster, scores = choose_forecaster(history, step_s=step_s, horizon=lead)
    runs = replay_all(
        service,
        replayed,
        scalers_of(config, service, step_s),
        step_s=step_s,
        forecaster=forecaster,
        history=history,
        seed=config.seed,
    )
    return AutoscaleStudy(
        service=service,
        demand=replayed,
        step_s=step_s,
        runs=runs,
        forecaster=forecaster.name,
        scores=scores,
        history_steps=cut,
        lead_steps=lead,
    )
