"""What fitting a pipeline takes: passes, bytes, memory, and the time by a pilot on one part."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.pipeline.fitting import Passing, PipelineFitting, read_for
from steelyard.data.pipeline.pipeline import Pipeline
from steelyard.data.pipeline.staging import Stage, StageFold
from steelyard.data.table.budget import FoldBudget
from steelyard.data.table.row_folds import RowCountFold
from steelyard.data.table.work import scan_work
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["PipelinePlan", "PlannedPass", "plan_fit"]

_UNBOUNDED = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPass:
    """One pass over the table.

    Attributes:
        steps: places of the steps that learn in it, from 0.
        columns: columns that are read.
        num_bytes: bytes that are read.
        state_bytes: what the states of its folds take in the end.
        batch_bytes: what is held of rows at once.
        duration_s: seconds on one core, by the pilot.
    """

    steps: tuple[int, ...]
    columns: tuple[str, ...]
    num_bytes: float
    state_bytes: float
    batch_bytes: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """What fitting takes.

    Attributes:
        passes: the passes.
    """

    passes: tuple[PlannedPass, ...]

    @property
    def num_bytes(self) -> float:
        """Bytes that all passes read."""
        return sum(item.num_bytes for item in self.passes)

    @property
    def memory_bytes(self) -> float:
        """Most memory of a pass: states and rows in flight."""
        return max((item.state_bytes + item.batch_bytes for item in self.passes), default=0.0)

    @property
    def duration_s(self) -> float:
        """Seconds of all passes."""
        return sum(item.duration_s for item in self.passes)


def plan_fit(
    pipeline: Pipeline, table: "DataTable", *, memory: str | float | None = None
) -> PipelinePlan:
    """Say what fitting a pipeline would take, by fitting it on the first part of the table.

    Args:
        pipeline: the steps.
        table: training rows.
        memory: most bytes that rows and states may take; None for no bound.

    Returns:
        The plan.

    Raises:
        ConfigError: a step does not fit the columns that it meets.
        CapacityError: the budget does not hold one part of the table with the states.
        DataError: a step can learn nothing from the first part.
    """
    first = replace(table, partitions=table.partitions[:1])
    fitting = PipelineFitting(pipeline.steps, first)
    passes = []
    while (stage := fitting.next()) is not None:
        passes.append(_planned(stage, table, first, memory))
        fitting.run(stage, Passing(), lambda _: None)
    return PipelinePlan(passes=tuple(passes))


def _planned(
    stage: Stage, table: "DataTable", first: "DataTable", memory: str | float | None
) -> PlannedPass:
    """Return what one pass takes."""
    own, fold = read_for(table, stage), StageFold(stage)
    bound = parse(memory, "byte") if isinstance(memory, str) else memory
    budget = FoldBudget.of(own, [fold], bound or _UNBOUNDED)
    works = scan_work(own, is_profiled=False)
    rows = sum(work.rows for work in works)
    width = sum(getattr(item, "row_bytes", 0) for one in stage.learning for item in one.folds)
    part = read_for(first, stage).with_limits(budget.limits)
    return PlannedPass(
        steps=tuple(item.place for item in stage.learning),
        columns=tuple(name for name in own.schema.names if name in stage.reads),
        num_bytes=sum(work.num_bytes for work in works),
        state_bytes=budget.state_bytes + width * rows,
        batch_bytes=budget.read_bytes,
        duration_s=_pilot_s(part, fold) * _times(table, first),
    )


def _times(table: "DataTable", first: "DataTable") -> float:
    """Return how often the first part goes into the table."""
    whole = sum(part.num_bytes for part in table.partitions)
    return whole / max(sum(part.num_bytes for part in first.partitions), 1)


def _pilot_s(part: "DataTable", fold: StageFold) -> float:
    """Return the time of a pass over one part; what is loaded or compiled once is left out."""
    took = []
    for _ in range(4):
        began_s = time.perf_counter()
        part.fold(fold, RowCountFold())
        took.append(time.perf_counter() - began_s)
    return float(np.median(took[1:]))
