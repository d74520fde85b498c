"""The terms of each rank's step, simulated: what it works, what it waits for, and for whom."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.step.longest_path import replica_times
from steelyard.sim.step.training import Links, TrainingStep
from steelyard.sim.taskgraph.tasks import GraphTask, TaskGraph

__all__ = ["TERMS", "StepModel", "StepTerms", "WorkFactors"]

Array = NDArray[np.float64]

TERMS = {
    "compute_s": "kernels of the passes",
    "tensor_s": "tensor-parallel traffic",
    "bubble_s": "waiting for other stages",
    "data_s": "gathers and all-reduces of replicas",
    "load_s": "waiting for data",
    "update_s": "optimizer update",
}
"""Exclusive parts of a rank's step; with what is left over they add up to the step."""

_WAITS = {"gather": "data_s", "scatter": "data_s", "load": "load_s"}
"""What a device waits for when it waits for such a task; stages for all others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFactors:
    """How much longer work lasts than forecast; arrays [data, pipeline] or what broadcasts to it.

    Attributes:
        compute: factor of the kernels of passes.
        tensor: factor of exposed tensor-parallel traffic.
        update: factor of the optimizer's update.
        load_s: seconds that a rank waits for data at the begin of a step.
        data_extra_s: [pipeline] seconds that each stage's gradients take longer over the replicas.
        transfer: factor of the transfers between stages.
    """

    compute: Array | float = 1.0
    tensor: Array | float = 1.0
    update: Array | float = 1.0
    load_s: Array | float = 0.0
    data_extra_s: Array | float = 0.0
    transfer: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTerms:
    """A step, rank by rank; members of a tensor-parallel group do the same.

    Attributes:
        time_s: seconds until the last rank has ended.
        terms: [data, pipeline] seconds by term of `TERMS`; they add up to `time_s`.
    """

    time_s: float
    terms: dict[str, Array]

    @property
    def data_own_s(self) -> Array:
        """Seconds that the replica which comes last waits for its collectives, [pipeline].

        The others wait for it as well, so that only its wait is the collectives' own.
        """
        return self.terms["data_s"].min(axis=0)


class StepModel:
    """A training step that is simulated again and again with other factors of its work."""

    def __init__(self, step: TrainingStep) -> None:
        """Lay out the tasks of a step.

        Args:
            step: model, machine and layout.
        """
        # Data that is late holds its rank up, whether it is read ahead or not.
        self.step = replace(step, overlap=replace(step.overlap, loader=False), load_s=0.0)
        self.shape = (step.data, step.pipeline)

    @cached_property
    def graph(self) -> TaskGraph:
        """Tasks of one replica."""
        return self.step.graph()

    @cached_property
    def _parts(self) -> tuple[Array, Array]:
        """Seconds of each task without tensor-parallel traffic, and with nothing else, [T]."""
        step = self.step
        links = step.links or Links.of(
            step.machine, tensor=step.tensor, data=step.data, pipeline=step.pipeline
        )
        free = replace(step, links=replace(links, tensor_bytes_per_s=float("inf")))
        whole = step.times().durations_s(self.graph)
        alone = free.times().durations_s(self.graph)
        return alone, whole - alone

    def durations_s(self, factors: WorkFactors) -> Array:
        """Return the seconds of each task in each replica.

        Args:
            factors: how much longer work lasts than forecast.

        Returns:
            Seconds, [tasks, data].
        """
        tasks = self.graph.tasks
        alone, traffic = self._parts
        device = np.array([task.device for task in tasks])
        kind = np.array([_kind(task) for task in tasks])[:, None]

        def of(item: Array | float) -> Array:
            return np.broadcast_to(np.asarray(item, dtype=float), self.shape)[:, device].T

        found = np.repeat(alone[:, None], self.shape[0], axis=1)
        found = np.where(kind == "update", found * of(factors.update), found)
        found = np.where(kind == "hop", found * factors.transfer, found)
        found = np.where(kind == "load", of(factors.load_s), found)
        ends = np.array([task.op == "scatter" for task in tasks])[:, None]
        found = found + np.where(ends, of(factors.data_extra_s), 0.0)
        passes = found * of(factors.compute) + traffic[:, None] * of(factors.tensor)
        return np.where(kind == "pass", passes, np.maximum(found, 0.0))

    def simulate(self, factors: WorkFactors | None = None) -> StepTerms:
        """Simulate the step.

        Args:
            factors: how much longer work lasts than forecast; as forecast when not given.

        Returns:
            Its terms.
        """
        chosen = factors or WorkFactors()
        return self.of_durations(self.durations_s(chosen), chosen)

    def of_durations(self, seconds: Array, factors: WorkFactors) -> StepTerms:
        """Simulate the step with given seconds of each task.

        Args:
            seconds: time of each task in each replica, [tasks, data], as `durations_s` returns it.
            factors: those that they were made with, which tell kernels from traffic.

        Returns:
            Its terms.
        """
        start, finish = replica_times(self.graph, seconds)
        traffic = self._parts[1]
        time_s = float(finish.max())
        terms = {name: np.zeros(self.shape) for name in TERMS}
        tensor = np.broadcast_to(np.asarray(factors.tensor, dtype=float), self.shape)
        for (device, stream), places in self.graph.streams.items():
            if stream != "compute":
                continue
            ended = np.zeros(self.shape[0])
            for place in places:
                task = self.graph.tasks[place]
                terms[self._waited_for(place)][:, device] += start[place] - ended
                ended = finish[place]
                lasted = ended - start[place]
                sent = traffic[place] * tensor[:, device] if _kind(task) == "pass" else 0.0
                terms["tensor_s"][:, device] += sent
                terms[_own_term(task)][:, device] += lasted - sent
            # A rank that is done early waits for the next step's first activations.
            terms["bubble_s"][:, device] += time_s - ended
        return StepTerms(time_s=time_s, terms=terms)

    def _waited_for(self, place: int) -> str:
        """Return the term of the time that a device waits before a task."""
        return self._waits[place]

    @cached_property
    def _waits(self) -> list[str]:
        """Term of the time before each task: that of what it depends on, stages last."""
        tasks = self.graph.tasks
        found = []
        for task in tasks:
            ops = [tasks[dep].op for dep in task.deps if tasks[dep].device == task.device]
            own = [_WAITS[op] for op in (task.op, *ops) if op in _WAITS and op != "load"]
            # A pass of the first stage waits for its weights; others for their stage's input,
            # which comes later than the weights do.
            waits_for_stage = any(op.startswith("recv") for op in ops)
            found.append("bubble_s" if waits_for_stage or not own else own[0])
        return found


def _kind(task: GraphTask) -> str:
    """Return which factor a task's seconds have."""
    if task.op.startswith(("forward", "backward")):
        return "pass"
    return "hop" if task.op.startswith("send") else task.op


def _own_term(task: GraphTask) -> str:
    """Return the term of a task that runs between the kernels."""
    kind = _kind(task)
    known = {"pass": "compute_s", "update": "update_s", **_WAITS}
    return known.get(kind, "bubble_s")
