"""Megatron-LM's command line (`pretrain_gpt.py`, core 0.12 and later)."""

from dataclasses import fields

from steelyard.catalog.architecture import Architecture
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

__all__ = ["read_megatron", "to_megatron"]

_DEGREES = {
    "tensor": "--tensor-model-parallel-size",
    "pipeline": "--pipeline-model-parallel-size",
    "context": "--context-parallel-size",
    "expert": "--expert-model-parallel-size",
}
_VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
_SHARDING = "--data-parallel-sharding-strategy"
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
"""What Megatron's own FSDP calls the stages of ZeRO beyond the distributed optimizer's."""
_LAID = {"data", "virtual_stages", "schedule", "zero_stage", "sequence_parallel", "recompute"}
_LAID |= {*_DEGREES, "shards"}
_INSTANCES = "--num-distributed-optimizer-instances"
_ENDS = ("--account-for-loss-in-pipeline-split", "--account-for-embedding-in-pipeline-split")
"""Count the head, and then the embedding, as a layer of the last and the first stage."""
_SHAPE = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)
_SAID = {
    *_SHAPE,
    "name",
    "kind",
    "max_positions",
    "norm",
    "position",
    "mlp",
    "tied_embeddings",
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "qk_norm",
    "num_experts",
    "experts_per_token",
    "num_shared_experts",
    "moe_intermediate_size",
    "sliding_window",
    "rope_theta",
    "norm_eps",
    "published_parameters",
    "source",
    "confidence",
}
"""Fields of an architecture that have a flag, or describe it only."""


def to_megatron(job: TrainingJob) -> str:
    """Write the command that trains a job with Megatron-LM.

    Args:
        job: model, batch and layout.

    Returns:
        A shell script; data, tokenizer and folders are given to it as further arguments.

    Raises:
        InfeasibleError: Megatron-LM lacks what the model or the layout needs; all is named.
    """
    refuse("Megatron-LM", [*_unknown_shape(job.architecture), *_unknown_layout(job)])
    command = ["torchrun", "--nnodes", str(job.num_nodes)]
    command += ["--nproc-per-node", str(job.processes_per_node), "pretrain_gpt.py"]
    training = {
        "--seq-length": str(job.sequence_length),
        "--train-iters": str(job.steps),
        "--lr": f"{job.learning_rate:g}",
    } | ({f"--{job.dtype}": ""} if job.dtype in ("bf16", "fp16") else {})
    layout = _layout(job.arrangement) | dict.fromkeys(_uneven_ends(job), "")
    return script(command, _model(job.architecture) | layout | training)


