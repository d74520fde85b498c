"""torchtitan's command line (`torchtitan.train`, 0.2 and later)."""

from steelyard.cost.layout import Layout
from steelyard.errors import ConfigError
from steelyard.plan.exports.flags import as_count, read_flags, script
from steelyard.plan.exports.job import (
    Arrangement,
    TrainingJob,
    beyond,
    refuse,
    shards_of,
    shared_by,
)

__all__ = ["read_torchtitan", "to_torchtitan"]

_REPLICATE = "--parallelism.data-parallel-replicate-degree"
_SHARD = "--parallelism.data-parallel-shard-degree"
_RESHARD = "--parallelism.fsdp-reshard-after-forward"
_SCHEDULE = "--parallelism.pipeline-parallel-schedule"
_MICRO = "--parallelism.pipeline-parallel-microbatch-size"
_LAYERS = "--parallelism.pipeline-parallel-layers-per-stage"
_WHOLE_SEQUENCES = "--parallelism.no-enable-sequence-parallel"
_DEGREES = {
    "tensor": "--parallelism.tensor-parallel-degree",
    "pipeline": "--parallelism.pipeline-parallel-degree",
    "context": "--parallelism.context-parallel-degree",
    "expert": "--parallelism.expert-parallel-degree",
}
_LAID = {"data", "virtual_stages", "schedule", "zero_stage", "sequence_parallel", "recompute"}
_LAID |= {*_DEGREES, "shards"}
_SCHEDULES = {("1f1b", False): "1F1B", ("1f1b", True): "Interleaved1F1B", ("gpipe", False): "GPipe"}
"""PyTorch's names, by schedule and whether stages are virtual; its zero-bubble one wants those."""
_SCHEDULES["zero-bubble", True] = "InterleavedZeroBubble"


def to_torchtitan(job: TrainingJob) -> str:
    """Write the command that trains a job with torchtitan.

    Args:
        job: model, batch and layout.

    Returns:
        A shell script; the model (--module and --config, or --job.config-file), data and tokenizer
        are given to it as further arguments.

    Raises:
        InfeasibleError: torchtitan lacks what the layout needs; all is named.
    """
    layout, batch = job.layout, job.arrangement
    refuse("torchtitan", _unknown(job))
    command = ["torchrun", "--nnodes", str(job.num_nodes)]
    command += ["--nproc-per-node", str(job.processes_per_node), "-m", "torchtitan.train"]
    # A pipeline takes all micro-batches of a step at once; without one they are accumulated.
    local = batch.micro_batch * (batch.accumulation if layout.pipeline > 1 else 1)
    flags = {
        "--training.seq-len": str(job.sequence_length),
        "--training.steps": str(job.steps),
        "--training.local-batch-size": str(local),
        "--training.global-batch-size": str(batch.global_batch),
        "--optimizer.lr": f"{job.learning_rate:g}",
        "--activation-checkpoint.mode": layout.recompute,
        _REPLICATE: str(layout.data // _shard_degree(layout)),
        _SHARD: str(_shard_degree(layout)),
    }
    flags |= {flag: str(getattr(layout, name)) for name, flag in _DEGREES.items()}
    if layout.zero_stage:
        flags[_RESHARD] = {2: "never", 3: "always"}[layout.zero_stage]
    if layout.tensor > 1 and not layout.sequence_parallel:
        flags[_WHOLE_SEQUENCES] = ""
    return script(command, flags | _pipeline(job))


def _shard_degree(layout: Layout) -> int:
    """Return the replicas that share states, parts of a sequence counted once."""
    if not layout.zero_stage:
        return 1
    return (shared_by(layout) or layout.replicas) // layout.context


def read_torchtitan(text: str, *, num_layers: int) -> Arrangement:
    """Read the layout of a torchtitan command line.

    Args:
        text: script or command line.
        num_layers: layers of the model, which say how many virtual stages there are.

    Returns:
        The layout with its batch.

    Raises:
        ConfigError: a number is missing or wrong, or the batch does not fill the layout.
    """
    flags = read_flags(text)
    degrees = {name: as_count(flags, flag, 1) for name, flag in _DEGREES.items()}
    shards = as_count(flags, _SHARD, 1)
    data = as_count(flags, _REPLICATE, 1) * shards
    local = as_count(flags, "--training.local-batch-size")
    micro = as_count(flags, _MICRO, 1) if degrees["pipeline"] > 1 else local
    batch = as_count(flags, "--training.global-batch-size", data * local)
    if batch % (data * micro):
        raise ConfigError(f"{batch} sequences are no micro-batches of {micro} on {data} replicas")
    names = {name: schedule for (schedule, _), name in _SCHEDULES.items()}
    reshards = flags.get(_RESHARD, "default") != "never"
    # Parts of a sequence share states with the replicas.
    stage = (3 if reshards else 2) if shards * degrees["context"] > 1 else 0
    layout = Layout(
        **degrees,
        **shards_of(stage, shards * degrees["context"] if shards < data else 0),
        data=data,
        virtual_stages=_virtual_stages(flags, degrees["pipeline"], num_layers),
        schedule=names.get(flags.get(_SCHEDULE, "1F1B"), flags.get(_SCHEDULE, "")),
        zero_stage=stage,
        sequence_parallel=degrees["tensor"] > 1 and _WHOLE_SEQUENCES not in flags,
        recompute=flags.get("--activation-checkpoint.mode", "selective"),
    )
    return Arrangement(layout=layout, micro_batch=micro, accumulation=batch // (data * micro))


def _unknown(job: TrainingJob) -> list[str]:
    """Name what of a layout torchtitan lacks."""
    layout = job.layout
    lacks = beyond(layout, _LAID)
    if layout.zero_stage == 1:
        lacks.append("sharding of optimizer states alone (ZeRO stage 1), only stages 2 and 3")
    if layout.zero_stage == 0 and layout.context > 1:
        lacks.append("whole states on every part of a sequence")
    if group := shared_by(layout):
        if group % layout.context:
            lacks.append(f"groups of {group} replicas that divide parts of a sequence")
        if layout.expert > 1:
            lacks.append("states in groups of replicas beside expert groups")
    if layout.pipeline > 1 and _schedule(layout) not in _SCHEDULES:
        lacks.append(f"schedule {layout.schedule!r} with {layout.virtual_stages} virtual stages")
    if job.architecture.num_layers % (layout.pipeline * layout.virtual_stages):
        lacks.append(f"even stages of {job.architecture.num_layers} layers")
    return lacks


def _schedule(layout: Layout) -> tuple[str, bool]:
    """Return a layout's key into the schedules."""
    return layout.schedule, layout.virtual_stages > 1


def _pipeline(job: TrainingJob) -> dict[str, str]:
    """Write the flags of a pipeline; none without one."""
    layout = job.layout
    if layout.pipeline == 1:
        return {}
    per_stage = job.architecture.num_layers // (layout.pipeline * layout.virtual_stages)
    return {
        _SCHEDULE: _SCHEDULES[_schedule(layout)],
        _MICRO: str(job.arrangement.micro_batch),
        _LAYERS: str(per_stage),
        # The end stages count the embedding and the head as a layer unless told otherwise.
        "--parallelism.pipeline-parallel-first-stage-less-layers": "0",
        "--parallelism.pipeline-parallel-last-stage-less-layers": "0",
    }


def _virtual_stages(flags: dict[str, str], pipeline: int, num_layers: int) -> int:
    """Return how many chunks of layers a stage takes."""
    if pipeline == 1 or _LAYERS not in flags:
        return 1
    return max(1, num_layers // (as_count(flags, _LAYERS) * pipeline))
