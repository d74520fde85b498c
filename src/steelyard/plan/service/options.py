"""The ways to split a model over the accelerators of one replica: step times and room for keys."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.cost.memory import kv_bytes_per_token, serving_memory
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.plan.concurrency import tensor_parallel_step_time
from steelyard.plan.fit import RESERVE

__all__ = ["EngineOption", "engine_options"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOption:
    """One way to split a model over accelerators.

    Attributes:
        tensor: accelerators that share each layer.
        pipeline: stages of layers.
        step_time: seconds of a step through all stages.
        kv_tokens: tokens whose keys and values it holds; 0 where it does not even hold the weights.
        reason: why it holds none, else empty.
    """

    tensor: int
    pipeline: int
    step_time: PhaseStepTime
    kv_tokens: int
    reason: str = ""

    @property
    def num_devices(self) -> int:
        """Accelerators of a replica."""
        return self.tensor * self.pipeline

    @property
    def words(self) -> str:
        """Such as "TP 4" or "TP 4, PP 2"."""
        return f"TP {self.tensor}" + (f", PP {self.pipeline}" if self.pipeline > 1 else "")


def engine_options(
    arch: Architecture,
    machine: Machine,
    *,
    step_tokens: int,
    tensors: Iterable[int] = (1, 2, 4, 8),
    pipelines: Iterable[int] = (1, 2, 4),
) -> list[EngineOption]:
    """Return every split of a model whose step times come from the roofline of a machine.

    Keys and values get what the memory leaves beside the weights, the activations and logits of the
    largest step, and a reserve for driver and kernels.

    Args:
        arch: model that is served.
        machine: one of the accelerators, with its links.
        step_tokens: tokens of the largest step: the token budget, or the longest prompt where
            prompts are not divided.
        tensors: accelerators that may share a layer; those that do not divide the heads are left
            out.
        pipelines: stages to try; more than there are layers are left out.

    Returns:
        The options, those that do not hold the weights among them.
    """
    base = ServeStepTime.from_roofline(arch, machine)
    return [
        _option(arch, machine, base, tensor, pipeline, step_tokens)
        for tensor in tensors
        for pipeline in pipelines
        if arch.num_heads % tensor == 0 and pipeline <= arch.num_layers
    ]


def _option(
    arch: Architecture,
    machine: Machine,
    base: ServeStepTime,
    tensor: int,
    pipeline: int,
    step_tokens: int,
) -> EngineOption:
    """Return one split."""
    split = tensor_parallel_step_time(base, arch, machine, tensor)
    if pipeline > 1 and machine.scale_up_bytes_per_s:
        split = _with_hops(split, arch, machine, pipeline)
    memory = serving_memory(
        arch,
        tokens_resident=0,
        step_tokens=step_tokens,
        dtype_bytes=machine.dtype_bytes,
        tensor_parallel=tensor,
    )
    # Stages share the weights; the activations of a step are as large in each, and the last one
    # has the logits.
    fixed = memory.weights / pipeline + memory.activations + memory.workspace
    room = machine.memory_bytes * (1 - RESERVE) - fixed
    heads = 1 if arch.kv_lora_rank else arch.num_kv_heads
    each = kv_bytes_per_token(arch, machine.dtype_bytes) / min(tensor, heads) / pipeline
    reason = ""
    if room < each:
        reason = (
            f"needs {fixed / 1e9:,.0f} GB without any keys and values, has "
            f"{machine.memory_bytes * (1 - RESERVE) / 1e9:,.0f} GB on each"
        )
    return EngineOption(
        tensor=tensor,
        pipeline=pipeline,
        step_time=PhaseStepTime.of(split),
        kv_tokens=max(int(np.floor(room / each)), 0),
        reason=reason,
    )


def _with_hops(
    model: ServeStepTime, arch: Architecture, machine: Machine, pipeline: int
) -> ServeStepTime:
    """Add the transfers of activations between stages."""
    rate = machine.scale_up_bytes_per_s * machine.efficiencies.link
    token_s = (pipeline - 1) * arch.hidden_size * machine.dtype_bytes / rate
    added = {"prefill_tokens": token_s, "decode_tokens": token_s}
    return replace(
        model,
        coefficients=tuple(
            value + added.get(name, 0.0)
            for name, value in zip(FEATURES, model.coefficients, strict=True)
        ),
        source=f"{model.source}, {pipeline} stages",
    )
