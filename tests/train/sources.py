"""A token source made of noise with structure, for tests that need no text."""

import numpy as np


class MarkovTokens:
    """Tokens that mostly follow from their predecessor, so that a small model learns something."""

    bytes_per_token = 2.0
    tokenizer = None

    def __init__(
        self, vocab_size: int = 64, num_tokens: int = 20000, num_heldout: int = 2000
    ) -> None:
        rng = np.random.default_rng(7)
        successor = rng.permutation(vocab_size)
        tokens = rng.integers(0, vocab_size, num_tokens + num_heldout)
        for index in range(1, len(tokens)):
            if index % 4:
                tokens[index] = successor[tokens[index - 1]]
        self.vocab_size = vocab_size
        self.num_tokens = num_tokens
        self.heldout_tokens = tokens[num_tokens:]
        self._tokens = tokens[:num_tokens]

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int) -> np.ndarray:
        starts = np.random.default_rng((seed, index)).integers(
            0, self.num_tokens - sequence_length - 1, batch_size
        )
        return self._tokens[starts[:, None] + np.arange(sequence_length + 1)].astype(np.int64)
