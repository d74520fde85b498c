"""Tasks of one training step on every device, and the order in which each stream runs them."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Buffer", "GraphTask", "TaskGraph", "TaskKind"]

TaskKind = Literal["compute", "send", "recv", "collective"]


class Buffer(NamedTuple):
    """A piece of device memory that one task allocates and one frees.

    Attributes:
        kind: what it holds, such as "activation"; its bytes follow from the kind and the stage.
        stage: pipeline stage it belongs to.
        micro_batch: micro-batch it belongs to, -1 for none.
    """

    kind: str
    stage: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphTask:
    """One thing that a device does.

    A task starts when its stream has ended the task before it in the graph's order, and all its
    dependencies have ended. A send occupies its own stream for the transfer; the matching receive
    depends on it.

    Attributes:
        op: what is done, such as "forward" or "send_activation"; the key of its duration and of the
            function that an executor calls.
        kind: how it is executed.
        device: rank within the graph, from 0.
        stream: tasks of one stream of a device run one after the other.
        deps: places in the graph of tasks that must have ended before.
        stage: pipeline stage it works on, -1 for none.
        micro_batch: micro-batch it works on, -1 for none.
        peer: device at the other end of a send or receive, -1 for none.
        tag: equal for a send and its receive, or for the members of one collective.
        axis: mesh axis of a collective, such as "data" or "pipeline"; replicas outside the graph
            take part unless it is "pipeline".
        link: name of a link that several streams share, empty for one of its own.
        allocates: memory held from the task's start.
        frees: memory given back at the task's end.
    """

    op: str
    kind: TaskKind
    device: int
    stream: str
    deps: tuple[int, ...] = ()
    stage: int = -1
    micro_batch: int = -1
    peer: int = -1
    tag: str = ""
    axis: str = ""
    link: str = ""
    allocates: tuple[Buffer, ...] = ()
    frees: tuple[Buffer, ...] = ()

    def __str__(self) -> str:
        """Return the task as people name it, such as "forward of stage 1, micro-batch 3"."""
        words = [f"{self.op} on device {self.device}"]
        words += [f"stage {self.stage}"] if self.stage >= 0 else []
        words += [f"micro-batch {self.micro_batch}"] if self.micro_batch >= 0 else []
        return ", ".join(words)


@dataclass(frozen=True)
class TaskGraph:
    """Tasks with explicit dependencies; the order of the tasks is the order of each stream.

    Attributes:
        tasks: every device's tasks; those of one (device, stream) run in this order.
        num_devices: devices, numbered from 0.
        name: schedule it was made from.
    """

    tasks: tuple[GraphTask, ...]
    num_devices: int
    name: str = ""

    @cached_property
    def streams(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """Places of the tasks of each (device, stream), in the order they run."""
        found: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for place, task in enumerate(self.tasks):
            found[task.device, task.stream].append(place)
        return {key: tuple(places) for key, places in found.items()}

    @cached_property
    def joins(self) -> tuple[tuple[int, ...], ...]:
        """Places of collectives that start together: same axis and tag, on several devices."""
        found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for place, task in enumerate(self.tasks):
            if task.kind == "collective" and task.axis == "pipeline":
                found[task.axis, task.tag].append(place)
        return tuple(tuple(places) for places in found.values() if len(places) > 1)

    @cached_property
    def operations(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Places of the tasks of each operation, and their stages."""
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, task in enumerate(self.tasks):
            found[task.op].append((place, task.stage))
        pairs = {op: np.array(items, dtype=np.int64) for op, items in found.items()}
        return {op: (items[:, 0], items[:, 1]) for op, items in pairs.items()}

    def of_device(self, device: int) -> tuple[GraphTask, ...]:
        """Return a device's tasks in the graph's order: the program that one rank runs."""
        return tuple(task for task in self.tasks if task.device == device)
