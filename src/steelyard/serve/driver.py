"""Drives a scheduler and a runner, step by step: transfers, steps one ahead, results."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from steelyard.serve.results import Delta, StepResult, whole_outputs
from steelyard.serve.scheduling.swaps.pacing import SwapPacing

if TYPE_CHECKING:
    from steelyard.serve.kv.tiers import TieredKV
    from steelyard.serve.scheduling.request import Request
    from steelyard.serve.scheduling.scheduler import Scheduler
    from steelyard.serve.scheduling.step import StepOutput, StepPlan

__all__ = ["Clock", "Driver", "Runner", "WallClock"]


class Clock(Protocol):
    """Time as an engine sees it."""

    def now_s(self) -> float:
        """Seconds from an arbitrary start, never falling."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return seconds from an arbitrary start."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Handle(Protocol):
    """A step under way."""

    def result(self) -> StepOutput:
        """Wait for the step and give its output."""
        ...


class Runner(Protocol):
    """Executes plans in the order in which they are given."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run a step and wait for it."""
        ...

    def launch(self, plan: StepPlan) -> Handle:
        """Start a step after those launched before; its feedback is read from the output of the one before."""
        ...


@dataclass(frozen=True, slots=True)
class _Flight:
    """A launched step."""

    plan: StepPlan
    handle: Handle


class Driver:
    """One engine's loop body.

    Attributes:
        scheduler: the policy.
        runner: executes its plans.
        clock: time as requests see it.
        tiers: carries out transfers, or None when the scheduler makes none.
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
        tiers: TieredKV | None = None,
        asynchronous: bool = False,
    ) -> None:
        """Keep the parts; nothing is in flight.

        Args:
            scheduler: fresh.
            runner: of the scheduler's limits.
            clock: time as requests see it.
            tiers: carries out transfers.
            asynchronous: plan one step ahead.
        """
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.tiers = tiers
        self.asynchronous = asynchronous
        self.start_s = 0.0
        self.num_steps = 0
        self._flight: _Flight | None = None
        self._pacing = SwapPacing()
        self._coming: dict[int, int] = {}

    def now_s(self) -> float:
        """Return the scheduler's time."""
        return self.clock.now_s() - self.start_s

    def step(self) -> StepResult:
        """Run one step, or launch one and take the results of the one before.

        Returns:
            What the step whose results were taken brought; without a plan when there was none, as
            in the first call of an asynchronous engine or while all requests wait for transfers.
        """
        begin = self.now_s()
        self._land()
        plan = self.scheduler.schedule(self.now_s())
        if plan is not None and plan.transfers:
            self._submit(plan)
        runs = plan is not None and plan.num_tokens > 0
        if not self.asynchronous:
            result = (
                self._finish(plan, self.runner.execute(plan))
                if plan is not None and runs
                else StepResult()
            )
        else:
            launched = (
                _Flight(plan, self.runner.launch(plan)) if plan is not None and runs else None
            )
            before, self._flight = self._flight, launched
            result = self._finish(before.plan, before.handle.result()) if before else StepResult()
        if result.plan is not None:
            self._pacing.step(self.now_s() - begin)
        elif self._flight is None and self.tiers and self.tiers.num_under_way:
            self.tiers.wait()
        return result

    def settle(self) -> None:
        """Wait for what is in flight and drop its results."""
        if self._flight is not None:
            self._flight.handle.result()
            self._flight = None
        while self.tiers and self.tiers.num_under_way:
            self.tiers.wait()
            self.tiers.landed()
            self.tiers.failed()

    def _submit(self, plan: StepPlan) -> None:
        """Start a plan's transfers, after the step in flight, whose blocks they may read or write."""
        assert self.tiers is not None, "a scheduler that swaps needs tiers"
        if self._flight is not None:
            self._flight.handle.result()
        for item in plan.transfers:
            if item.direction == "in":
                self._coming[item.id] = int(item.runs[:, 2].sum())
        self.tiers.submit(plan.transfers)

    def _land(self) -> None:
        """Tell the scheduler of transfers that ended.

        First wait for those coming in when a step without them does not pay.
        """
        if self.tiers is None or not self.tiers.num_under_way:
            return
        if self._coming:
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

    def _finish(self, plan: StepPlan, output: StepOutput) -> StepResult:
        """Hand a step's results to the scheduler and say what is new."""
        self.num_steps += 1
        rows = [
            (request, token, len(request.output))
            for request, token in zip(plan.sampled, output.tokens.tolist(), strict=True)
            if not request.finish_reason
        ]
        finished = self.scheduler.complete(plan, output, self.now_s())
        deltas = [
            _news(request, before)
            for request, _, before in rows
            if request.family is None or not request.family.is_ranked
        ]
        for root in finished:
            if root.family is not None and root.family.is_ranked:
                deltas += _whole(root)
        return StepResult(
            plan=plan,
            tokens={request.id: token for request, token, _ in rows},
            deltas=deltas,
            finished=finished,
        )


def _news(request: Request, before: int) -> Delta:
    """Say what a sequence got since it had `before` output tokens."""
    reports = bool(request.logprobs)
    return Delta(
        request_id=request.root.id,
        index=request.index,
        tokens=request.output[before:],
        logprobs=request.logprobs[before:] if reports else [],
        top_logprobs=request.top_logprobs[before:] if reports else [],
        finish_reason=request.finish_reason or "",
        error=request.error,
    )


def _whole(root: Request) -> list[Delta]:
    """Say all that a request whose outputs are ranked gave."""
    return [
        Delta(
            request_id=root.id,
            index=item.index,
            tokens=item.tokens,
            logprobs=item.logprobs,
            top_logprobs=item.top_logprobs,
            finish_reason=item.finish_reason,
            error=root.error,
        )
        for item in whole_outputs(root)
    ]
