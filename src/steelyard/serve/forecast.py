"""Forecasts of a trace on this machine, from its engine's limits and a model of its steps."""

import math
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.quantity import Forecast
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.scheduling.step import StepPlan
from steelyard.serve.simulate import SimulatedReplay, simulate
from steelyard.serve.traces import TraceRequest

__all__ = ["StepTimes", "forecast_replay", "simulate_replay"]

_DRIFT = 0.15
"""How far a machine's speed moves between two measurements some seconds apart; assumed, seen up to
twice that on shared hosts."""
_LEAST = 0.01
"""Least half-width of an interval, as a share of the value: of a throughput that follows the
arrivals, faster and slower steps leave hardly any. Chosen together with the least drift."""


class StepTimes(Protocol):
    """Predicts the seconds of steps: `cost.ServeStepTime`, fitted, or `cost.EngineStepTime`."""

    @property
    def relative_spread(self) -> float:
        """Relative error that is expected of a step."""
        ...

    @property
    def source(self) -> str:
        """What it was made from."""
        ...

    def predict(self, features: ArrayLike) -> NDArray[np.float64]:
        """Return the seconds [...] of steps with features [..., 7]."""
        ...

    def scaled(self, factor: float) -> Self:
        """Return the same model with every step `factor` times as long."""
        ...


def simulate_replay(llm: LLM, trace: list[TraceRequest], model: StepTimes) -> SimulatedReplay:
    """Replay a trace in virtual time with a fresh scheduler of an engine's limits.

    Args:
        llm: the engine whose limits hold; it is not run.
        trace: requests by arrival.
        model: predicts the seconds of a step from its features.

    Returns:
        The simulated replay.
    """

    def step_time_s(plan: StepPlan) -> float:
        return float(np.asarray(model.predict(plan.features()[None]))[0])

    return simulate(
        Scheduler(llm.config),
        trace,
        step_time_s,
        source=f"serve.simulate, {model.source}",
        asynchronous=llm.driver.asynchronous,
    )


def forecast_replay(
    llm: LLM,
    trace: list[TraceRequest],
    model: StepTimes,
    *,
    drift: float = _DRIFT,
    slo: tuple[float, float] | None = None,
) -> list[Forecast]:
    """Forecast every serving quantity of a trace, each with an interval of its own.

    The trace is replayed at the model's step times, and at times that are faster and slower by the
    scatter of its fit and the drift of the machine. Queues amplify such errors and a steady
    arrival rate absorbs them.

    Args:
        llm: the engine whose limits hold; it is not run.
        trace: requests by arrival.
        model: predicts the seconds of a step from its features.
        drift: how far the machine's speed moves until the replay, as a fraction; assumed unless
            given, measured by `StepSamples.drift`.
        slo: longest time to the first token and longest mean time per further token, seconds;
            with it the share of requests that keep both is forecast too.

    Returns:
        Forecasts of provenance "simulated"; their 80 % interval is at least 1 % either way, that
        of a share at least one request.
    """
    width = 1 + math.hypot(model.relative_spread, drift)
    middle = simulate_replay(llm, trace, model)
    slower = [simulate_replay(llm, trace, model.scaled(factor)) for factor in (1 / width, width)]
    values, *ends = (_quantities(replay, slo) for replay in (middle, *slower))
    # A request whose time lies at its limit falls on either side: shares move by whole requests.
    one = 1 / len(trace)
    found = []
    for name, value in values.items():
        low = min(value / (1 + _LEAST), *(end[name] for end in ends))
        high = max(value * (1 + _LEAST), *(end[name] for end in ends))
        if name == "serve.slo_attainment":
            low, high = max(min(low, value - one), 0.0), min(max(high, value + one), 1.0)
        found.append(
            Forecast(
                quantity=name,
                value=value,
                low=low,
                high=high,
                provenance="simulated",
                source=middle.source,
            )
        )
    return found


def _quantities(replay: SimulatedReplay, slo: tuple[float, float] | None) -> dict[str, float]:
    """Return what is forecast of a replay."""
    found = replay.summary()
    if slo:
        found["serve.slo_attainment"] = float(replay.timeline.within(*slo).mean())
    return found
