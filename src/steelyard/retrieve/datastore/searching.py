"""One search over lists of words and shards of vectors: of a datastore, and of a trial of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.index import Hits, checked_k
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.merging import merge_hits
from steelyard.retrieve.text.fusion import DEPTH
from steelyard.retrieve.text.lexical import BM25Index

__all__ = ["PassageEncoder", "StoreSearch", "encoded_texts"]

_BATCH = 1024


class PassageEncoder(Protocol):
    """Turns texts into vectors whose inner products are scores."""

    @property
    def fingerprint(self) -> str:
        """What tells this encoder from every other: a store answers to no other."""
        ...

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.floating]:
        """Return vectors of texts [N, D]."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSearch:
    """What a search of passages goes through.

    Attributes:
        shape: how words and vectors are made one.
        encoder: turns queries into vectors; None without shards.
        shards: indexes of vectors, searched together.
        words: lists of words, None where there are none.
    """

    shape: StoreShape
    encoder: PassageEncoder | None
    shards: Sequence[IVF]
    words: BM25Index | None

    def hits(self, queries: Sequence[str], count: int, *, nprobe: int | None = None) -> Hits:
        """Return the best passages of each query, with what the search did.

        Args:
            queries: texts.
            count: passages of each.
            nprobe: cells of each shard to look into; their own number where none is given.

        Returns:
            The hits.

        Raises:
            ConfigError: count or nprobe is below 1.
        """
        depth = max(checked_k(count), DEPTH) if self.words and self.shards else count
        words = self.words.search(queries, depth) if self.words else None
        if not self.shards:
            assert words is not None
            return words
        vectors = self.vector_hits(queries, depth, nprobe=nprobe)
        return vectors if words is None else self.shape.fusion.fuse(words, vectors, count)

    def vector_hits(self, queries: Sequence[str], count: int, *, nprobe: int | None = None) -> Hits:
        """Return the passages whose vectors are nearest; arguments as of `hits`."""
        assert self.encoder is not None
        asked = np.concatenate(list(encoded_texts(queries, self.encoder)))
        found = [shard.search(asked, count, nprobe=nprobe) for shard in self.shards]
        hits = merge_hits(found, count, "ip")
        # A text without a known word is a row of zeros, which is as near to any passage.
        is_blank = ~asked.any(axis=1)
        hits.ids[is_blank], hits.distances[is_blank] = -1, -np.inf
        return hits

    def ways(self) -> "dict[str, StoreSearch]":
        """Return the search by words alone and by vectors alone; none where there is one way."""
        if self.words is None or not self.shards:
            return {}
        return {"words": replace(self, shards=[]), "vectors": replace(self, words=None)}


def encoded_texts(texts: Sequence[str], encoder: PassageEncoder) -> Iterator[NDArray[np.float32]]:
    """Yield vectors of texts, a batch at a time.

    Args:
        texts: texts.
        encoder: turns them into vectors.

    Yields:
        float32 [B, D].
    """
    for first in range(0, len(texts), _BATCH):
        yield np.asarray(encoder.encode(texts[first : first + _BATCH]), np.float32)
