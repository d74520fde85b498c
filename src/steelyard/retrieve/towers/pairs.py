"""Pairs of texts as batches for contrastive training."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.data.index import Permutation
from steelyard.data.sketch.hashing import hash_texts
from steelyard.errors import DataError
from steelyard.retrieve.towers.encoder import padded_tokens
from steelyard.train.contrastive import pair_batch

__all__ = ["TextPairs"]

Tokens = Callable[[Sequence[str]], list[list[int]]]


class TextPairs:
    """Queries with their documents, in a new order each epoch.

    Attributes:
        queries: texts.
        documents: texts; query i belongs to document `own[i]`.
        own: place of each query's document, int64 [Q].
        hard: places of documents that are hard to tell from each query's own one, int64 [Q, H];
            no columns without any.
    """

    def __init__(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        own: NDArray[np.int64],
        *,
        tokens: tuple[Tokens, Tokens],
        batch_size: int,
        hard: NDArray[np.int64] | None = None,
        hard_in_batch: int = 0,
        groups: NDArray[np.int64] | None = None,
        seed: int = 0,
    ) -> None:
        """Tokenize all texts.

        Args:
            queries: texts of queries.
            documents: texts of documents.
            own: place of each query's document, int64 [Q].
            tokens: makes token ids of queries, and of documents.
            batch_size: queries of a batch, at most Q.
            hard: documents that are hard to tell from the own one, int64 [Q, H].
            hard_in_batch: how many of them a query brings into its batch, drawn anew each time.
            groups: number of the group of each document, int64 [N]: none is a negative of its
                group's queries; by default documents of equal text are a group.
            seed: seed of the orders.

        Raises:
            DataError: a query without a document, fewer queries than a batch, or a text without a
                token.
        """
        places = np.asarray(own, np.int64)
        if places.shape != (len(queries),) or (len(places) and places.max() >= len(documents)):
            raise DataError(f"{len(queries)} queries, documents for {places.shape} of them")
        if not 1 <= batch_size <= len(queries):
            raise DataError(
                f"batches of {batch_size} from {len(queries)} queries", hint="give more pairs"
            )
        self.queries, self.documents, self.own = queries, documents, places
        self.hard = np.empty((len(queries), 0), np.int64) if hard is None else hard
        self._hard_in_batch = min(hard_in_batch, self.hard.shape[1])
        self._batch_size, self._seed = batch_size, seed
        self._query_tokens, self._document_tokens = tokens[0](queries), tokens[1](documents)
        self._keys = hash_texts(documents).view(np.int64) if groups is None else groups

    def batch(self, index: int, /) -> dict[str, Tensor]:
        """Return the batch of a step; a pair comes once an epoch.

        Args:
            index: step, from 0.

        Returns:
            What `ContrastiveLoss` takes.
        """
        per_epoch = len(self.queries) // self._batch_size
        epoch, place = divmod(index, per_epoch)
        positions = np.arange(place * self._batch_size, (place + 1) * self._batch_size)
        rows = Permutation(len(self.queries), self._seed, epoch)(positions)
        chosen = np.concatenate([self.own[rows, None], self._drawn_hard(rows, index)], axis=1)
        queries = padded_tokens([self._query_tokens[row] for row in rows.tolist()])
        flat = [self._document_tokens[one] for one in chosen.ravel().tolist()]
        documents, lengths = padded_tokens(flat)
        shape = chosen.shape
        return pair_batch(
            queries,
            (documents.reshape(*shape, -1), lengths.reshape(shape)),
            torch.from_numpy(self._keys[chosen]),
        )

    def _drawn_hard(self, rows: NDArray[np.int64], index: int) -> NDArray[np.int64]:
        """Return hard documents of queries, without repetition."""
        rng = np.random.default_rng((self._seed, index, 1))
        draws = rng.random((len(rows), self.hard.shape[1])).argsort(axis=1)
        return np.take_along_axis(self.hard[rows], draws[:, : self._hard_in_batch], axis=1)
