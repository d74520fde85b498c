"""Embeddings of prompts: the last hidden states of a decoder, pooled over each prompt."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.attention import Attend
from steelyard.nn.transformer import Transformer

__all__ = ["embed"]


def embed(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    pooling: Literal["mean", "last"] = "mean",
    normalize: bool = True,
    token_budget: int = 2048,
) -> np.ndarray:
    """Embed prompts by the hidden states after the model's last norm.

    Prompts run side by side as one flat batch without padding; within it, those of equal length
    share one attention call.

    Args:
        model: a decoder.
        prompts: token ids, at least one each.
        pooling: mean over the prompt's tokens, or its last token.
        normalize: scale to length 1, as the OpenAI API does; a zero vector stays zero.
        token_budget: most tokens of a batch; a longer prompt runs alone.

    Returns:
        float32 [n, C], in the order of `prompts`.

    Raises:
        ConfigError: a prompt is empty, too long, or has a token outside the vocabulary; it is
            named.
    """
    arch = model.architecture
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= arch.max_positions:
            raise ConfigError(
                f"prompt {index} has {len(prompt)} tokens, but 1 to {arch.max_positions} are "
                f"allowed",
                hint="cut it",
            )
        if not (min(prompt) >= 0 and max(prompt) < arch.vocab_size):
            raise ConfigError(
                f"prompt {index}: token ids must be in [0, {arch.vocab_size})",
                hint="encode it with this model's tokenizer",
            )
    out = np.empty((len(prompts), arch.hidden_size), dtype=np.float32)
    # By length, so that prompts of equal length stand together and share a call.
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    with torch.inference_mode():
        for batch in _batches([len(prompts[index]) for index in order], token_budget):
            rows = order[batch]
            pooled = _pool(model, [prompts[row] for row in rows], pooling).float()
            out[rows] = (
                torch.nn.functional.normalize(pooled, dim=-1) if normalize else pooled
            ).numpy(force=True)
    return out


def _batches(lengths: list[int], budget: int) -> Iterator[slice]:
    """Cut prompts into runs of at most `budget` tokens, or of one prompt."""
    first = used = 0
    for index, length in enumerate(lengths):
        if used and used + length > budget:
            yield slice(first, index)
            first = index
            used = 0
        used += length
    if lengths:
        yield slice(first, len(lengths))


def _pool(model: Transformer, prompts: list[Sequence[int]], pooling: str) -> Tensor:
    """Return the pooled hidden states [n, C] of prompts sorted by length."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    groups = [
        (length, sum(1 for _ in same)) for length, same in itertools.groupby(lengths.tolist())
    ]
    tokens = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    positions = torch.cat([torch.arange(length).repeat(count) for length, count in groups]).to(
        device
    )
    hidden = model.run(tokens, positions, _GroupedAttention(groups, model.attend))
    if pooling == "last":
        return hidden[lengths.to(device).cumsum(0) - 1]
    # Summed in float32: means over thousands of bfloat16 states would lose their last bits.
    parts = hidden.float().split([length * count for length, count in groups])
    return torch.cat(
        [
            part.unflatten(0, (count, length)).mean(1)
            for part, (length, count) in zip(parts, groups, strict=True)
        ]
    )


class _GroupedAttention:
    """Causal attention over a flat batch, one call per group of sequences of equal length."""

    def __init__(self, groups: list[tuple[int, int]], attend: Attend) -> None:
        """Keep (length, count) of the groups, in the order of the batch."""
        self.groups = groups
        self.attend = attend

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer; all are [T, heads, D]."""
        sizes = [length * count for length, count in self.groups]
        parts = zip(
            query.split(sizes), key.split(sizes), value.split(sizes), self.groups, strict=True
        )
        attended = [
            self.attend(layer, *(part.unflatten(0, (count, length)) for part in (q, k, v))).flatten(
                0, 1
            )
            for q, k, v, (length, count) in parts
        ]
        return torch.cat(attended)
