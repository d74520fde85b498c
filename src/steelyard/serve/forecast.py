"""What a trace would see on this machine: the engine's steps timed, then its scheduler driven in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.serve.profile import profile
from steelyard.serve.scheduler import Scheduler
from steelyard.serve.step import StepPlan
from steelyard.serve.trace import TraceRequest, make_request
from steelyard.sim.serving import SimulatedReplay, simulate

if TYPE_CHECKING:
    from steelyard.cost.step_time import ServeStepTime
    from steelyard.serve.engine import LLM

__all__ = ["forecast_replay", "simulate_replay"]


def simulate_replay(llm: LLM, trace: list[TraceRequest], model: ServeStepTime) -> SimulatedReplay:
    """Replay a trace in virtual time with a fresh scheduler of an engine's limits.

    Args:
        llm: gives the limits; it is not run.
        trace: requests.
        model: seconds of a step from its features.

    Returns:
        The simulated replay.
    """

    def step_time_s(plan: StepPlan) -> float:
        return float(np.asarray(model.predict(plan.features()[None]))[0])

    return simulate(Scheduler(llm.config), trace, step_time_s, make_request, source=f"sim.serving, {model.source}")


def forecast_replay(llm: LLM, trace: list[TraceRequest], *, generator: np.random.Generator, limit_s: float = 20.0) -> SimulatedReplay:
    """Time an idle engine's steps, fit them, and replay the trace in virtual time.

    Args:
        llm: an idle engine.
        trace: requests.
        generator: draws the timed prompts.
        limit_s: seconds for the timing.

    Returns:
        The simulated replay.
    """
    return simulate_replay(llm, trace, profile(llm, generator=generator, limit_s=limit_s).fit())
