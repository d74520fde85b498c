"""The time of an optimizer step, and the FLOP of a run, as a reader adds them up."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.cost.flops import active_matrix_parameters, model_flops_per_token
from steelyard.cost.held import expert_parameters, parameter_count
from steelyard.cost.layout import Layout
from steelyard.cost.operators import OperatorTable, operators
from steelyard.cost.passes import ENDS
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.cost.step import StepCost
from steelyard.cost.step_parts import ADAMW_PASSES
from steelyard.cost.why.chain import ChainStep
from steelyard.cost.why.kernels import kernel_steps

__all__ = ["flops_per_token_step", "run_flops_step", "step_time_steps", "utilization_step"]


def flops_per_token_step(arch: Architecture, sequence_length: int) -> ChainStep:
    """Show the FLOP of training on one token.

    Args:
        arch: model that is trained.
        sequence_length: tokens per sequence.

    Returns:
        The step.
    """
    # Encoder, decoder and the decoder's look at the encoder: three attentions per layer.
    stacks = 3 if arch.kind == "encoder-decoder" else 1
    return ChainStep(
        name="flops_per_token",
        formula="6 x matrix_parameters + 6 x layers x heads x (key_size + value_size) x length",
        numbers={
            "matrix_parameters": float(active_matrix_parameters(arch)),
            "layers": float(stacks * arch.num_layers),
            "heads": float(arch.num_heads),
            "key_size": float(arch.head_dim),
            "value_size": float(arch.value_dim),
            "length": float(sequence_length),
        },
        value=model_flops_per_token(arch, sequence_length),
        unit="FLOP",
        source=f"shape of {arch.name} (arXiv 2204.02311, appendix B)",
    )


def run_flops_step(
    arch: Architecture, sequence_length: int, tokens: float, flops: float
) -> ChainStep:
    """Show the FLOP of a run.

    Args:
        arch: model that is trained.
        sequence_length: tokens per sequence.
        tokens: tokens of the run.
        flops: FLOP that the answer states.

    Returns:
        The step.
    """
    return ChainStep(
        name="run_flops",
        formula="tokens x flops_per_token",
        numbers={
            "tokens": tokens,
            "flops_per_token": model_flops_per_token(arch, sequence_length),
        },
        value=flops,
        unit="FLOP",
        source="recomputation is not counted",
    )


def step_time_steps(
    arch: Architecture,
    machine: Machine,
    cost: StepCost,
    *,
    layout: Layout,
    micro_batch: float,
    accumulation: float,
    sequence_length: int,
) -> list[ChainStep]:
    """Show the time of an optimizer step.

    Args:
        arch: model that is trained.
        machine: accelerator with its links.
        cost: the step that the answer states, plain values.
        layout: parallelism and policies, plain values.
        micro_batch: sequences of a micro-batch.
        accumulation: micro-batches per step and replica.
        sequence_length: tokens per sequence.

    Returns:
        Steps; the last one is the time of the step.
    """
    table = _stage_table(arch, machine, cost, layout, micro_batch, sequence_length)
    repeated = _repeated_s(table, machine, int(layout.arrays()["recompute"]))
    steps = kernel_steps(table, machine)
    once = {"kernel_time": steps[-1].value, "repeated_time": repeated}
    once = {name: value for name, value in once.items() if value}
    steps.append(
        ChainStep(
            name="compute_time",
            formula=f"accumulation x {_sum_of(once)}",
            numbers={"accumulation": float(accumulation)} | once,
            value=cost.compute_s,
            unit="s",
            source="micro-batches of a step; repeated_time is what recomputation runs again",
        )
    )
    if not layout.offload_optimizer:  # else the host updates, which is not timed
        steps.append(_update_step(arch, machine, layout, cost))
    names = ("compute", "tensor", "context", "expert", "bubble", "data", "host", "update")
    parts = {f"{name}_time": float(getattr(cost, f"{name}_s")) for name in names}
    parts = {name: value for name, value in parts.items() if value}
    said = "; ".join(_WAITS[name] for name in parts if name in _WAITS)
    steps.append(
        ChainStep(
            name="step_time",
            formula=" + ".join(parts),
            numbers=parts,
            value=cost.time_s,
            unit="s",
            source=said or "one accelerator waits for no other",
        )
    )
    return steps


def _sum_of(names: Iterable[str]) -> str:
    """Write a sum of names, in parentheses where there are several."""
    words = " + ".join(names)
    return f"({words})" if "+" in words else words


_WAITS = {
    "tensor_time": "tensor_time: sums over the tensor group (arXiv 1909.08053)",
    "context_time": "context_time: keys and values pass between the parts of a sequence",
    "expert_time": "expert_time: tokens pass to experts and back",
    "host_time": "host_time: states and activations pass to host memory and back",
    "bubble_time": "bubble_time: the pipeline fills and drains (arXiv 2104.04473)",
    "data_time": "data_time: gradients that do not hide behind compute (arXiv 1910.02054)",
}


def _update_step(arch: Architecture, machine: Machine, layout: Layout, cost: Any) -> ChainStep:
    """Show the time of the optimizer's pass over its states."""
    routed = expert_parameters(arch) if layout.expert > 1 else 0.0
    held = "(layer_parameters / stages + table_parameters) / (tensor x shards)"
    experts = {"expert_parameters": routed, "expert_group": float(layout.expert)} if routed else {}
    if routed:
        held = f"({held} + expert_parameters / stages / expert_group / shards)"
    return ChainStep(
        name="update_time",
        formula=f"4 x passes x {held} / memory_bandwidth",
        numbers=experts
        | {
            "passes": ADAMW_PASSES[machine.fused],
            "layer_parameters": parameter_count(arch)[0] - routed,
            "table_parameters": parameter_count(arch)[1],
            "stages": float(layout.pipeline),
            "tensor": float(layout.tensor),
            "shards": float(layout.shards("optimizer")),
            "memory_bandwidth": machine.memory_bytes_per_s,
        },
        value=cost.update_s,
        unit="s",
        source="fp32 values that AdamW reads and writes per parameter",
    )


