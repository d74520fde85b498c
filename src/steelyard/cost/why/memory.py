"""The memory of serving and training as a reader adds it up."""

import math
from dataclasses import fields

from steelyard.catalog.architecture import Architecture
from steelyard.cost.held import expert_parameters, parameter_count
from steelyard.cost.layout import STATE_STAGES, Layout, State
from steelyard.cost.memory import (
    MemoryBreakdown,
    Precision,
    activation_bytes_per_layer,
    kv_bytes_per_token,
)
from steelyard.cost.why.chain import ChainStep

__all__ = [
    "activations_step",
    "fit_step",
    "serving_memory_steps",
    "training_memory_steps",
]

_ADAPTER_BYTES = {"weights": 2, "gradients": 4, "optimizer": 12}
"""Bytes per parameter of adapters, which every replica keeps whole."""


_RESIDENT = "resident memory of this package's own process, counted tensor by tensor"


def is_resident(memory: MemoryBreakdown) -> bool:
    """Return whether the bytes are those of a whole process, libraries included."""
    # Such bytes follow the engine's own buffers and not the formulas of published machines.
    return "process" in _parts(memory)


def serving_memory_steps(
    arch: Architecture,
    memory: MemoryBreakdown,
    *,
    bytes_per_weight: float,
    table_bytes: float,
    element_bytes: float,
    tokens_resident: float,
    count: int = 1,
) -> list[ChainStep]:
    """Show what serving keeps on each accelerator.

    Args:
        arch: model that is served.
        memory: bytes that the answer states.
        bytes_per_weight: bytes of a weight of the layers, scales included.
        table_bytes: bytes of a weight of embeddings and head.
        element_bytes: bytes of an element of keys and values.
        tokens_resident: tokens whose keys and values are kept.
        count: accelerators that share the model.

    Returns:
        Steps; the last one is the total.
    """
    if is_resident(memory):
        return [_total(memory, _RESIDENT)]
    layers, tables = parameter_count(arch)
    weights = ChainStep(
        name="weights",
        formula="(layer_parameters x bytes_per_weight + table_parameters x table_bytes) / shared",
        numbers={
            "layer_parameters": layers,
            "bytes_per_weight": bytes_per_weight,
            "table_parameters": tables,
            "table_bytes": table_bytes,
            "shared": float(count),
        },
        value=memory.weights,
        unit="byte",
        source=f"shape of {arch.name}; shared by that many accelerators",
    )
    return [
        weights,
        *_cache_steps(arch, memory, element_bytes, tokens_resident, count),
        _total(memory, "activations and logits (workspace) of the largest step"),
    ]


def _cache_steps(
    arch: Architecture, memory: MemoryBreakdown, width: float, tokens: float, count: int
) -> list[ChainStep]:
    """Show the bytes of keys and values."""
    numbers = {"layers": float(arch.num_layers), "element_bytes": width}
    if arch.kv_lora_rank:
        formula = "layers x (latent_size + rotary_size) x element_bytes"
        numbers |= {
            "latent_size": float(arch.kv_lora_rank),
            "rotary_size": float(arch.qk_rope_head_dim),
        }
    else:
        formula = "2 x layers x kv_heads x head_size x element_bytes"
        numbers |= {"kv_heads": float(arch.num_kv_heads), "head_size": float(arch.head_dim)}
    # A latent is one head, which every accelerator copies.
    heads = numbers.get("kv_heads", 1.0)
    per_token = kv_bytes_per_token(arch, width)
    return [
        ChainStep(
            name="kv_bytes_per_token",
            formula=formula,
            numbers=numbers,
            value=per_token,
            unit="byte",
            source=f"shape of {arch.name} (arXiv 2309.06180, section 3)",
        ),
        ChainStep(
            name="kv_cache",
            formula="resident_tokens x kv_bytes_per_token / min(accelerators, kv_heads)",
            numbers={
                "resident_tokens": float(tokens),
                "kv_bytes_per_token": per_token,
                "accelerators": float(count),
                "kv_heads": heads,
            },
            value=memory.kv_cache,
            unit="byte",
            source="context x users",
        ),
    ]


