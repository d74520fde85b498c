"""From a pipeline schedule to tasks: transfers, collectives, updates and memory made explicit."""

from collections import Counter
from dataclasses import dataclass, field

from steelyard.sim.taskgraph.schedules import Pass, PipelineSchedule
from steelyard.sim.taskgraph.tasks import Buffer, GraphTask, TaskGraph

__all__ = ["StepOverlap", "pipeline_graph"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOverlap:
    """What communicates beside the kernels instead of between them.

    Attributes:
        pipeline: sends and receives have streams of their own; else a send holds its rank up.
        data: weights are gathered stage by stage ahead of their first use, and gradients scattered
            as soon as a stage has them; else both wait for the whole step.
        loader: the next step's data is read while this one runs.

    Source: Jiang et al. 2024, arXiv 2402.15627, section 3.2 and 3.4.
    """

    pipeline: bool = True
    data: bool = True
    loader: bool = True


@dataclass
class _Builder:
    """Collects tasks, and remembers which of them later ones wait for."""

    schedule: PipelineSchedule
    overlap: StepOverlap
    tasks: list[GraphTask] = field(default_factory=list)
    places: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def add(self, key: tuple[str, int, int], task: GraphTask) -> None:
        """Append a task under its key."""
        self.places[key] = len(self.tasks)
        self.tasks.append(task)

    def found(self, *keys: tuple[str, int, int]) -> tuple[int, ...]:
        """Return the places of those tasks that are there."""
        return tuple(self.places[key] for key in keys if key in self.places)


def pipeline_graph(
    schedule: PipelineSchedule, *, overlap: StepOverlap | None = None, data_parallel: bool = False
) -> TaskGraph:
    """Make the tasks of one step of one pipeline replica.

    Operations: "load", "gather" and "scatter" per stage, "forward", "backward" or its two halves
    "backward_input" and "backward_weight", "send_activation", "recv_activation", "send_gradient",
    "recv_gradient", "update". Buffers: "activation" from the forward to the (input) backward pass,
    "input_gradient" from there to the weight pass where the two are split.

    Args:
        schedule: order of the passes on each rank.
        overlap: what runs beside the kernels; everything when not given.
        data_parallel: whether replicas gather weights and scatter gradients (ZeRO stage 1 or 2).

    Returns:
        A graph of one device per rank; the tasks are in an order in which they can run.
    """
    builder = _Builder(schedule, overlap or StepOverlap())
    for rank in range(schedule.num_ranks):
        _begin(builder, rank, data_parallel)
    _passes(builder)
    for rank in range(schedule.num_ranks):
        _finish(builder, rank, data_parallel)
    return TaskGraph(tuple(builder.tasks), schedule.num_ranks, schedule.name)


def _begin(builder: _Builder, rank: int, data_parallel: bool) -> None:
    """Read the step's data and gather the weights of the rank's stages."""
    overlap, ranks = builder.overlap, builder.schedule.num_ranks
    # Data that was read ahead is there; what is read now is the next step's.
    stream = "loader" if overlap.loader else "compute"
    builder.add(
        ("load", rank, -1), GraphTask(op="load", kind="compute", device=rank, stream=stream)
    )
    if not data_parallel:
        return
    for stage in range(rank, builder.schedule.num_stages, ranks):
        _collective(builder, "gather", rank, stage, ())


def _collective(builder: _Builder, op: str, rank: int, stage: int, deps: tuple[int, ...]) -> None:
    """Append a collective of one stage's weights or gradients over the replicas."""
    builder.add(
        (op, stage, -1),
        GraphTask(
            op=op,
            kind="collective",
            device=rank,
            stream="data" if builder.overlap.data else "compute",
            deps=deps,
            stage=stage,
            tag=f"{op}/{stage}",
            axis="data",
        ),
    )


def _passes(builder: _Builder) -> None:
    """Append the passes of all ranks in an order in which their inputs are there."""
    schedule = builder.schedule
    places = [0] * schedule.num_ranks
    left = sum(map(len, schedule.passes))
    # A stage's gradients are complete with the last of its passes that makes them.
    weights = Counter(
        item.stage for rank in schedule.passes for item in rank if _makes_gradient(item)
    )
    while left:
        before = left
        for rank, passes in enumerate(schedule.passes):
            while places[rank] < len(passes) and _is_ready(builder, passes[places[rank]]):
                _pass(builder, rank, passes[places[rank]], weights)
                places[rank] += 1
                left -= 1
        # Schedules are made by the generators of this package, and those always come to an end.
        assert left < before, f"{schedule.name} waits for itself"


def _makes_gradient(item: Pass) -> bool:
    return item.op in ("backward", "backward_weight")


def _is_ready(builder: _Builder, item: Pass) -> bool:
    """Return whether what a pass needs of other ranks has been appended."""
    source = _source(builder, item)
    return source is None or source in builder.places


def _source(builder: _Builder, item: Pass) -> tuple[str, int, int] | None:
    """Return the key of the send that a pass waits for, None for none."""
    _, stage, micro_batch = item
    if item.op == "forward" and stage > 0:
        return "send_activation", stage - 1, micro_batch
    is_last = stage == builder.schedule.num_stages - 1
    if item.op in ("backward", "backward_input") and not is_last:
        return "send_gradient", stage + 1, micro_batch
    return None


def _pass(builder: _Builder, rank: int, item: Pass, weights: Counter[int]) -> None:
    """Append a pass with what it receives before and sends after."""
    op, stage, micro_batch = item
    key = (op, stage, micro_batch)
    received = _receive(builder, rank, item)
    deps = builder.found(("gather", stage, -1)) if op == "forward" else ()
    if op == "forward" and stage == 0 and not builder.overlap.loader:
        deps += builder.found(("load", rank, -1))
    if op == "backward_weight":
        deps += builder.found(("backward_input", stage, micro_batch))
    elif op != "forward":
        deps += builder.found(("forward", stage, micro_batch))
    allocates, frees = _memory(item)
    builder.add(
        key,
        GraphTask(
            op=op,
            kind="compute",
            device=rank,
            stream="compute",
            deps=deps + received,
            stage=stage,
            micro_batch=micro_batch,
            allocates=allocates,
            frees=frees,
        ),
    )
    _send(builder, rank, item)
    if _makes_gradient(item):
        weights[stage] -= 1
        if not weights[stage] and ("gather", stage, -1) in builder.places and builder.overlap.data:
            _collective(builder, "scatter", rank, stage, builder.found(key))


def _memory(item: Pass) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """Return what a pass allocates and what it frees."""
    op, stage, micro_batch = item
    activation = Buffer("activation", stage, micro_batch)
    gradient = Buffer("input_gradient", stage, micro_batch)
    if op == "forward":
        return (activation,), ()
    if op == "backward":
        return (), (activation,)
    # The weight pass multiplies the activations with the gradients of the outputs.
    return ((gradient,), ()) if op == "backward_input" else ((), (activation, gradient))


def _receive(builder: _Builder, rank: int, item: Pass) -> tuple[int, ...]:
    """Append the receive of a pass, unless its input comes from the same rank."""
    source = _source(builder, item)
    if source is None:
        return ()
    send = builder.tasks[builder.places[source]]
    if send.kind != "send":
        return builder.found(source)
    what = send.op.removeprefix("send_")
    key = (f"recv_{what}", item.stage, item.micro_batch)
    stream = f"recv_{what}" if builder.overlap.pipeline else "compute"
    builder.add(
        key,
        GraphTask(
            op=key[0],
            kind="recv",
            device=rank,
            stream=stream,
            deps=builder.found(source),
            stage=item.stage,
            micro_batch=item.micro_batch,
            peer=send.device,
            tag=send.tag,
        ),
    )
    return builder.found(key)


def _send(builder: _Builder, rank: int, item: Pass) -> None:
    """Append the send of what a pass made, where another stage needs it."""
    op, stage, micro_batch = item
    ranks = builder.schedule.num_ranks
    if op == "forward" and stage < builder.schedule.num_stages - 1:
        what, target = "activation", stage + 1
    elif op in ("backward", "backward_input") and stage > 0:
        what, target = "gradient", stage - 1
    else:
        return
    key = (f"send_{what}", stage, micro_batch)
    made = builder.found((op, stage, micro_batch))
    if target % ranks == rank:  # a pipeline of one rank hands its chunks' results on in memory
        builder.places[key] = made[0]
        return
    builder.add(
        key,
        GraphTask(
            op=key[0],
            kind="send",
            device=rank,
            stream=f"send_{what}" if builder.overlap.pipeline else "compute",
            deps=made,
            stage=stage,
            micro_batch=micro_batch,
            peer=target % ranks,
            tag=f"{what}/{target}/{micro_batch}",
        ),
    )


def _finish(builder: _Builder, rank: int, data_parallel: bool) -> None:
    """Scatter what was not scattered yet, and update the rank's weights."""
    schedule = builder.schedule
    stages = range(rank, schedule.num_stages, schedule.num_ranks)
    last = {task.stage: place for place, task in enumerate(builder.tasks) if task.kind == "compute"}
    for stage in stages if data_parallel and not builder.overlap.data else ():
        _collective(builder, "scatter", rank, stage, (last[stage],))
    deps = builder.found(*(("scatter", stage, -1) for stage in stages))
    builder.add(
        ("update", rank, -1),
        GraphTask(
            op="update",
            kind="compute",
            device=rank,
            stream="compute",
            deps=deps or tuple(last[stage] for stage in stages),
        ),
    )