def utilization_step(machine: Machine, cost: StepCost, count: float) -> ChainStep:
    """Show the model FLOP utilization.

    Args:
        machine: accelerator with its peak.
        cost: the step that the answer states, plain values.
        count: accelerators.

    Returns:
        The step.
    """
    return ChainStep(
        name="mfu",
        formula="step_flops / (step_time x accelerators x peak)",
        numbers={
            "step_flops": cost.model_flops,
            "step_time": cost.time_s,
            "accelerators": float(count),
            "peak": machine.peak_flops_per_s,
        },
        value=cost.mfu,
        unit="fraction",
        source=f"peak of {machine.name} in {machine.dtype}",
    )


def _stage_table(
    arch: Architecture,
    machine: Machine,
    cost: StepCost,
    layout: Layout,
    micro_batch: float,
    sequence_length: int,
) -> OperatorTable:
    """List what a micro-batch runs on the busiest stage, forward and backward."""
    axes = layout.arrays()
    table = operators(
        arch,
        phase="train",
        tokens=sequence_length,
        batch=micro_batch / axes["context"],
        dtype_bytes=machine.dtype_bytes,
        tensor_parallel=axes["tensor"],
        expert_parallel=axes["expert"],
        sequence_parallel=axes["sequence_parallel"],
        fused=machine.fused,
    )
    stems = [name.partition(".")[0] for name in table.names]
    # Ends stand on one stage each; the busiest one may have none of them.
    held = {"embedding": cost.stage_embedding} | dict.fromkeys(ENDS[1:], cost.stage_head)
    layers = cost.stage_layers / arch.num_layers
    return replace(table, count=table.count * np.array([held.get(stem, layers) for stem in stems]))


def _repeated_s(table: OperatorTable, machine: Machine, recompute: int) -> float:
    """Time what recomputation repeats of a stage's forward pass."""
    # Operators of the backward pass have a dot in their names; ends are never run again.
    ahead = np.array(["." not in name and name not in ENDS for name in table.names])
    again = {0: np.zeros_like(ahead), 1: ahead & table.mask("attention"), 2: ahead}[recompute]
    return float((table.count * operator_times_s(table, machine))[again].sum())