def training_memory_steps(
    arch: Architecture,
    memory: MemoryBreakdown,
    *,
    layout: Layout,
    precision: Precision,
    micro_batch: float,
    sequence_length: int,
    accumulation: float = 1,
    adapters: float = 0.0,
) -> list[ChainStep]:
    """Show what training keeps on the fullest accelerator.

    Args:
        arch: model that is trained.
        memory: bytes that the answer states.
        layout: parallelism and policies, plain values.
        precision: bytes per parameter and element.
        micro_batch: sequences of a micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step and replica.
        adapters: parameters of low-rank adapters over frozen weights, 0 where all are trained.

    Returns:
        Steps; the last one is the total.
    """
    if is_resident(memory):
        return [_total(memory, _RESIDENT)]
    return [
        *_state_steps(arch, memory, layout, precision, adapters),
        activations_step(
            arch,
            memory,
            layout=layout,
            element_bytes=precision.activations,
            tokens=(micro_batch, sequence_length),
            accumulation=accumulation,
        ),
        _total(memory, "workspace: logits, and what recomputation builds again"),
    ]


def _state_steps(
    arch: Architecture,
    memory: MemoryBreakdown,
    layout: Layout,
    precision: Precision,
    adapters: float,
) -> list[ChainStep]:
    """Show weights, gradients and optimizer states of the fullest stage."""
    layers, tables = parameter_count(arch)
    # Of several stages the fullest holds one table.
    held = tables if layout.pipeline == 1 else float(arch.vocab_size * arch.hidden_size)
    routed = expert_parameters(arch) if layout.expert > 1 else 0.0
    steps = [
        ChainStep(
            name="held_parameters",
            formula="(layer_parameters / stages + table_parameters) / tensor",
            numbers={
                "layer_parameters": layers - routed,
                "stages": float(layout.pipeline),
                "table_parameters": held,
                "tensor": float(layout.tensor),
            },
            value=((layers - routed) / layout.pipeline + held) / layout.tensor,
            unit="parameter",
            source=f"shape of {arch.name}, of the fullest stage",
        )
    ]
    if routed:
        steps.append(_expert_step(arch, layout, routed))
    held_parameters = {step.name: step.value for step in steps}
    gathered = layers / arch.num_layers / layout.tensor
    return steps + [
        _state_step(name, held_parameters, gathered, memory, layout, precision, adapters)
        for name in STATE_STAGES
        # What waits in host memory takes none here.
        if name != "optimizer" or not layout.offload_optimizer
    ]


def _expert_step(arch: Architecture, layout: Layout, routed: float) -> ChainStep:
    """Show the parameters of whole experts on one accelerator."""
    return ChainStep(
        name="held_in_experts",
        formula="expert_parameters / stages / expert_group",
        numbers={
            "expert_parameters": routed,
            "stages": float(layout.pipeline),
            "expert_group": float(layout.expert),
        },
        value=routed / layout.pipeline / layout.expert,
        unit="parameter",
        source=f"shape of {arch.name}; whole experts, {layout.expert} accelerators share them out",
    )


def _state_step(
    name: State,
    held: dict[str, float],
    gathered: float,
    memory: MemoryBreakdown,
    layout: Layout,
    precision: Precision,
    adapters: float,
) -> ChainStep:
    """Show one kind of states, which replicas may share."""
    shards = float(layout.shards(name))
    parts = held | {"bytes_per_parameter": getattr(precision, name), "shards": shards}
    formula = "held_parameters x bytes_per_parameter / shards"
    if "held_in_experts" in held:
        # A whole expert has fewer replicas than the layers around it.
        parts["expert_shards"] = max(shards * layout.tensor / layout.expert, 1.0)
        formula += " + held_in_experts x bytes_per_parameter / expert_shards"
    if name == "weights" and layout.shards("weights") > 1:
        # Two layers are whole at a time: the one that computes and the next one.
        formula += " + 2 x bytes_per_parameter x parameters_of_a_layer"
        parts["parameters_of_a_layer"] = gathered
    if adapters:
        formula += f" + {_ADAPTER_BYTES[name]} x adapter_parameters"
        parts["adapter_parameters"] = adapters
    return ChainStep(
        name=name,
        formula=formula,
        numbers=parts,
        value=getattr(memory, name),
        unit="byte",
        source=f"AdamW, ZeRO stage {layout.zero_stage} (arXiv 1910.02054)",
    )


