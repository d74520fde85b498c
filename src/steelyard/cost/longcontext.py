"""Four numbers of long-context serving.

Concurrent users, prefill, decode and context-switch latency.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.flops import AttentionConvention, attention_flops
from steelyard.cost.memory import parameter_count
from steelyard.cost.operators import kv_bytes_per_token
from steelyard.cost.roofline import Efficiencies, Machine
from steelyard.errors import CatalogError, ConfigError

__all__ = ["Bound", "KVSpec", "ServePoint", "serve_point"]

Bound = Literal["compute", "bandwidth", "link"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVSpec:
    """How much of the plain 16-bit key/value cache is kept, along four axes; 1 keeps all.

    Attributes:
        layers: share of the layers that keep a cache of their own.
        heads: share of the key/value heads kept.
        tokens: share of the tokens kept.
        hidden: share of each vector's bits kept, by fewer bits or a smaller width; 0.25 is 4 bits
            for 16.
    """

    layers: float = 1.0
    heads: float = 1.0
    tokens: float = 1.0
    hidden: float = 1.0

    def __post_init__(self) -> None:
        """Refuse shares outside (0, 1]."""
        for name in ("layers", "heads", "tokens", "hidden"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(
                    f"KVSpec {name} is {getattr(self, name):g}, but a share kept lies in (0, 1]"
                )

    @property
    def kept(self) -> float:
        """Share of the bytes kept: the product of the axes, which holds if they are independent of each other."""
        return self.layers * self.heads * self.tokens * self.hidden


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
        weights_read_s: share of `decode_s_per_token` that all users of a batch have in common; 0
            when decoding is compute-bound.
        bounds: what limits "prefill", "decode" and "switch".
        beyond_positions: the context is longer than the model was made for.
    """

    kv_bytes: float
    concurrency: int
    prefill_s: float
    decode_s_per_token: float
    switch_s: float
    critical_batch: float
    needs_accelerators: int
    weights_read_s: float
    bounds: Mapping[str, Bound]
    beyond_positions: bool


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
    kv: KVSpec | None = None,
) -> ServePoint:
    """Return the four numbers of serving at a context length.

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
        kv: compression of the cache; it changes concurrency, decoding and switching, and never
            prefill.

    Returns:
        The point. Prefill and decoding take the longer of their products and their memory traffic.

    Raises:
        CatalogError: the accelerator lacks its host link.
        ConfigError: a count is smaller than 1.

    Source: Fu 2024 (arXiv 2405.08944), section 2.
    """
    if min(context, batch, tensor_parallel) < 1:
        raise ConfigError("context, batch and tensor_parallel must be at least 1")
    if not accelerator.host_link_bytes_per_s:
        raise CatalogError(
            f"{accelerator.name} lacks host_link_bytes_per_s",
            hint="add it to a record in the user catalog",
        )
    machine = Machine.from_accelerator(
        accelerator, dtype=dtype, efficiencies=efficiencies or Efficiencies.peak()
    )
    count = sum(parameter_count(arch)) if parameters is None else parameters
    weights, cache = (
        count * machine.dtype_bytes,
        context * kv_bytes_per_token(arch, machine.dtype_bytes) * (kv or KVSpec()).kept,
    )
    usable = accelerator.memory_bytes * (1 - reserve_fraction)
    rate = machine.peak_flops_per_s * machine.efficiencies.matmul * tensor_parallel
    bandwidth = machine.memory_bytes_per_s * tensor_parallel
    link = accelerator.host_link_bytes_per_s * machine.efficiencies.link * tensor_parallel
    attention = attention_flops(arch, context, convention=convention)
    prefill = {
        "compute": (2 * count * context + attention) / rate,
        "bandwidth": weights / bandwidth,
    }
    decode = {
        "compute": 2 * count * batch / rate,
        "bandwidth": (weights + batch * cache) / bandwidth,
    }
    bounds: dict[str, Bound] = {
        "prefill": _longest(prefill),
        "decode": _longest(decode),
        "switch": "link",
    }
    return ServePoint(
        kv_bytes=cache,
        concurrency=max(0, math.floor((usable * tensor_parallel - weights) / cache)),
        prefill_s=max(prefill.values()),
        decode_s_per_token=max(decode.values()),
        switch_s=2 * cache / link,
        critical_batch=rate / bandwidth * machine.dtype_bytes / 2,
        needs_accelerators=math.ceil((weights + cache) / usable),
        weights_read_s=weights / bandwidth if bounds["decode"] == "bandwidth" else 0.0,
        bounds=bounds,
        beyond_positions=context > arch.max_positions,
    )


def _longest(times: Mapping[str, float]) -> Bound:
    """Name what takes longest."""
    return "compute" if times["compute"] >= times["bandwidth"] else "bandwidth"
