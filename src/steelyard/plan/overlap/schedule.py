"""A schedule of overlapping pieces: when each runs, with which share, and what that gains."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.plan.overlap.nano import NanoOperation
from steelyard.plan.overlap.operations import OperationGraph
from steelyard.sim.step.timeline import StepTimeline
from steelyard.sim.taskgraph.tasks import GraphTask, TaskGraph

__all__ = ["OverlapSchedule"]


@dataclass(frozen=True, kw_only=True)
class OverlapSchedule:
    """What `search` chose.

    Attributes:
        graph: the layer with the rewrites that were taken.
        cuts: tokens at which each operation is cut.
        pieces: pieces of the layers shown, layer by layer.
        start_s: start of each in seconds, [n].
        end_s: end of each in seconds, [n].
        shares: share of the device of each, [n].
        layers: layers shown.
        iteration_s: seconds of all layers of the graph.
        sequential_s: the same with whole operations one after the other.
        split_s: the same with the schedule's pieces one after the other; those of the best schedule
            where none is taken.
        searched_s: the best schedule's seconds, also where it is not taken.
        is_overlapped: whether operations overlap; otherwise whole ones run one after the other.
        why: why it is taken or not, a sentence.
    """

    graph: OperationGraph
    cuts: dict[str, tuple[int, ...]]
    pieces: tuple[NanoOperation, ...]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    shares: NDArray[np.float64]
    layers: int
    iteration_s: float
    sequential_s: float
    split_s: float
    searched_s: float
    is_overlapped: bool
    why: str

    @property
    def gain(self) -> float:
        """Sequential over scheduled time; 1 where nothing overlaps."""
        return self.sequential_s / self.iteration_s

    @property
    def split_gain(self) -> float:
        """Sequential time over that of the pieces without overlap, below 1 where cutting costs."""
        return self.sequential_s / self.split_s

    @property
    def resources(self) -> tuple[str, ...]:
        """Resources in the order in which they are first used."""
        return tuple(dict.fromkeys(item.operation.resource for item in self.pieces))

    def busy(self, resource: str) -> float:
        """Return the share of the time shown in which a resource works.

        Args:
            resource: one of `resources`.

        Returns:
            Fraction of the time from the first start to the last end.
        """
        own = [item.operation.resource == resource for item in self.pieces]
        return float((self.end_s - self.start_s)[own].sum() / self.end_s.max())

    def timeline(self) -> StepTimeline:
        """Return the layers shown as a timeline of one device with a stream per resource.

        `sim.step.lanes_chart` draws it, `sim.step.write_chrome_trace` writes it.
        """
        tasks = tuple(
            GraphTask(
                op=item.operation.name,
                kind="compute",
                device=0,
                stream=item.operation.resource,
                deps=item.after,
                stage=item.layer,
                micro_batch=item.first // self.graph.unit,
            )
            for item in self.pieces
        )
        graph = TaskGraph(tasks=tasks, num_devices=1, name="overlapped layers")
        return StepTimeline(graph=graph, start_s=self.start_s, finish_s=self.end_s)
