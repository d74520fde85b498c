"""A decoder and noise to train it on, for checks of processes and of speed."""

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.train import TrainConfig

__all__ = ["RandomTokens", "decoder", "shared_run"]


class RandomTokens:
    """Uniform noise in memory: the cheapest source there is, for both sides."""

    bytes_per_token = 1.0
    tokenizer = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tokens = np.random.default_rng(0).integers(0, vocab_size, 1 << 20)
        self.num_tokens = len(self._tokens)
        self.heldout_tokens = self._tokens[:1024]

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int) -> np.ndarray:
        """Cut consecutive windows [B, T + 1]."""
        size = batch_size * (sequence_length + 1)
        start = index * size % (self.num_tokens - size)
        return self._tokens[start : start + size].reshape(batch_size, sequence_length + 1)


def decoder(hidden_size: int, num_layers: int, vocab_size: int) -> Architecture:
    """Return the shape of a decoder with heads of 32."""
    return Architecture(
        name=f"h{hidden_size}-l{num_layers}",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 32,
        num_kv_heads=hidden_size // 32,
        head_dim=32,
        intermediate_size=hidden_size * 8 // 3,
        vocab_size=vocab_size,
    )


def shared_run(architecture: Architecture, *, batch_size: int, steps: int) -> TrainConfig:
    """Make a run whose steps two processes can share: two micro-batches, one thread each."""
    return TrainConfig(
        architecture=architecture,
        steps=steps,
        batch_size=batch_size,
        accumulation=2,
        sequence_length=128,
        learning_rate=1e-3,
        threads=1,
    )
