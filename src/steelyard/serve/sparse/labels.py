"""What the controller learns from: which past tokens full attention attends most."""

from typing import Literal

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.attention import causal_attention
from steelyard.nn.traits import attention_traits
from steelyard.nn.transformer import Transformer

__all__ = ["Aggregation", "attention_rows", "refuse_limited_attention", "top_labels"]

Aggregation = Literal["mean", "max"]


@torch.inference_mode()
def attention_rows(
    model: Transformer, tokens: Tensor, queries: Tensor, *, aggregation: Aggregation = "mean"
) -> Tensor:
    """Run full attention and return some rows of its weights, averaged over heads.

    Args:
        model: a decoder.
        tokens: int64 [B, T].
        queries: int64 [Q] positions whose rows are wanted.
        aggregation: how layers are combined: by their mean, or by the largest.

    Returns:
        float32 [B, Q, T]; zero right of the diagonal; with "mean", rows sum to 1.

    Raises:
        ConfigError: the model's attention has windows or caps.
    """
    refuse_limited_attention(model, tokens.shape[1])
    length = tokens.shape[1]
    total = torch.zeros(len(tokens), len(queries), length, device=tokens.device)
    hidden = torch.arange(length, device=tokens.device) > queries[:, None]

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        picked = query[:, queries].transpose(1, 2).float()
        keys = key.transpose(1, 2).repeat_interleave(query.shape[2] // key.shape[2], 1).float()
        scores = picked @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1).mean(1)
        if aggregation == "mean":
            total.add_(weights, alpha=1 / len(model.layers))
        else:
            torch.maximum(total, weights, out=total)
        return causal_attention(layer, query, key, value)

    model.run(tokens, torch.arange(length, device=tokens.device), attend)
    return total


def refuse_limited_attention(model: Transformer, longest: int) -> None:
    """Refuse a model whose attention is not a plain softmax over all tokens that are kept.

    Args:
        model: a decoder.
        longest: tokens of the longest sequence.

    Raises:
        ConfigError: names its windows, caps, or rotations that differ by layer.
    """
    arch = model.architecture
    traits = attention_traits(arch, longest)
    if arch.no_rope_every or arch.local_rope_theta:
        traits.append("rotations that differ by layer")
    if traits:
        raise ConfigError(
            f"a cache that drops tokens does not know {' or '.join(traits)} of {arch.name}",
            hint="take the full cache",
        )


def top_labels(
    weights: Tensor, queries: Tensor, count: int, *, num_sinks: int = 4
) -> tuple[Tensor, Tensor]:
    """Mark the most attended past tokens of each row, first tokens left out.

    The first tokens draw attention that says nothing of their content; they are always cached and
    take no part.

    Args:
        weights: float32 [B, Q, T] from `attention_rows`.
        queries: int64 [Q] positions of the rows.
        count: tokens to mark, K; fewer where there are fewer.
        num_sinks: first tokens left out.

    Returns:
        Labels and the pairs that take part (past, not a sink), each bool [B, Q, T].
    """
    places = torch.arange(weights.shape[-1], device=weights.device)
    valid = ((places >= num_sinks) & (places < queries[:, None])).expand(weights.shape)
    ranked = weights.masked_fill(~valid, -torch.inf)
    count = min(count, weights.shape[-1])
    labels = torch.zeros_like(valid).scatter_(-1, ranked.topk(count, dim=-1).indices, True)
    return labels & valid, valid
