"""An engine in virtual time: its driver and scheduler, with predictions in place of its machine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steelyard.data.tiers.transfers import Tiers, Transfer
from steelyard.serve.driver import Driver
from steelyard.serve.replay import drive_replay
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.scheduling.step import StepOutput, StepPlan
from steelyard.serve.traces import make_request as forced_request
from steelyard.sim.loop import EventLoop
from steelyard.sim.timeline import Timeline

__all__ = [
    "AssumedDrafter",
    "ModelRunner",
    "ModelTiers",
    "SimulatedReplay",
    "VirtualClock",
    "simulate",
]


class VirtualClock:
    """Time that passes only where something waits.

    Attributes:
        loop: the events of this time; they run when a wait reaches them.
    """

    def __init__(self, loop: EventLoop | None = None) -> None:
        """Start where the loop stands.

        Args:
            loop: an event loop, shared with whatever else happens in this time; a fresh one by
                default.
        """
        self.loop = loop or EventLoop()

    def now_s(self) -> float:
        """Return seconds since time 0 of the loop."""
        return self.loop.now_s

    def wait_until(self, time_s: float) -> None:
        """Let time pass up to a moment and run its events; return at once when it is past."""
        if time_s > self.loop.now_s:
            # A loop's time is that of its latest event, so the end of the wait has to be one.
            self.loop.at(time_s, _nothing)
            self.loop.run(until_s=time_s)


def _nothing() -> None:
    """Mark a moment."""


@dataclass(frozen=True, slots=True)
class _ModelStep:
    """A step that ends at a time known in advance."""

    clock: VirtualClock
    end_s: float
    plan: StepPlan

    def result(self) -> StepOutput:
        """Let time pass to the step's end and return tokens that are all 0."""
        self.clock.wait_until(self.end_s)
        return self.plan.blank_output()


class ModelRunner:
    """Executes no plan, but lets the time pass that it would take.

    Attributes:
        step_s: predicted seconds of each step so far.
    """

    def __init__(self, clock: VirtualClock, step_time_s: Callable[[StepPlan], float]) -> None:
        """Start idle.

        Args:
            clock: time that steps let pass.
            step_time_s: predicts the seconds of a step from its plan.
        """
        self.step_s: list[float] = []
        self._clock = clock
        self._step_time_s = step_time_s
        self._free_s = 0.0

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run a step and wait for it."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> _ModelStep:
        """Start a step after those launched before."""
        seconds = float(self._step_time_s(plan))
        self.step_s.append(seconds)
        self._free_s = max(self._free_s, self._clock.now_s()) + seconds
        return _ModelStep(self._clock, self._free_s, plan)


class ModelTiers(Tiers):
    """Moves nothing, but lets the time pass that each transfer would take.

    Transfers run beside steps and do not slow each other.

    Attributes:
        took_s: predicted seconds of each transfer of the latest `landed`.
    """

    def __init__(self, clock: VirtualClock, transfer_time_s: Callable[[Transfer], float]) -> None:
        """Start with nothing under way.

        Args:
            clock: time that waits let pass.
            transfer_time_s: predicts the seconds of a transfer.
        """
        super().__init__()
        self._clock = clock
        self._transfer_time_s = transfer_time_s
        self._under_way: dict[int, tuple[float, float]] = {}

    @property
    def num_under_way(self) -> int:
        """Transfers submitted and not yet reported by `landed`."""
        return len(self._under_way)

    def submit(self, transfers: Iterable[Transfer]) -> None:
        """Start transfers."""
        now_s = self._clock.now_s()
        for transfer in transfers:
            seconds = float(self._transfer_time_s(transfer))
            self._under_way[transfer.id] = (now_s + seconds, seconds)

    def landed(self) -> list[int]:
        """Return the transfers that are done, each once, in the order in which they ended."""
        now_s = self._clock.now_s()
        ended = [name for name, (end_s, _) in self._under_way.items() if end_s <= now_s]
        ended.sort(key=lambda name: self._under_way[name][0])
        self.took_s = {name: self._under_way.pop(name)[1] for name in ended}
        return ended

    def wait(self, transfer_ids: Iterable[int] | None = None) -> None:
        """Let time pass until transfers are done.

        Args:
            transfer_ids: the transfers to wait for; None for the first of those under way.
        """
        names = self._under_way if transfer_ids is None else transfer_ids
        ends = [self._under_way[name][0] for name in names if name in self._under_way]
        if ends:
            self._clock.wait_until(min(ends) if transfer_ids is None else max(ends))


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedReplay:
    """What a trace would see.

    Attributes:
        timeline: times of requests and steps.
        plans: the steps' plans, in order.
        source: the step-time model, for the forecasts.
    """

    timeline: Timeline
    plans: list[StepPlan]
    source: str

    def summary(self) -> dict[str, float]:
        """Return the mean of each serving quantity."""
        return self.timeline.summary()


