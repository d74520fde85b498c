"""Hidden states of many sequences, moved through a model layer by layer."""

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.transformer import Transformer

__all__ = ["HiddenStates", "matrix_of", "wide_layer"]

_BATCH_TOKENS = 4096
"""Tokens that pass a layer at once, which bounds memory."""


class HiddenStates:
    """Where sequences stand between two layers; a model needs no more memory than one layer.

    Attributes:
        model: what they pass.
        tokens: int64 [S, T].
        hidden: residual stream, float32 [S, T, C].
        index: the layer that comes next.
    """

    def __init__(self, model: Transformer, tokens: Tensor) -> None:
        """Stand before the first layer.

        Args:
            model: a decoder on the CPU, of any type; only its head and its tables are read.
            tokens: int64 [S, T]; T at most `max_positions`.
        """
        self.model, self.tokens, self.index = model, tokens, 0
        positions = torch.arange(tokens.shape[1])
        self.hidden, self._rotations = model.enter(tokens, positions, torch.float32)

    def copy(self) -> "HiddenStates":
        """Return states that pass on by themselves."""
        twin = copy.copy(self)
        twin.hidden = self.hidden.clone()
        return twin

    def run(self, layer: nn.Module, rows: slice, keep: Callable[[int, Tensor], None]) -> None:
        """Run some sequences through a layer.

        Args:
            layer: the one that comes next, in float32.
            rows: the sequences.
            keep: told the first sequence of each batch, and what came out.
        """
        rotation = self._rotations[self.index]
        first, last, _ = rows.indices(len(self.hidden))
        each = max(1, _BATCH_TOKENS // self.tokens.shape[1])
        for start in range(first, last, each):
            part = self.hidden[start : min(start + each, last)]
            keep(start, layer(part, rotation, self.model.attend))

    def advance(self, layer: nn.Module) -> None:
        """Pass a layer.

        Args:
            layer: the one that comes next, in float32.
        """

        def keep(start: int, passed: Tensor) -> None:
            self.hidden[start : start + len(passed)] = passed

        self.run(layer, slice(None), keep)
        self.index += 1

    def losses(self, first: int = 0, rows: slice | None = None) -> Tensor:
        """Return the mean cross-entropy of each sequence after the last layer.

        Args:
            first: tokens before this one are given, not predicted; the first token always is.
            rows: the sequences; all by default.

        Returns:
            float64 [S], nats per token.
        """
        model = self.model
        norm = copy.deepcopy(model.norm).float()
        head = (model.embedding if model.output is None else model.output).weight.float()
        found = []
        begin = max(first, 1)
        chosen = slice(None) if rows is None else rows
        for hidden, tokens in zip(self.hidden[chosen], self.tokens[chosen], strict=True):
            logits = model.finish(F.linear(norm(hidden[begin - 1 : -1]), head))
            found.append(F.cross_entropy(logits, tokens[begin:]).double())
        return torch.stack(found)


def wide_layer(model: Transformer, index: int) -> DecoderLayer:
    """Return a copy of a layer in float32."""
    return cast(DecoderLayer, copy.deepcopy(model.layers[index]).float())


def matrix_of(layer: nn.Module, name: str) -> Tensor:
    """Return the weight [N, K] of a matrix of a layer, by the matrix's name."""
    return layer.get_parameter(f"{name}.weight")
