"""Windows of text: a part that is known, and a part that a reader predicts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from steelyard.errors import ConfigError, DataError

__all__ = ["ReadingWindows", "cut_windows"]

Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadingWindows:
    """Windows of documents, all of one length.

    Attributes:
        known: tokens that are given [W, C].
        wanted: tokens behind them that are predicted [W, A].
        queries: text of the known part, which passages are looked up by.
        answers: text of the wanted part, which passages may not hold.
        answer_bytes: bytes of each answer in UTF-8 [W].
        sources: name of the document of each window.
    """

    known: Tokens
    wanted: Tokens
    queries: list[str]
    answers: list[str]
    answer_bytes: Tokens
    sources: list[str]

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self.known)

    def part(self, rows: slice) -> "ReadingWindows":
        """Return some of the windows.

        Args:
            rows: which.

        Returns:
            Those windows, in their order.
        """
        return ReadingWindows(
            **{item.name: getattr(self, item.name)[rows] for item in fields(self)}
        )

    def bits_per_byte(self, losses: NDArray[np.floating]) -> float:
        """Return what readers of different tokenizers are compared by.

        Args:
            losses: mean nats per token of each window [W].

        Returns:
            Bits per byte of all answers.
        """
        nats = float((losses * self.wanted.shape[1]).sum())
        return nats / np.log(2) / float(self.answer_bytes.sum())


def cut_windows(
    documents: Sequence[tuple[str, str]],
    tokenizer: Tokenizer,
    *,
    known_tokens: int = 128,
    wanted_tokens: int = 128,
    most: int | None = None,
    seed: int = 0,
) -> ReadingWindows:
    """Cut documents into windows that share no predicted token.

    Args:
        documents: names and texts.
        tokenizer: the reader's.
        known_tokens: tokens C that are given and searched with.
        wanted_tokens: tokens A that are predicted; windows begin this far from each other.
        most: windows to draw from all; None for all.
        seed: seed of the draw.

    Returns:
        The windows, in the order of the documents.

    Raises:
        ConfigError: a length is below 1.
        DataError: no document has so many tokens.

    Source: Shao et al. 2024 (arXiv 2407.12854), perplexity: windows of 1,024 tokens at a stride of
        512, whose first half is query and context and whose second half is predicted.
    """
    if known_tokens < 1 or wanted_tokens < 1:
        raise ConfigError(
            f"windows of {known_tokens} known and {wanted_tokens} wanted tokens",
            hint="give 1 or more of each",
        )
    length = known_tokens + wanted_tokens
    rows, sources = [], []
    for name, text in documents:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for first in range(0, len(ids) - length + 1, wanted_tokens):
            rows.append(ids[first : first + length])
            sources.append(name)
    if not rows:
        raise DataError(
            f"no document of {len(documents)} has {length} tokens",
            hint="give longer documents, or shorter windows",
        )
    chosen = np.arange(len(rows))
    if most is not None and most < len(rows):
        chosen = np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))
    tokens = np.array([rows[place] for place in chosen.tolist()], np.int64)
    known, wanted = tokens[:, :known_tokens], tokens[:, known_tokens:]
    answers = tokenizer.decode_batch(wanted.tolist())
    return ReadingWindows(
        known=known,
        wanted=wanted,
        queries=tokenizer.decode_batch(known.tolist()),
        answers=answers,
        answer_bytes=np.array([len(text.encode()) for text in answers], np.int64),
        sources=[sources[place] for place in chosen.tolist()],
    )
