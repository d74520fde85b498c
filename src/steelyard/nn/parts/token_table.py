"""Table of token embeddings, which may be the head as well."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function_unary

__all__ = ["TokenTable", "lend"]


class TokenTable(nn.Embedding):
    """An embedding that can lend its weight to the head, so that both have one gradient.

    A table's own gradient has all rows, nearly all of them zero, and adding it to the head's reads
    and writes both. Lent, the rows of the tokens are added to the head's where they stand.
    """

    def __init__(self, rows: int, width: int) -> None:
        """Lay out a table that is not yet filled.

        Args:
            rows: tokens of the vocabulary.
            width: columns.
        """
        # A table with a weight of its own draws nothing when it is made.
        super().__init__(rows, width, _weight=torch.empty(rows, width))
        self._lent: list[Tensor] | None = None

    @contextmanager
    def lending(self) -> Iterator[list[Tensor]]:
        """Lend the weight to the head inside the block.

        Yields:
            A list that holds the head's weight [V, C] once tokens were looked up. The head has to
            read that one, once, and nobody else may.
        """
        self._lent = lent = []
        try:
            yield lent
        finally:
            self._lent = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows [..., C] of tokens [...]."""
        if self._lent is None:
            return super().forward(tokens)
        rows, head = lend(self.weight, tokens)
        self._lent.append(head)
        return rows


def lend(weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Look tokens up in a table that is read as the head as well.

    Args:
        weight: the table [V, C].
        tokens: int64 [...].

    Returns:
        Rows [..., C], and the table for the head; the gradients of both are one.
    """
    # Modes that watch functions of torch are to see this one too.
    if has_torch_function_unary(weight):
        return handle_torch_function(lend, (weight,), weight, tokens)
    rows, head = _Lend.apply(weight, tokens)  # pyright: ignore[reportGeneralTypeIssues]
    return rows, head


class _Lend(torch.autograd.Function):
    """Rows of a table and the table itself."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Look tokens up."""
        ctx.save_for_backward(tokens)
        return weight[tokens], weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_rows: Tensor, to_head: Tensor) -> tuple[Tensor, None]:
        """Add the gradient of the rows to that of the head."""
        (tokens,) = ctx.saved_tensors
        # The head's gradient was made for this node alone.
        return to_head.index_add_(0, tokens.flatten(), to_rows.flatten(0, -2)), None
