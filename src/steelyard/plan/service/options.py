"""The ways to split a model over the accelerators of one replica: step times and room for keys."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.memory import kv_bytes_per_token, serving_memory
from steelyard.cost.operators import operators
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.resident import StoredIn, resident_serving_memory
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.plan.concurrency import tensor_parallel_step_time
from steelyard.plan.fit import RESERVE
from steelyard.plan.intervals import served_relative
from steelyard.plan.serving_parts import decode_parts
from steelyard.units import pretty

__all__ = ["EngineOption", "engine_options", "memory_option", "own_option", "roofline_relative"]

_BOOK_BYTES = 48.0
"""Bytes that the engine's own process has for each token beside its keys and values: its id in
Python, and its share of its block's record and prefix hash. Measured with 100,000 blocks."""


_TYPICAL_BATCH, _TYPICAL_CONTEXT = 32, 512
"""A decoding step whose parts say how far a split's times may be off; of batches from 4 to 64 the
half-widths differ by two hundredths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOption:
    """One way to split a model over accelerators.

    Attributes:
        tensor: accelerators that share each layer.
        pipeline: stages of layers.
        step_time: seconds of a step through all stages.
        kv_tokens: tokens whose keys and values it holds; 0 where it does not even hold the weights.
        reason: why it holds none, else empty.
        step_tokens: tokens of the largest step that `kv_tokens` leaves memory for.
        kv_per_step_token: tokens of keys and values that each further token of a step displaces.
    """

    tensor: int
    pipeline: int
    step_time: PhaseStepTime
    kv_tokens: int
    reason: str = ""
    step_tokens: int = 0
    kv_per_step_token: float = 0.0

    def room(self, step_tokens: int) -> int:
        """Return the tokens whose keys and values it holds beside steps of a size.

        Args:
            step_tokens: tokens of the largest step.

        Returns:
            Tokens, at least 0.
        """
        displaced = (step_tokens - self.step_tokens) * self.kv_per_step_token
        return max(math.floor(self.kv_tokens - displaced), 0)

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
    kv_dtype_bytes: float = 0.0,
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
            prompts are not divided. `EngineOption.room` says what other steps leave.
        kv_dtype_bytes: bytes of an element of keys and values; by the machine's dtype when 0.
        tensors: accelerators that may share a layer; those that do not divide the heads are left
            out.
        pipelines: stages to try; more than there are layers are left out.

    Returns:
        The options, those that do not hold the weights among them.
    """
    base = _roofline(arch, machine)
    kv_bytes = kv_bytes_per_token(arch, kv_dtype_bytes or machine.dtype_bytes)
    return [
        _option(arch, machine, base, (tensor, pipeline), step_tokens, kv_bytes)
        for tensor in tensors
        for pipeline in pipelines
        if arch.num_heads % tensor == 0 and pipeline <= arch.num_layers
    ]


@lru_cache(maxsize=8)
def _roofline(arch: Architecture, machine: Machine) -> ServeStepTime:
    """Fit the roofline of a model on a machine, once for all splits and changes."""
    return ServeStepTime.from_roofline(arch, machine)


def _option(
    arch: Architecture,
    machine: Machine,
    base: ServeStepTime,
    split: tuple[int, int],
    step_tokens: int,
    kv_bytes: float,
) -> EngineOption:
    """Return one split."""
    tensor, pipeline = split
    times = tensor_parallel_step_time(base, arch, machine, tensor)
    if pipeline > 1 and machine.scale_up_bytes_per_s:
        times = _with_hops(times, arch, machine, pipeline)
    memory = serving_memory(
        arch,
        tokens_resident=0,
        step_tokens=step_tokens,
        dtype_bytes=machine.dtype_bytes,
        tensor_parallel=tensor,
    )
    # Stages share the weights; the activations of a step are as large in each, and the last one
    # has the logits.
    step = memory.activations + memory.workspace
    heads = 1 if arch.kv_lora_rank else arch.num_kv_heads
    relative = roofline_relative(arch, machine, tensor)
    return memory_option(
        (tensor, pipeline),
        replace(PhaseStepTime.of(times), relative_spread=relative),
        memory_bytes=machine.memory_bytes,
        fixed_bytes=memory.weights / pipeline,
        step_bytes=step / step_tokens,
        kv_bytes=kv_bytes / min(tensor, heads) / pipeline,
        step_tokens=step_tokens,
    )


