"""Four numbers of long-context serving: concurrent users, prefill, decode and context-switch latency."""

import math
from dataclasses import dataclass

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.flops import AttentionConvention, attention_flops
from steelyard.cost.memory import parameter_count
from steelyard.cost.operators import kv_bytes_per_token
from steelyard.cost.roofline import Efficiencies, Machine
from steelyard.errors import CatalogError, ConfigError

__all__ = ["ServePoint", "serve_point"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServePoint:
    """What one accelerator (or tensor-parallel group) can do for users of one context length.

    Attributes:
        kv_bytes: keys and values of one user.
        concurrency: users whose cache fits beside the weights; 0 when the weights do not fit.
        prefill_s: time to process the context.
        decode_s_per_token: time of one token with `batch` users resident.
        switch_s: one user's cache out and another's in.
        critical_batch: decoding stays memory-bound below it.
        needs_accelerators: accelerators that hold weights and one user.
    """

    kv_bytes: float
    concurrency: int
    prefill_s: float
    decode_s_per_token: float
    switch_s: float
    critical_batch: float
    needs_accelerators: int


def serve_point(
    arch: Architecture,
    accelerator: Accelerator,
    *,
    context: int,
    batch: int = 1,
    tensor_parallel: int = 1,
    dtype: str = "bf16",
    efficiencies: Efficiencies | None = None,
    convention: AttentionConvention = "causal",
    reserve_fraction: float = 0.0,
    parameters: float | None = None,
) -> ServePoint:
    """Give the four numbers of serving at a context length.

    Args:
        arch: the model.
        accelerator: needs memory, bandwidth, peak and host link.
        context: tokens of one user, at least 1.
        batch: users decoding together.
        tensor_parallel: accelerators that share the work; communication is left out.
        dtype: of weights and cache.
        efficiencies: published peaks (`Efficiencies.peak()`) when not given.
        convention: how attention FLOPs count.
        reserve_fraction: memory kept free for activations and the runtime.
        parameters: rounded count to use instead of the architecture's exact one.

    Returns:
        The point.

    Raises:
        CatalogError: the accelerator lacks its host link.
        ConfigError: a count is smaller than 1.

    Source: Fu 2024 (arXiv 2405.08944), section 2.
    """
    if min(context, batch, tensor_parallel) < 1:
        raise ConfigError("context, batch and tensor_parallel must be at least 1")
    if not accelerator.host_link_bytes_per_s:
        raise CatalogError(f"{accelerator.name} lacks host_link_bytes_per_s", hint="add it to a record in the user catalog")
    machine = Machine.from_accelerator(accelerator, dtype=dtype, efficiencies=efficiencies or Efficiencies.peak())
    count = sum(parameter_count(arch)) if parameters is None else parameters
    weights, cache = count * machine.dtype_bytes, context * kv_bytes_per_token(arch, machine.dtype_bytes)
    usable = accelerator.memory_bytes * (1 - reserve_fraction)
    flops = 2 * count * context + attention_flops(arch, context, convention=convention)
    rate = machine.peak_flops_per_s * machine.efficiencies.matmul * tensor_parallel
    bandwidth = machine.memory_bytes_per_s * tensor_parallel
    link = accelerator.host_link_bytes_per_s * machine.efficiencies.link * tensor_parallel
    return ServePoint(
        kv_bytes=cache,
        concurrency=max(0, math.floor((usable * tensor_parallel - weights) / cache)),
        prefill_s=flops / rate,
        decode_s_per_token=(weights + batch * cache) / bandwidth,
        switch_s=2 * cache / link,
        critical_batch=rate / bandwidth * machine.dtype_bytes / 2,
        needs_accelerators=math.ceil((weights + cache) / usable),
    )
