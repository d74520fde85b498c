"""One step of training in time, with the cost model's closed forms beside the simulation."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.layout import Layout
from steelyard.cost.step import StepCost, training_step
from steelyard.sim.step.stragglers import Stragglers
from steelyard.sim.step.timeline import StepTimeline
from steelyard.sim.step.training import TrainingStep

__all__ = ["StepReport", "closed_form", "other_schedules", "plan_timeline"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What a simulated step shows, and what the closed forms say.

    Attributes:
        timeline: when each task of one pipeline replica ran.
        idle: share of the step in which each rank runs no kernel, [pipeline].
        activation_bytes: most bytes of activations that each rank holds, [pipeline].
        path_s: seconds of each operation on the path that sets the step's time.
        cost: the same step by closed forms, which know neither contention nor stragglers.
        mfu: model FLOP utilization of the simulated step; what sliding windows skip is not counted.
        straggling_s: mean seconds of the step where some machines are slow, None if not asked for.
    """

    timeline: StepTimeline
    idle: Array
    activation_bytes: Array
    path_s: dict[str, float]
    cost: StepCost
    mfu: float
    straggling_s: float | None = None

    @property
    def time_s(self) -> float:
        """Seconds of the simulated step."""
        return self.timeline.time_s

    @property
    def closed_idle(self) -> float:
        """Share of the step in which the busiest rank runs no kernel, by closed forms."""
        return float((self.cost.bubble_s + self.cost.data_s) / self.cost.time_s)


def plan_timeline(step: TrainingStep, stragglers: Stragglers | None = None) -> StepReport:
    """Simulate a step, and evaluate the closed forms for the same layout.

    Args:
        step: model, machine and layout.
        stragglers: slow machines, none when not given.

    Returns:
        Both.

    Raises:
        ConfigError: the schedule cannot be made of so many micro-batches, ranks and chunks.
    """
    timeline = step.simulate()
    durations = timeline.finish_s - timeline.start_s
    path: Counter[str] = Counter()
    for place in timeline.critical_path():
        path[timeline.graph.tasks[place].op] += durations[place]
    cost = closed_form(step)
    return StepReport(
        timeline=timeline,
        idle=timeline.bubble_fraction(),
        activation_bytes=timeline.peak_bytes(step.times().size_bytes),
        path_s={op: float(value) for op, value in path.most_common() if value},
        cost=cost,
        mfu=step.mfu(timeline.time_s),
        straggling_s=step.mean_straggling_s(stragglers) if stragglers else None,
    )


def closed_form(step: TrainingStep) -> StepCost:
    """Evaluate the closed forms for a step's layout.

    Args:
        step: model, machine and layout.

    Returns:
        The cost of the step.
    """
    recompute: Literal["full", "none"] = "full" if step.recompute else "none"
    layout = Layout(
        data=step.data,
        tensor=step.tensor,
        pipeline=step.pipeline,
        virtual_stages=step.num_chunks,
        schedule=step.schedule,
        # What the simulated step does: replicas share optimizer states, tensor groups the sequence.
        zero_stage=1,
        sequence_parallel=True,
        recompute=recompute,
    )
    return training_step(
        step.arch,
        machine=step.machine,
        micro_batch=step.micro_batch,
        sequence_length=step.sequence_length,
        accumulation=step.num_micro_batches,
        layout=layout,
        # A parallel block's two halves share one gather and one reduction.
        reductions=1.0 if step.parallel_block else 2.0,
    )


def other_schedules(step: TrainingStep) -> dict[str, float]:
    """Return the seconds of the same step under each schedule that it could have instead."""
    # Several chunks per rank exist in the interleaved schedule alone; one rank has no order.
    names = ("gpipe", "1f1b", "zero-bubble") if step.pipeline > 1 and step.num_chunks == 1 else ()
    return {
        name: replace(step, schedule=name).simulate().time_s
        for name in names
        if name != step.schedule
    }