def simulate(
    scheduler: Scheduler,
    trace: Iterable[Any],
    step_time_s: Callable[[StepPlan], float],
    make_request: Callable[[Any, int], Request] = forced_request,
    *,
    transfer_time_s: Callable[[Transfer], float] = lambda _: 0.0,
    source: str = "serve.simulate",
    asynchronous: bool = False,
) -> SimulatedReplay:
    """Replay a trace in virtual time with the driver and the scheduler of an engine.

    Every step takes what the cost model says; each sampled token is 0, so output lengths must be
    forced by the trace.

    Args:
        scheduler: a fresh scheduler; it is driven to the end.
        trace: `TraceRequest`s, or what `make_request` takes.
        step_time_s: predicts the seconds of a step from its plan.
        make_request: turns a trace item and its row into the scheduler's request.
        transfer_time_s: predicts the seconds of a transfer between the tiers; transfers run beside
            steps and do not slow each other.
        source: name of the step-time model.
        asynchronous: plan each step when the one before it starts, as an asynchronous engine does.

    Returns:
        Times, steps and plans of the replay.

    Raises:
        TraceError: the trace is empty.
        CapacityError: the scheduler stopped with requests unfinished.
    """
    requests = [make_request(item, row) for row, item in enumerate(trace)]
    clock = VirtualClock()
    runner = ModelRunner(clock, step_time_s)
    tiers = ModelTiers(clock, transfer_time_s)
    driver = Driver(scheduler, runner, clock, tiers=tiers, asynchronous=asynchronous)
    replay = drive_replay(driver, requests)
    driver.settle()
    # The replay's own step times are differences of clock readings; these lack their rounding.
    timeline = replace(replay.timeline, step_s=np.array(runner.step_s))
    return SimulatedReplay(timeline=timeline, plans=replay.plans, source=source)


class AssumedDrafter:
    """Guesses that are right with an assumed probability, in a simulation whose tokens are all 0.

    Attributes:
        kind: "assumed".
        longest: most tokens it guesses for a sequence at once.
        round_s: seconds that one more token for all sequences takes.
        spent_s: 0, as no time passes while a step is planned.
    """

    kind = "assumed"
    spent_s = 0.0

    def __init__(
        self,
        acceptance: float,
        generator: np.random.Generator,
        *,
        longest: int = 15,
        round_s: float = 0.0,
    ) -> None:
        """Take the assumption.

        Args:
            acceptance: probability that a guess is right when all before it are.
            generator: source of the draws.
            longest: most tokens to guess for a sequence at once.
            round_s: seconds that one more token for all sequences takes; they count in the choice
                and pass with no step, so a step-time model has to add them.
        """
        self.longest = longest
        self.round_s = round_s
        self._acceptance = acceptance
        self._generator = generator

    def draft(self, requests: list[Request], lengths: list[int]) -> list[list[int]]:
        """Guess 0 where the guess is to be right, else 1."""
        del requests
        draws = [self._generator.random(length) for length in lengths]
        return [(item >= self._acceptance).astype(int).tolist() for item in draws]
