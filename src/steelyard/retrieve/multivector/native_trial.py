"""Native scores of documents beside those of the numba kernel, over all codecs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.multivector.codecs import ResidualTokens, TokenCodec, token_codec
from steelyard.retrieve.multivector.jobs import AskedTexts, ScoreJob
from steelyard.retrieve.multivector.layout import RecordLayout
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.writing import BuildCounts
from steelyard.retrieve.pq import ProductQuantizer

__all__ = ["difference"]

_TEXT, _DIM, _MOST, _DOCUMENTS = 24, 20, 9, 30
"""Numbers of a text and of a token that are no multiples of what kernels take at once."""


def difference(score: Callable[[ScoreJob, NDArray[np.uint8]], None]) -> float:
    """Return how many scores and states differ from those of the numba kernel.

    Args:
        score: fills a job in from all records by native code.

    Returns:
        Numbers that differ, over all codecs, damaged records and split documents among them.
    """
    rng = np.random.default_rng(1)
    tokens = [rng.normal(size=(length, _DIM)).astype(np.float32) for length in (0, 5, 40)]
    texts = rng.normal(size=(3, _TEXT)).astype(np.float32)
    wanted = np.tile(np.arange(_DOCUMENTS), (3, 1))
    wanted[1, ::2] = -1
    wrong = 0
    for store, raw in _stores():
        asked = AskedTexts.of(texts, tokens, store)
        ours, theirs = (ScoreJob.of(store, asked, wanted) for _ in range(2))
        score(ours, raw)
        theirs.score_compiled(raw)
        wrong += sum(
            int((getattr(ours, name) != getattr(theirs, name)).sum())
            for name in ("states", "text_scores", "token_scores")
        )
    return float(wrong)


def _stores() -> Iterator[tuple[MultiVectorStore, NDArray[np.uint8]]]:
    """Yield a store in memory for each codec, with its records."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(7, _DIM)).astype(np.float32)
    parts = rng.normal(size=(5, 256, 4)).astype(np.float32)
    codecs: tuple[TokenCodec, ...] = (
        token_codec("fp16", _DIM),
        token_codec("int8", _DIM),
        ResidualTokens(coarse, ProductQuantizer(parts)),
    )
    for codec in codecs:
        layout = RecordLayout(
            text_dim=_TEXT,
            token_dim=_DIM,
            token_bytes=codec.row_bytes,
            block_bytes=512,
            max_tokens=_MOST,
        )
        yield _filled(layout, codec, rng)


def _filled(
    layout: RecordLayout, codec: TokenCodec, rng: np.random.Generator
) -> tuple[MultiVectorStore, NDArray[np.uint8]]:
    """Return documents of 0 to 29 tokens; one of them is damaged."""
    records = []
    for number in range(_DOCUMENTS):
        rows = rng.normal(size=(number, _DIM)).astype(np.float32)
        text = rng.normal(size=_TEXT).astype(np.float16)
        records.append(layout.packed(number, text, codec.encode(rows)))
    records[7][40] ^= 1
    blocks = np.array([len(item) // layout.block_bytes for item in records], np.uint8)
    offsets = np.zeros(_DOCUMENTS, np.uint64)
    np.cumsum(blocks[:-1], dtype=np.uint64, out=offsets[1:])
    offsets *= np.uint64(layout.block_bytes)
    counts = BuildCounts(documents=_DOCUMENTS, longest_tokens=_MOST)
    store = MultiVectorStore(Path(), layout, codec, "", counts, offsets, blocks, None)
    raw: NDArray[Any] = np.concatenate(records)
    return store, raw
