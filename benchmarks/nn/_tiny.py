"""Tiny models and sources of tokens for the checks that train."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn.moe.clip import SparseClip
from steelyard.nn.moe.losses import auxiliary_loss
from steelyard.nn.parts.noise import reseed
from steelyard.nn.transformer import Transformer

__all__ = ["Chain", "Markov", "tiny", "train_steps"]


def tiny(layers: int, hidden: int, **changes: Any) -> Architecture:
    """Make a small decoder with LayerNorm, biases and ReLU, as in the first Transformer.

    Args:
        layers: how many.
        hidden: width C; heads are 16 wide and MLPs 4 C.
        **changes: fields that differ.

    Returns:
        The architecture.
    """
    fields: dict[str, Any] = {
        "name": f"tiny-{layers}x{hidden}",
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": hidden // 16,
        "num_kv_heads": hidden // 16,
        "head_dim": 16,
        "intermediate_size": 4 * hidden,
        "vocab_size": 64,
        "max_positions": 1024,
        "norm": "layernorm",
        "mlp": "relu",
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    }
    return Architecture(**(fields | changes))


class Chain:
    """Tokens each drawn from a distribution that the token before decides.

    Attributes:
        floor: loss that knowing the chain reaches, nats per token.
    """

    def __init__(self, vocab: int, seed: int) -> None:
        """Draw the chain.

        Args:
            vocab: how many tokens there are.
            seed: of the chain and the batches.
        """
        self._generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(vocab, vocab, generator=self._generator)
        self._table = logits.softmax(1)
        # The share of time in each state: the rows of a high power of the table.
        share = torch.linalg.matrix_power(self._table.double(), 64)[0]
        entropy = -(self._table * self._table.log()).sum(1).double()
        self.floor = float(share @ entropy)

    def batch(self, size: int, length: int) -> Tensor:
        """Draw sequences.

        Args:
            size: B.
            length: T.

        Returns:
            int64 [B, T].
        """
        vocab = len(self._table)
        columns = [torch.randint(0, vocab, (size,), generator=self._generator)]
        for _ in range(length - 1):
            rows = self._table[columns[-1]]
            columns.append(torch.multinomial(rows, 1, generator=self._generator)[:, 0])
        return torch.stack(columns, dim=1)


class Markov:
    """Tokens that follow from the two before by a table too large for a small dense model.

    Each pair has one likely successor; a few percent of tokens are noise.
    """

    def __init__(self, vocab: int, seed: int, noise: float = 0.05) -> None:
        """Draw the table.

        Args:
            vocab: how many tokens there are; the table has their square.
            seed: of the table and the batches.
            noise: share of tokens drawn at random.
        """
        self._generator = torch.Generator().manual_seed(seed)
        self._table = torch.randint(0, vocab, (vocab, vocab), generator=self._generator)
        self._vocab, self._noise = vocab, noise

    def batch(self, size: int, length: int) -> Tensor:
        """Draw sequences.

        Args:
            size: B.
            length: T.

        Returns:
            int64 [B, T].
        """
        drawn = torch.randint(0, self._vocab, (size, length), generator=self._generator)
        is_noise = torch.rand(size, length, generator=self._generator) < self._noise
        for place in range(2, length):
            follows = self._table[drawn[:, place - 2], drawn[:, place - 1]]
            drawn[:, place] = torch.where(is_noise[:, place], drawn[:, place], follows)
        return drawn


def train_steps(
    model: Transformer,
    batches: list[Tensor],
    rate: float,
    clip: SparseClip | None = None,
    norms: list[float] | None = None,
) -> list[float]:
    """Train with Adam at a constant rate and no warm-up.

    Args:
        model: is changed.
        batches: int64 [B, T + 1], one per step.
        rate: learning rate.
        clip: clips gradients before each step, None for none.
        norms: receives the norm before each clip.

    Returns:
        Loss by step, nats per token; NaN from where it was no number.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for step, batch in enumerate(batches):
        reseed(model, step)
        logits = model(batch[:, :-1])
        each = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        optimizer.zero_grad()
        loss = each.mean()
        (loss + auxiliary_loss(model, each)).backward()
        if clip is not None:
            norm = float(clip())
            if norms is not None:
                norms.append(norm)
        optimizer.step()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return losses + [math.nan] * (len(batches) - len(losses))
    return losses