def roofline_relative(arch: Architecture, machine: Machine, tensor: int) -> float:
    """Return how far an engine's steps may lie from the roofline.

    Args:
        arch: model that is served.
        machine: one of the accelerators, with its links.
        tensor: accelerators that share each layer.

    Returns:
        80 % half-width, relative, from published steps of engines whose time has the same parts;
        those of all engines, so that a slow one is inside.
    """
    table = operators(
        arch,
        phase="decode",
        tokens=1,
        context=_TYPICAL_CONTEXT,
        batch=_TYPICAL_BATCH,
        dtype_bytes=machine.dtype_bytes,
        tensor_parallel=tensor,
    )
    size = _TYPICAL_BATCH * arch.hidden_size * machine.dtype_bytes
    # One sum over the group after attention and one after the MLP.
    links_s = 2 * arch.num_layers * float(all_reduce_s(machine, size, tensor)) if tensor > 1 else 0
    return served_relative(machine, decode_parts(table, machine, links_s=links_s))


def memory_option(
    split: tuple[int, int],
    step_time: PhaseStepTime,
    *,
    memory_bytes: float,
    fixed_bytes: float,
    step_bytes: float,
    kv_bytes: float,
    step_tokens: int,
) -> EngineOption:
    """Return a split with the room for keys and values that its memory leaves.

    Args:
        split: accelerators that share each layer, and stages.
        step_time: seconds of a step through all stages.
        memory_bytes: memory of each accelerator; a reserve of it is left alone.
        fixed_bytes: what is there whatever is served, such as weights.
        step_bytes: bytes for each token of the largest step.
        kv_bytes: bytes of a token's keys and values, above 0.
        step_tokens: tokens of the largest step.

    Returns:
        The split; without room it says what it needs.
    """
    limit = memory_bytes * (1 - RESERVE)
    needed = fixed_bytes + step_bytes * step_tokens
    kv_tokens = max(math.floor((limit - needed) / kv_bytes), 0)
    reason = ""
    if not kv_tokens:
        reason = (
            f"needs {pretty(needed, 'byte')} without any keys and values, has "
            f"{pretty(limit, 'byte')} on each"
        )
    return EngineOption(
        tensor=split[0],
        pipeline=split[1],
        step_time=step_time,
        kv_tokens=kv_tokens,
        reason=reason,
        step_tokens=step_tokens,
        kv_per_step_token=step_bytes / kv_bytes,
    )


def own_option(
    arch: Architecture,
    step_time: PhaseStepTime,
    *,
    memory_bytes: float,
    process_bytes: float,
    max_num_seqs: int,
    step_tokens: int,
    dtype: StoredIn = "fp32",
) -> EngineOption:
    """Return the one way in which this package's own engine runs a model on a CPU.

    Args:
        arch: dense decoder.
        step_time: step times, such as those of `steelyard serve profile`.
        memory_bytes: what its process may come to hold.
        process_bytes: what it holds without a model.
        max_num_seqs: most sequences at once.
        step_tokens: tokens of the largest step.
        dtype: number format in which the layers are computed.

    Returns:
        The option.
    """
    # As many tokens as a step has are there whatever is served, so that the buffers are as long.
    found = resident_serving_memory(
        arch,
        sequences=max_num_seqs,
        context=step_tokens,
        dtype=dtype,
        process_bytes=process_bytes,
        step_tokens=step_tokens,
    )
    return memory_option(
        (1, 1),
        step_time,
        memory_bytes=memory_bytes,
        fixed_bytes=found.total - found.kv_cache - found.activations,
        step_bytes=found.activations / step_tokens,
        kv_bytes=kv_bytes_per_token(arch, 4.0 if dtype == "fp32" else 2.0) + _BOOK_BYTES,
        step_tokens=step_tokens,
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