def activations_step(
    arch: Architecture,
    memory: MemoryBreakdown,
    *,
    layout: Layout,
    element_bytes: float,
    tokens: tuple[float, int],
    accumulation: float = 1,
) -> ChainStep:
    """Show what is saved for the backward pass.

    Args:
        arch: model that is trained.
        memory: bytes that the answer states.
        layout: parallelism and policies, plain values.
        element_bytes: bytes of an activation element.
        tokens: sequences of a micro-batch, and tokens of each.
        accumulation: micro-batches per step and replica.

    Returns:
        The step.
    """
    batch, length = tokens
    per_layer = activation_bytes_per_layer(
        arch, batch=batch, sequence_length=length, layout=layout, element_bytes=element_bytes
    )
    stacks = 2.5 if arch.kind == "encoder-decoder" else 1.0
    numbers = {
        "bytes_per_layer": float(per_layer),
        "layers": stacks * math.ceil(arch.num_layers / layout.pipeline),
    }
    if layout.offload_activations:
        # The rest waits in host memory: one layer computes, one moves.
        numbers["layers"] = min(2 * stacks, numbers["layers"])
    held = _micro_batches(layout, accumulation)
    # The last stage keeps one micro-batch and the logits; the first one more of them.
    alone = numbers["bytes_per_layer"] * numbers["layers"]
    is_first = layout.pipeline > 1 and memory.activations > (1 + 1e-9) * alone
    return ChainStep(
        name="activations",
        formula="bytes_per_layer x layers x micro_batches",
        numbers=numbers | {"micro_batches": float(held if is_first else 1)},
        value=memory.activations,
        unit="byte",
        source=f"{batch:g} x {length:,} tokens (arXiv 2205.05198, equations 1 to 4)",
    )


def _micro_batches(layout: Layout, accumulation: float) -> float:
    """Count the micro-batches whose activations the first stage holds at once."""
    stages, chunks = layout.pipeline, layout.virtual_stages
    if layout.schedule == "gpipe":
        return accumulation
    # Interleaving fills the pipeline with further chunks, each a part of the layers.
    return min(stages + (stages - 1) / chunks if chunks > 1 else stages, accumulation)


def _total(memory: MemoryBreakdown, said: str) -> ChainStep:
    """Show the sum of the parts."""
    parts = _parts(memory)
    formula = " + ".join(parts)
    spare = sum(parts.values()) - memory.total
    if spare > 1e-9 * memory.total:
        # The most that is held at one moment may be less than all parts at their largest.
        formula += " - not_at_once"
        parts["not_at_once"] = spare
    return ChainStep(
        name="total_memory",
        formula=formula,
        numbers=parts,
        value=memory.total,
        unit="byte",
        source=said,
    )


def _parts(memory: MemoryBreakdown) -> dict[str, float]:
    """Return the bytes of each kind that is there."""
    kinds = [item.name for item in fields(memory) if item.name != "total"]
    parts = {name: float(getattr(memory, name)) for name in kinds}
    return {name: value for name, value in parts.items() if value}


def fit_step(memory_bytes: float, reserve: float, limit_bytes: float, name: str) -> ChainStep:
    """Show what an accelerator offers.

    Args:
        memory_bytes: its memory.
        reserve: share that is kept free.
        limit_bytes: bytes that the answer states.
        name: name of the accelerator.

    Returns:
        The step.
    """
    return ChainStep(
        name="offered_memory",
        formula="memory x (1 - reserve)",
        numbers={"memory": memory_bytes, "reserve": reserve},
        value=limit_bytes,
        unit="byte",
        source=f"{name}; it fits where total_memory is at most this",
    )
