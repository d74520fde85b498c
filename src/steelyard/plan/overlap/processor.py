"""A layer of a model that decodes on the processor, for measuring and running schedules."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.errors import CapacityError, ConfigError
from steelyard.plan.overlap.threads import RunnableOperation

__all__ = ["decoding_layer"]

_MOST_BYTES = 4e9


def decoding_layer(
    arch: Architecture,
    *,
    tokens: int,
    context: int,
    generator: torch.Generator,
    num_layers: int = 2,
) -> list[RunnableOperation]:
    """Make operations that run layers of random weights: every token decodes over its context.

    Norms, rotary positions and activations are left out, as their time is small.

    Args:
        arch: dense model; its sizes count.
        tokens: sequences that decode.
        context: tokens that each attends.
        generator: source of weights, keys and values.
        num_layers: layers with weights, keys and values of their own.

    Returns:
        Operations of a layer; all work on one residual stream in place, float32.

    Raises:
        ConfigError: the model has experts or latent attention, or a size is below 1.
        CapacityError: weights, keys and values would take more than 4 GB.
    """
    if arch.num_experts or arch.kv_lora_rank or min(tokens, context, num_layers) < 1:
        raise ConfigError(
            f"{arch.name} with {tokens} tokens over {context}: a dense model and sizes of at least "
            f"1 are needed"
        )
    hidden, width, kv = arch.hidden_size, arch.head_dim, arch.num_kv_heads
    wide, inner = arch.num_heads * width, arch.intermediate_size
    inputs = 2 if arch.mlp in ("swiglu", "geglu") else 1
    cached = 2 * tokens * kv * context * width
    weights = hidden * (2 * wide + 2 * kv * width + (1 + inputs) * inner)
    size = 4.0 * num_layers * (cached + weights)
    if size > _MOST_BYTES:
        raise CapacityError(
            f"{num_layers} layers of {arch.name} with {tokens} x {context} tokens take "
            f"{size / 1e9:.1f} GB",
            hint="give fewer tokens (--batch) or a shorter context (--prompt, --output)",
        )

    def drawn(*shape: int) -> list[Tensor]:
        scale = 1 / math.sqrt(shape[-1])
        return [scale * torch.randn(shape, generator=generator) for _ in range(num_layers)]

    stream = torch.randn(tokens, hidden, generator=generator)
    projected = torch.zeros(tokens, wide + 2 * kv * width)
    attended, out = torch.zeros(tokens, wide), torch.zeros(tokens, hidden)
    grown = torch.zeros(tokens, inputs * inner)
    cache = drawn(tokens, kv, context, width), drawn(tokens, kv, context, width)
    return [
        _product("qkv", stream, drawn(projected.shape[1], hidden), projected, (), ("down",)),
        _attention(projected[:, :wide], *cache, attended),
        _product("out", attended, drawn(hidden, wide), out, ("decode_attention",)),
        _product("up", out, drawn(inputs * inner, hidden), grown, ("out",)),
        _product("down", grown[:, :inner], drawn(hidden, inner), stream, ("up",)),
    ]


def _attention(
    queries: Tensor, keys: list[Tensor], values: list[Tensor], target: Tensor
) -> RunnableOperation:
    """Make attention of every token over its own context, keys and values [T, KV, C, D]."""
    kv, width = keys[0].shape[1], keys[0].shape[3]

    def attend(layer: int, first: int, last: int, part: int, parts: int) -> None:
        with torch.inference_mode():
            for row in _rows(first, last, part, parts):
                query = queries[row].reshape(-1, kv, queries.shape[1] // kv // width, width)
                scores = query @ keys[layer][row].transpose(-1, -2)
                found = torch.softmax(scores / math.sqrt(width), dim=-1) @ values[layer][row]
                target[row] = found.reshape(-1, queries.shape[1])

    return RunnableOperation(
        name="decode_attention",
        kind="decode_attention",
        resource="memory",
        work=attend,
        after=("qkv",),
    )


def _rows(first: int, last: int, part: int, parts: int) -> list[slice]:
    """Return the tokens of a part as slices of at most 16, whose scores stay in the cache."""
    low, high = (first + (last - first) * item // parts for item in (part, part + 1))
    return [slice(at, min(at + 16, high)) for at in range(low, high, 16)]


def _product(
    name: str,
    source: Tensor,
    weights: list[Tensor],
    target: Tensor,
    after: tuple[str, ...],
    after_layer: tuple[str, ...] = (),
) -> RunnableOperation:
    """Make a product of tokens with a layer's weights."""

    def multiply(layer: int, first: int, last: int, part: int, parts: int) -> None:
        low, high = (first + (last - first) * item // parts for item in (part, part + 1))
        with torch.inference_mode():
            torch.mm(source[low:high], weights[layer].t(), out=target[low:high])

    work: Callable[[int, int, int, int, int], None] = multiply
    return RunnableOperation(
        name=name,
        kind="gemm",
        resource="compute",
        work=work,
        after=after,
        after_layer=after_layer,
    )
