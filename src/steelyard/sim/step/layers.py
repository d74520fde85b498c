"""One layer under tensor parallelism: its products in chunks beside the traffic they need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steelyard.errors import ConfigError
from steelyard.sim.step.longest_path import longest_path
from steelyard.sim.taskgraph.tasks import GraphTask, TaskGraph

__all__ = ["Segment", "layer_graph", "layer_time_s", "transposed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Kernels that run one after the other, with the transfer that feeds or follows them.

    Attributes:
        kind: "gather" before the kernels (column-parallel products), "scatter" after them
            (row-parallel ones), "plain" for none.
        compute_s: seconds of the kernels.
        transfer_s: seconds of the transfer alone.
    """

    kind: Literal["plain", "gather", "scatter"]
    compute_s: float
    transfer_s: float = 0.0


def layer_graph(
    segments: Sequence[Segment], *, num_chunks: int = 1, contention: float = 0.0
) -> tuple[TaskGraph, list[float]]:
    """Make the tasks of one pass through a layer on one device.

    A product and its transfer are cut into chunks: while one chunk is multiplied, the next one is
    gathered or the last one scattered.

    Args:
        segments: segments of a layer in the order they run.
        num_chunks: pieces of each product with a transfer; 1 for no overlap.
        contention: share by which kernels slow down that run beside a transfer.

    Returns:
        The graph of streams "compute" and "tensor", and the seconds of each task.

    Raises:
        ConfigError: fewer than 1 chunk.
    """
    if num_chunks < 1:
        raise ConfigError(f"num_chunks is {num_chunks}, but must be at least 1")
    tasks: list[GraphTask] = []
    seconds: list[float] = []
    ended: tuple[int, ...] = ()  # what the next segment's kernels or transfers wait for

    def add(stream: str, deps: tuple[int, ...], duration_s: float) -> tuple[int, ...]:
        kind = "collective" if stream == "tensor" else "compute"
        tasks.append(GraphTask(op=stream, kind=kind, device=0, stream=stream, deps=deps))
        seconds.append(duration_s)
        return (len(tasks) - 1,)

    slowed = 1 + (contention if num_chunks > 1 else 0.0)
    for item in segments:
        if item.kind == "plain":
            ended = add("compute", ended, item.compute_s)
            continue
        kernel_s, transfer_s = item.compute_s / num_chunks * slowed, item.transfer_s / num_chunks
        before, made = ended, ()
        for _ in range(num_chunks):
            if item.kind == "gather":
                ended = add("compute", add("tensor", before, transfer_s), kernel_s)
            else:
                made = add("compute", before, kernel_s)
                ended = add("tensor", made, transfer_s)
    return TaskGraph(tuple(tasks), 1, "layer"), seconds


def layer_time_s(
    segments: Sequence[Segment], *, num_chunks: int = 1, contention: float = 0.0
) -> float:
    """Return the seconds of one pass through a layer; see `layer_graph`."""
    graph, seconds = layer_graph(segments, num_chunks=num_chunks, contention=contention)
    return longest_path(graph, seconds).time_s


def transposed(segments: Sequence[Segment], factors: Sequence[float]) -> list[Segment]:
    """Return the backward pass of a layer: in reverse, gathers and scatters exchanged.

    Args:
        segments: segments of the forward pass.
        factors: backward over forward seconds of each segment's kernels.

    Returns:
        The segments of the backward pass.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2.
    """
    turned: dict[str, Literal["plain", "gather", "scatter"]] = {
        "plain": "plain",
        "gather": "scatter",
        "scatter": "gather",
    }
    return [
        Segment(
            kind=turned[item.kind],
            compute_s=factor * item.compute_s,
            transfer_s=item.transfer_s,
        )
        for item, factor in reversed(list(zip(segments, factors, strict=True)))
    ]
