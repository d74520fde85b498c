"""The loop body of every engine, real or simulated: transfers, steps one ahead, results."""

import time
from collections.abc import Callable
from typing import Protocol

from steelyard.data.tiers.transfers import Tiers
from steelyard.serve.results import FinishedStep
from steelyard.serve.scheduling.scheduler import Scheduler
from steelyard.serve.scheduling.step import StepOutput, StepPlan
from steelyard.serve.scheduling.swaps.pacing import SwapPacing

__all__ = ["Clock", "Driver", "Runner", "WallClock"]


class Clock(Protocol):
    """Time as an engine sees it."""

    def now_s(self) -> float:
        """Return seconds from an arbitrary start, never falling."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Let time pass up to a moment; return at once when it is past."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return seconds from an arbitrary start."""
        return time.perf_counter()

    def wait_until(self, time_s: float) -> None:
        """Sleep up to a moment; return at once when it is past."""
        time.sleep(max(time_s - time.perf_counter(), 0.0))


class Handle(Protocol):
    """A step under way."""

    def result(self) -> StepOutput:
        """Wait for the step and return its output; a second call returns it again."""
        ...


class Runner(Protocol):
    """Executes plans in the order in which they come."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run a step and wait for it."""
        ...

    def launch(self, plan: StepPlan) -> Handle:
        """Start a step after those launched before; it reads its feedback from the one before."""
        ...


def _nobody() -> None:
    """Bring no request."""


class Driver:
    """Drives a scheduler and a runner, step by step.

    The machine's clock, a `TorchRunner` and a `TieredKV` make an engine of it; a virtual clock and
    predicted times of steps and transfers make a simulator of it (`serve.simulate`).

    Attributes:
        scheduler: the policy.
        runner: executes its plans.
        clock: time as requests see it.
        tiers: carries out transfers.
        asynchronous: whether a step is planned and launched before the results of the one before it
            are taken.
        start_s: what the clock showed at time 0 of the scheduler.
        num_steps: steps whose results were taken.

    Source: Zhu et al. 2024 (arXiv 2408.12757), section 4.2 (asynchronous scheduling).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        *,
        tiers: Tiers | None = None,
        asynchronous: bool = False,
    ) -> None:
        """Keep the parts; nothing is in flight.

        Args:
            scheduler: a fresh scheduler.
            runner: executes plans within the scheduler's limits.
            clock: time as requests see it.
            tiers: carries out transfers; None when the scheduler makes none.
            asynchronous: plan one step ahead.
        """
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.tiers = tiers or Tiers()
        self.asynchronous = asynchronous
        self.start_s = 0.0
        self.num_steps = 0
        self._flight: tuple[StepPlan, Handle] | None = None
        self._pacing = SwapPacing()
        self._coming: dict[int, int] = {}

    @property
    def is_stalled(self) -> bool:
        """Whether neither a step nor a transfer is in flight: time alone changes nothing then."""
        return self._flight is None and not self.tiers.num_under_way

    def now_s(self) -> float:
        """Return the scheduler's time."""
        return self.clock.now_s() - self.start_s

    def step(self, receive: Callable[[], None] = _nobody) -> FinishedStep | None:
        """Run one step, or launch one and take the results of the one before.

        Args:
            receive: adds the requests that came while a step ran. It is called before that step's
                results are taken, as those requests came before the step's end: a client whose next
                request is there does not count as gone.

        Returns:
            The step whose results were taken; None when there was none, as in the first call of an
            asynchronous engine or while all requests wait for transfers.
        """
        begin = self.now_s()
        # Landings come before the plan: blocks they free and requests they bring count in it.
        self._land()
        plan = self.scheduler.schedule(self.now_s())
        if plan is not None and plan.transfers:
            self._submit(plan)
        if plan is not None and not plan.num_tokens:
            plan = None  # It only started transfers; the runner has nothing to do.
        output = None
        if self.asynchronous:
            launched = (plan, self.runner.launch(plan)) if plan is not None else None
            before, self._flight = self._flight, launched
            plan, output = (before[0], before[1].result()) if before else (None, None)
        elif plan is not None:
            output = self.runner.execute(plan)
        if plan is not None and output is not None:
            receive()
            finished = self._finish(plan, output)
            self._pacing.step(self.now_s() - begin)
            return finished
        if self._flight is None:
            # Every request is away: without a wait the caller would spin until one is back.
            self.tiers.wait()
        return None

    def settle(self) -> None:
        """Wait for what is in flight; the results of a step are dropped."""
        if self._flight is not None:
            self._flight[1].result()
            self._flight = None
        while self.tiers.num_under_way:
            self.tiers.wait()
            self._land()

    def _submit(self, plan: StepPlan) -> None:
        """Start a plan's transfers."""
        # The step in flight may write blocks that leave and read blocks that are overwritten.
        if self._flight is not None:
            self._flight[1].result()
        for item in plan.transfers:
            if item.direction == "in":
                self._coming[item.id] = int(item.runs[:, 2].sum())
        self.tiers.submit(plan.transfers)

    def _land(self) -> None:
        """Tell the scheduler of transfers that ended."""
        if not self.tiers.num_under_way:
            return
        # A step reads all weights for however few sequences: when requests are about to be back, a
        # step with them is worth a short wait. Requests that leave are never waited for.
        missing = sum(self._coming.values())
        if self._pacing.should_wait(len(self.scheduler.running), len(self._coming), missing):
            self.tiers.wait(list(self._coming))
        landed, failed = self.tiers.landed(), self.tiers.failed()
        for name in landed:
            if name in self._coming:
                self._pacing.swapped(self._coming.pop(name), self.tiers.took_s[name])
        for name in failed:
            self._coming.pop(name, None)
        self.scheduler.land(landed)
        self.scheduler.fail(failed)

    def _finish(self, plan: StepPlan, output: StepOutput) -> FinishedStep:
        """Hand a step's results to the scheduler."""
        self.num_steps += 1
        # Sequences that ended while the step was in flight, by a stop or an abort, have rows too.
        dropped = {row for row, request in enumerate(plan.sampled) if request.finish_reason}
        finished = self.scheduler.complete(plan, output, self.now_s())
        return FinishedStep(plan, output, dropped, finished)
