"""Texts into vectors by a tower."""

import hashlib
import warnings
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from steelyard.errors import ConfigError, DataError, SteelyardWarning
from steelyard.nn.towers import Tower

__all__ = ["QueryEncoder", "TowerEncoder", "padded_tokens", "with_tokens"]

_BATCH_TOKENS = 8192


def padded_tokens(tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids as rows of one length.

    Args:
        tokens: ids of each text, at least one each.

    Returns:
        int64 [B, T] with zeros behind each text, and lengths int64 [B].
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    rows = np.zeros((len(tokens), int(lengths.max())), np.int64)
    ids = np.fromiter(chain.from_iterable(tokens), np.int64, int(lengths.sum()))
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = ids
    return torch.from_numpy(rows), torch.from_numpy(lengths)


class TowerEncoder:
    """A tower with its tokenizer.

    Attributes:
        tower: the tower.
        max_tokens: tokens that longer texts are cut to.
    """

    def __init__(self, tower: Tower, tokenizer: Tokenizer, *, max_tokens: int = 256) -> None:
        """Put a tower behind a tokenizer.

        Args:
            tower: the tower.
            tokenizer: makes its tokens.
            max_tokens: tokens that longer texts are cut to.

        Raises:
            ConfigError: the model has fewer positions.
        """
        most = tower.model.architecture.max_positions
        if not 1 <= max_tokens <= most:
            raise ConfigError(
                f"texts of {max_tokens} tokens", hint=f"the model takes 1 to {most} of them"
            )
        self.tower, self.max_tokens = tower, max_tokens
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """Makes the tower's tokens."""
        return self._tokenizer

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.tower.dim

    @property
    def fingerprint(self) -> str:
        """Hash of weights, vocabulary and longest text: an index answers to no other encoder."""
        found = hashlib.sha256(f"{self.tower.pooling} {self.max_tokens}".encode())
        found.update(self._tokenizer.to_str().encode())
        for name, part in sorted(self.tower.state_dict().items()):
            found.update(name.encode())
            found.update(part.detach().float().contiguous().numpy().tobytes())
        return f"tower-{found.hexdigest()[:16]}"

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return token ids of texts, cut to the longest that is taken.

        Args:
            texts: texts with a token at least.

        Returns:
            Ids of each text.

        Raises:
            DataError: a text has no token (its place is named).
        """
        found = [item.ids[: self.max_tokens] for item in self._tokenizer.encode_batch(list(texts))]
        empty = [place for place, row in enumerate(found) if not row]
        if empty:
            raise DataError(f"text {empty[0]} has no token", hint="leave empty texts out")
        return found

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of texts.

        Args:
            texts: texts with a token at least.

        Returns:
            float32 [N, D].

        Raises:
            DataError: a text has no token (its place is named).
        """
        rows = self.tokens(texts)
        found = np.empty((len(rows), self.dim), np.float32)
        was_training = self.tower.training
        self.tower.eval()
        # Texts of like length together: padding is computed too.
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        with torch.inference_mode():
            first = 0
            while first < len(order):
                last, longest = first + 1, len(rows[order[first]])
                while last < len(order):
                    longest = max(longest, len(rows[order[last]]))
                    if longest * (last + 1 - first) > _BATCH_TOKENS:
                        break
                    last += 1
                part = order[first:last]
                found[part] = self.tower(*padded_tokens([rows[place] for place in part])).numpy()
                first = last
        self.tower.train(was_training)
        return found


class QueryEncoder:
    """A tower of queries that asks the store of another tower's documents.

    Attributes:
        encoder: turns queries into vectors.
        fingerprint: that of the encoder of the documents, whose stores it may ask.
    """

    is_for_queries = True

    def __init__(self, encoder: TowerEncoder, fingerprint: str) -> None:
        """Say which documents a tower of queries was trained for.

        Args:
            encoder: trained or distilled for vectors of those documents.
            fingerprint: that of their encoder.
        """
        self.encoder, self.fingerprint = encoder, fingerprint

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.encoder.dim

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of queries [N, D]."""
        return self.encoder.encode(texts)


def with_tokens(texts: Sequence[str], *encoders: TowerEncoder) -> list[str]:
    """Return texts that have a token for every encoder.

    Args:
        texts: any texts.
        *encoders: encoders that will take them.

    Returns:
        The texts in order; how many were left out is said in a warning.
    """
    kept = np.ones(len(texts), bool)
    for encoder in encoders:
        encoded = encoder.tokenizer.encode_batch(list(texts))
        kept &= np.array([len(item.ids) > 0 for item in encoded], bool)
    dropped = len(texts) - int(kept.sum())
    if dropped:
        warnings.warn(
            f"{dropped} of {len(texts)} texts have no token and are left out",
            SteelyardWarning,
            stacklevel=2,
        )
    return [text for text, keeps in zip(texts, kept.tolist(), strict=True) if keeps]