def read_megatron(text: str) -> Arrangement:
    """Read the layout of a Megatron-LM command line.

    Args:
        text: script or command line, `torchrun`'s flags included.

    Returns:
        The layout with its batch.

    Raises:
        ConfigError: a number is missing or wrong, or the processes do not fill the layout.
    """
    flags = read_flags(text)
    degrees = {name: as_count(flags, flag, 1) for name, flag in _DEGREES.items()}
    world = as_count(flags, "--nnodes", 1) * as_count(flags, "--nproc-per-node")
    inner = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    micro = as_count(flags, "--micro-batch-size")
    batch = as_count(flags, "--global-batch-size")
    if world % inner or batch % (micro * world // inner):
        raise ConfigError(
            f"{world} processes and {batch} sequences do not fill tensor x pipeline x context = "
            f"{inner} and micro-batches of {micro}"
        )
    data = world // inner
    stages = {name: stage for stage, name in _SHARDED.items()}
    own = int("--use-distributed-optimizer" in flags)
    stage = stages.get(flags.get(_SHARDING, ""), own)
    instances = as_count(flags, _INSTANCES, 1)
    group = data * degrees["context"] // instances if instances > 1 else 0
    layout = Layout(
        **degrees,
        **shards_of(stage, group),
        data=data,
        virtual_stages=as_count(flags, _VIRTUAL, 1),
        zero_stage=stage,
        sequence_parallel="--sequence-parallel" in flags,
        recompute=flags.get("--recompute-granularity", "none"),
    )
    return Arrangement(layout=layout, micro_batch=micro, accumulation=batch // (micro * data))


def _unknown_shape(arch: Architecture) -> list[str]:
    """Name what of a model has no flag."""
    plain = Architecture(name="", **{name: getattr(arch, name) for name in _SHAPE})
    other = [
        f"{item.name} = {getattr(arch, item.name)!r}"
        for item in fields(arch)
        if item.name not in _SAID and getattr(arch, item.name) != getattr(plain, item.name)
    ]
    for name, allowed in (
        ("kind", ("decoder",)),
        ("position", ("rope", "learned", "none")),
        ("mlp", ("swiglu", "gelu")),
    ):
        if getattr(arch, name) not in allowed:
            other.append(f"{name} = {getattr(arch, name)!r}")
    # One flag switches the biases of all linear layers but those of queries, keys and values.
    if arch.output_bias != arch.mlp_bias:
        other.append(f"output_bias = {arch.output_bias} with mlp_bias = {arch.mlp_bias}")
    return other


def _uneven_ends(job: TrainingJob) -> tuple[str, ...]:
    """Return the flags of stages that lack layers, the last one first."""
    layout = job.layout
    return _ENDS[: -job.architecture.num_layers % (layout.pipeline * layout.virtual_stages)]


def _unknown_layout(job: TrainingJob) -> list[str]:
    """Name what of a layout has no flag."""
    layout = job.layout
    lacks = beyond(layout, _LAID)
    pieces = layout.pipeline * layout.virtual_stages
    if (missing := -job.architecture.num_layers % pieces) > len(_ENDS):
        lacks.append(f"{pieces} stages of which {missing} lack a layer")
    if layout.expert > 1 and shared_by(layout):
        lacks.append("states in groups of replicas beside expert groups")
    if layout.expert > 1 and layout.tensor > 1 and not layout.sequence_parallel:
        lacks.append("tensor groups beside expert groups without sequence parallelism")
    if layout.pipeline > 1 and layout.schedule != "1f1b":
        lacks.append(f"schedule {layout.schedule!r}, only 1f1b")
    if layout.zero_stage >= 2 and layout.pipeline > 1:
        lacks.append(f"ZeRO stage {layout.zero_stage} under pipeline stages")
    return lacks


def _model(arch: Architecture) -> dict[str, str]:
    """Write the flags of a model."""
    flags = {
        "--num-layers": str(arch.num_layers),
        "--hidden-size": str(arch.hidden_size),
        "--ffn-hidden-size": str(arch.intermediate_size),
        "--num-attention-heads": str(arch.num_heads),
        "--kv-channels": str(arch.head_dim),
        "--vocab-size": str(arch.vocab_size),
        "--max-position-embeddings": str(arch.max_positions),
        "--normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[arch.norm],
        "--norm-epsilon": f"{arch.norm_eps:g}",
        "--position-embedding-type": {"learned": "learned_absolute"}.get(
            arch.position, arch.position
        ),
    }
    switches = {
        "--swiglu": arch.mlp == "swiglu",
        "--untie-embeddings-and-output-weights": not arch.tied_embeddings,
        "--disable-bias-linear": not arch.mlp_bias,
        "--add-qkv-bias": arch.qkv_bias and not arch.mlp_bias,
        "--qk-layernorm": arch.qk_norm,
    }
    flags |= {name: "" for name, is_on in switches.items() if is_on}
    if arch.position == "rope":
        flags["--rotary-base"] = f"{arch.rope_theta:g}"
    if arch.num_kv_heads != arch.num_heads:
        flags |= {"--group-query-attention": "", "--num-query-groups": str(arch.num_kv_heads)}
    if arch.sliding_window:
        flags["--window-size"] = f"({arch.sliding_window - 1},0)"
    if arch.num_experts:
        flags |= _experts(arch)
    return flags


def _experts(arch: Architecture) -> dict[str, str]:
    """Write the flags of experts."""
    flags = {
        "--num-experts": str(arch.num_experts),
        "--moe-router-topk": str(arch.experts_per_token),
        "--moe-ffn-hidden-size": str(arch.moe_intermediate_size),
    }
    if arch.num_shared_experts:
        width = arch.num_shared_experts * arch.moe_intermediate_size
        flags["--moe-shared-expert-intermediate-size"] = str(width)
    return flags


def _layout(arrangement: Arrangement) -> dict[str, str]:
    """Write the flags of a layout and its batch."""
    layout = arrangement.layout
    flags = {
        flag: str(getattr(layout, name))
        for name, flag in _DEGREES.items()
        if getattr(layout, name) > 1
    }
    flags["--micro-batch-size"] = str(arrangement.micro_batch)
    flags["--global-batch-size"] = str(arrangement.global_batch)
    if layout.virtual_stages > 1:
        flags[_VIRTUAL] = str(layout.virtual_stages)
    if layout.expert > 1 and layout.tensor > 1:
        # Whole experts: else each would be split over the tensor group as well.
        flags["--expert-tensor-parallel-size"] = "1"
    if layout.sequence_parallel:
        flags["--sequence-parallel"] = ""
    if layout.zero_stage:
        flags |= {"--use-distributed-optimizer": "", "--overlap-grad-reduce": ""}
        flags["--overlap-param-gather"] = ""
    if group := shared_by(layout):
        flags[_INSTANCES] = str(layout.replicas // group)
        if layout.zero_stage in _SHARDED:
            flags["--outer-dp-sharding-strategy"] = "no_shard"
    if layout.zero_stage in _SHARDED:
        flags |= {"--use-megatron-fsdp": "", _SHARDING: _SHARDED[layout.zero_stage]}
        flags |= {"--no-gradient-accumulation-fusion": "", "--ckpt-format": "fsdp_dtensor"}
    if layout.recompute != "none":
        flags["--recompute-granularity"] = layout.recompute
    if layout.recompute == "full":
        flags |= {"--recompute-method": "uniform", "--recompute-num-layers": "1"}
    return flags
