"""Four numbers of long-context serving: users at once, prefill, decode and context switch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.efficiency import Efficiencies
from steelyard.cost.flops import AttentionConvention, attention_flops
from steelyard.cost.held import parameter_count
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import CatalogError, ConfigError, require

__all__ = ["Bound", "KVSpec", "ServePoint", "serve_point"]

Bound = Literal["compute", "bandwidth", "link"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVSpec:
    """How much of the plain 16-bit key/value cache is kept, along four axes; 1 keeps all.

    Attributes:
        layers: share of the layers that keep a cache of their own.
        heads: share of the key/value heads that is kept.
        tokens: share of the tokens that is kept.
        hidden: share of each vector's bits that is kept, by fewer bits or a smaller width; 0.25 is
            4 bits for 16.
    """

    layers: float = 1.0
    heads: float = 1.0
    tokens: float = 1.0
    hidden: float = 1.0

    def __post_init__(self) -> None:
        """Refuse shares outside (0, 1]."""
        shares = {name: getattr(self, name) for name in ("layers", "heads", "tokens", "hidden")}
        require(self, **{name: (0 < share <= 1, "in (0, 1]") for name, share in shares.items()})

    @property
    def kept(self) -> float:
        """Share of the bytes that is kept: the product of the axes, if they are independent."""
        return self.layers * self.heads * self.tokens * self.hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class ServePoint:
    """What one accelerator (or tensor-parallel group) can do for users of one context length.

    Attributes:
        kv_bytes: bytes of one user's keys and values.
        concurrency: users whose cache fits beside the weights; 0 when the weights do not fit.
        prefill_s: time to process the context.
        decode_s_per_token: time of one token with `batch` users resident.
        switch_s: time to move one user's cache out and another's in.
        critical_batch: batch below which decoding stays memory-bound.
        needs_accelerators: accelerators that hold weights and one user.
        weights_read_s: part of `decode_s_per_token` that all users of a batch share; 0 when
            decoding is compute-bound.
        bounds: what limits "prefill", "decode" and "switch".
        beyond_positions: whether the context is longer than the model was made for.
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
        arch: model that is served.
        accelerator: record with memory, bandwidth, peak and host link.
        context: tokens of one user, at least 1.
        batch: users that decode together.
        tensor_parallel: accelerators that share the work; communication is left out.
        dtype: number format of weights and cache.
        efficiencies: fractions of the peaks that are reached; all of them when not given.
        convention: how attention FLOPs count.
        reserve_fraction: share of memory kept free for activations and the runtime.
        parameters: rounded count that replaces the architecture's exact one.
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
    weights = count * machine.dtype_bytes
    cache = context * kv_bytes_per_token(arch, machine.dtype_bytes) * (kv or KVSpec()).kept
    usable = accelerator.memory_bytes * (1 - reserve_fraction)
    rate = machine.peak_flops_per_s * machine.efficiencies.matmul * tensor_parallel
    bandwidth = machine.memory_bytes_per_s * tensor_parallel
    link = accelerator.host_link_bytes_per_s * machine.efficiencies.link * tensor_parallel
    attention = attention_flops(arch, context, convention=convention)
    weights_s = weights / bandwidth
    prefill_s, prefill_bound = _slower((2 * count * context + attention) / rate, weights_s)
    # All users of a batch share one read of the weights; each brings the read of its own cache.
    decode_s, decode_bound = _slower(
        2 * count * batch / rate, (weights + batch * cache) / bandwidth
    )
    return ServePoint(
        kv_bytes=cache,
        concurrency=max(0, math.floor((usable * tensor_parallel - weights) / cache)),
        prefill_s=prefill_s,
        decode_s_per_token=decode_s,
        switch_s=2 * cache / link,
        critical_batch=rate / bandwidth * machine.dtype_bytes / 2,
        needs_accelerators=math.ceil((weights + cache) / usable),
        weights_read_s=weights_s if decode_bound == "bandwidth" else 0.0,
        bounds={"prefill": prefill_bound, "decode": decode_bound, "switch": "link"},
        beyond_positions=context > arch.max_positions,
    )


def _slower(compute_s: float, bandwidth_s: float) -> tuple[float, Bound]:
    """Return the longer of two times and what it stands for."""
    if compute_s >= bandwidth_s:
        return compute_s, "compute"
    return bandwidth_s, "bandwidth"
