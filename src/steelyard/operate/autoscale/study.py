"""A demand in two parts: a history that chooses the forecaster, and the time that is replayed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.operate.autoscale.config import AutoscaleConfig, scalers_of, service_of
from steelyard.operate.autoscale.demand import Demand
from steelyard.operate.autoscale.forecasting import (
    CalibratedDemand,
    DemandForecast,
    DemandForecaster,
    VirtualDeadline,
)
from steelyard.operate.autoscale.replay import ScalerRun, lead_steps, replay_all
from steelyard.operate.autoscale.scaler import Scaler
from steelyard.operate.forecast.bookkeeping import SaidSteps
from steelyard.operate.forecast.choosing import ChosenForecaster
from steelyard.operate.forecast.recent_errors import RecentErrors
from steelyard.operate.series import SeriesSet
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Latency

__all__ = ["AutoscaleStudy", "choose_forecaster", "controller_of", "run_study"]

_WINDOWS = 96
_NAME = "demand"
_FORECAST_SIGMA = 0.5
"""Spread of the time that a forecast takes, standard deviation of its logarithm."""


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
        lead_steps: steps that a decision on whole steps covers.
    """

    service: Service
    demand: NDArray[np.float64]
    step_s: float
    runs: Mapping[str, ScalerRun]
    forecaster: str
    scores: Mapping[str, float]
    history_steps: int
    lead_steps: int

    @property
    def num_fallbacks(self) -> int:
        """Forecasts that the quantiles of the last values stood in for, of the worst hit scaler."""
        return max(run.num_fallbacks for run in self.runs.values())

    def said(self, *, start_s: float = 0.0, series: str = _NAME) -> list[SaidSteps]:
        """Return what the forecasts said that scalers decided on, one for each step.

        Args:
            start_s: time of the first step of the history.
            series: id of the demand.

        Returns:
            Forecasts by the time of their first step.
        """
        made: dict[int, DemandForecast] = {}
        for run in self.runs.values():
            made |= run.forecasts
        return [
            SaidSteps.of(
                forecast, series=series, first_s=start_s + known * self.step_s, step_s=self.step_s
            )
            for known, forecast in sorted(made.items())
        ]


def choose_forecaster(
    history: NDArray[np.float64], *, step_s: float, horizon: int
) -> tuple[CalibratedDemand, dict[str, float]]:
    """Return the forecaster that was best on the end of the history, and what all scored there.

    Args:
        history: [n] demand that may be looked at.
        step_s: seconds of a step.
        horizon: steps of a forecast.

    Returns:
        The forecaster, its intervals corrected by how often they held before, and scores by name:
        quantile loss over the mean load, lower is better; none where the history is too short to
        try any.
    """
    chosen = ChosenForecaster([RecentErrors()], horizon=horizon, windows=_WINDOWS)
    chosen.fit(SeriesSet.from_arrays([history], step_s=step_s, ids=[_NAME]))
    scores = {name: report.pooled.crps for name, report in chosen.reports.items()}
    # Tables name who forecasts, not who chose.
    used = chosen.choices[_NAME].used
    made = DemandForecaster(chosen, step_s=step_s, horizon=horizon, name=used)
    return CalibratedDemand(made, history), scores


def controller_of(
    config: AutoscaleConfig, demand: Demand
) -> tuple[Service, Scaler, CalibratedDemand]:
    """Return what controls a service from the end of a record on.

    Args:
        config: the options.
        demand: the record; it sizes the service and chooses the forecaster.

    Returns:
        The service, the Bayesian scaler that decides when a step ends, and the forecaster that was
        best on the record.

    Raises:
        TraceError: the record does not size a service.
        ConfigError: an option is out of range.
    """
    service = service_of(config, demand.load)
    lead = lead_steps(service, demand.step_s)
    forecaster, _ = choose_forecaster(demand.load, step_s=demand.step_s, horizon=lead)
    return service, scalers_of(config, service, demand.step_s)["BayesianScaler"], forecaster


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
    # What sizes a replica and chooses the forecaster is the history alone: a service or a model
    # fitted on what is replayed would look better than it will be.
    history, replayed = demand[:cut], demand[cut:]
    service = service_of(config, history)
    lead = lead_steps(service, step_s)
    forecaster, scores = choose_forecaster(history, step_s=step_s, horizon=lead)
    takes = Latency.lognormal(config.forecast_time_s, _FORECAST_SIGMA)
    runs = replay_all(
        service,
        replayed,
        scalers_of(config, service, step_s, period_s=config.decide_every_s),
        step_s=step_s,
        forecaster=forecaster,
        history=history,
        within=VirtualDeadline(takes, config.forecast_deadline_s, seed=config.seed),
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
