"""Prompts with full attention first: exact states of the best tokens, for more memory."""

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.nn.attention import causal_attention
from steelyard.serve.sparse.engine import SparseDecoder

__all__ = ["fill"]

_ROWS = 256
"""Queries whose attention weights are held at once."""


@torch.inference_mode()
def fill(decoder: SparseDecoder, row: int, prompt: np.ndarray) -> Tensor:
    """Run a whole prompt with full attention, then keep the tokens of most worth at its end.

    It takes memory for the keys and values of the whole prompt while it runs. Feeding the prompt in
    chunks does not, but each chunk then sees only what earlier releases left.

    Args:
        decoder: decoder with an empty slab for the request.
        row: row of the request.
        prompt: token ids [P], at least one.

    Returns:
        Logits after the last token, [V].

    Raises:
        ConfigError: the prompt is empty or longer than `max_length`, or the request has tokens
            already.
    """
    table = decoder.table
    policy = decoder.policy
    if not 1 <= len(prompt) <= decoder.tokens.shape[1] or table.lengths[row]:
        message = (
            f"a prompt of {len(prompt)} tokens for a request with {table.lengths[row]} "
            f"tokens cannot be filled in"
        )
        raise ConfigError(
            message,
            hint=f"free the request first; a prompt may have 1 to {decoder.tokens.shape[1]} tokens",
        )
    states = _Capture(count_mass=policy.signal == "attention")
    places = torch.arange(len(prompt), device=decoder.kv.device)
    hidden = decoder.model.run(torch.from_numpy(prompt).to(decoder.kv.device)[None], places, states)
    decoder.tokens[row, : len(prompt)] = prompt
    scores = (
        states.received.numpy(force=True)
        if states.received is not None
        else np.zeros(len(prompt), dtype=np.float32)
    )
    if decoder.memory is not None:
        for token in prompt:
            decoder.memory.append(np.array([row]), token[None])
        scores = decoder.memory.scores(np.array([row]))[row, : len(prompt)]
    kept = _best(decoder, len(prompt), scores)
    slots = table.on_append(np.full(len(kept), row), kept)
    table.received[row, slots] = scores[kept] if policy.signal == "attention" else 0.0
    for layer, (key, value) in enumerate(states.pairs):
        decoder.kv[layer, 0, row][:, slots] = key[0, kept].transpose(0, 1).to(decoder.kv.dtype)
        decoder.kv[layer, 1, row][:, slots] = value[0, kept].transpose(0, 1).to(decoder.kv.dtype)
    return decoder.model.head(hidden[0, -1])


class _Capture:
    """Causal attention that keeps keys and values, and adds up attention per token if asked."""

    def __init__(self, *, count_mass: bool) -> None:
        """Start empty."""
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.received: Tensor | None = None
        self.count_mass = count_mass

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer; shapes are those of `nn.layer.Attend` with one sequence."""
        self.pairs.append((key, value))
        if self.count_mass:
            mass = _column_sums(query[0].transpose(0, 1), key[0].transpose(0, 1))
            self.received = mass if self.received is None else self.received + mass
        return causal_attention(layer, query, key, value)


def _column_sums(query: Tensor, key: Tensor) -> Tensor:
    """Add up causal attention weights over queries and average them over heads, [T].

    Some rows at a time: all weights [H, T, T] would not fit for long prompts.

    Args:
        query: [H, T, D].
        key: [KV, T, D].

    Returns:
        [T].
    """
    length = query.shape[1]
    key = key.repeat_interleave(query.shape[0] // key.shape[0], 0)
    total = torch.zeros(length, device=query.device)
    for start in range(0, length, _ROWS):
        rows = torch.arange(start, min(start + _ROWS, length), device=query.device)
        scores = query[:, rows] @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        hidden = torch.arange(length, device=query.device) > rows[:, None]
        total += scores.masked_fill_(hidden, -torch.inf).softmax(-1).sum(1).mean(0)
    return total


def _best(decoder: SparseDecoder, length: int, scores: np.ndarray) -> np.ndarray:
    """Choose the positions to keep, rising; the last is always among them."""
    capacity = decoder.policy.capacity
    if not capacity or length <= capacity:
        return np.arange(length)
    worth = decoder.policy.priority(np.arange(length)[None], np.array([length - 1]), scores[None])[
        0
    ]
    worth[-1] = np.inf  # a controller scores past tokens, and may name the last one lowest
    return np.sort(np.argsort(-worth, kind="stable")[:capacity])
