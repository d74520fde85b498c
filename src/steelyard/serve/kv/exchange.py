"""Keeps a scheduler's swaps going: starts its transfers, tells it of those that ended, decides when to wait for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from steelyard.serve.scheduling.pacing import SwapPacing

if TYPE_CHECKING:
    from steelyard.serve.kv.tiers import TieredKV
    from steelyard.serve.scheduling.scheduler import Scheduler
    from steelyard.serve.scheduling.step import StepPlan, Transfer

__all__ = ["Exchange"]


class Exchange:
    """Goes between a scheduler and its second tier.

    The engine calls `collect` before each plan, `start` when the steps planned before have run, and `wait` when nothing can run.

    Attributes:
        tiers: carries transfers out.
        waiting: "adaptive" waits for incoming requests when they are most of the batch, "never" lets steps go on meanwhile, "always"
            lets no step run while anything moves, the baseline.
        waited_s: seconds that steps were held up.
    """

    def __init__(self, scheduler: Scheduler, tiers: TieredKV, *, waiting: Literal["adaptive", "never", "always"] = "adaptive") -> None:
        """Start with nothing under way.

        Args:
            scheduler: with a swapper.
            tiers: over the pool that the scheduler's plans run on.
            waiting: when steps wait.
        """
        self.scheduler = scheduler
        self.tiers = tiers
        self.waiting = waiting
        self.waited_s = 0.0
        self.pacing = SwapPacing()
        self._coming: dict[int, tuple[int, float]] = {}

    def collect(self) -> None:
        """Tell the scheduler what ended; first wait for what comes in if that is better than a step without it."""
        self._report()
        if self.waiting == "adaptive" and self._coming:
            blocks = sum(count for count, _ in self._coming.values())
            if self.pacing.should_wait(len(self.scheduler.running), len(self._coming), blocks):
                self._wait(list(self._coming))

    def start(self, transfers: list[Transfer]) -> None:
        """Start a plan's transfers; all steps planned before must have run."""
        now_s = time.perf_counter()
        for transfer in transfers:
            if transfer.direction == "in":
                self._coming[transfer.id] = (int(transfer.runs[:, 2].sum()), now_s)
        self.tiers.submit(transfers)
        if self.waiting == "always":
            self._wait([transfer.id for transfer in transfers])

    def ran(self, plan: StepPlan, seconds: float) -> None:
        """Learn how long a step took."""
        if plan.num_tokens == plan.num_decodes:
            self.pacing.step(seconds)

    def wait(self) -> None:
        """Wait until a transfer ends; returns at once when none is under way."""
        if self.tiers.num_under_way:
            self.tiers.wait()
            self._report()

    def close(self) -> None:
        """Wait for what is under way and give the tier back."""
        self.tiers.close()

    def _wait(self, transfer_ids: list[int]) -> None:
        """Hold the next step up."""
        start = time.perf_counter()
        self.tiers.wait(transfer_ids)
        self.waited_s += time.perf_counter() - start
        self._report()

    def _report(self) -> None:
        """Tell the scheduler of transfers that ended."""
        landed = self.tiers.landed()
        for name in landed:
            if name in self._coming:
                blocks, begun_s = self._coming.pop(name)
                self.pacing.swapped(blocks, self.tiers.ended_s[name] - begun_s)
        self.scheduler.land(landed)
        failed = self.tiers.failed()
        for name in failed:
            self._coming.pop(name, None)
        self.scheduler.fail(failed)
