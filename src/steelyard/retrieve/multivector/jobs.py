"""What is to be scored: queries, the documents they want, and where the scores go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError
from steelyard.retrieve.multivector.kernels import DAMAGED, DROPPED, SCORED, UNREAD, score_documents
from steelyard.retrieve.multivector.store import MultiVectorStore

__all__ = ["AskedTexts", "ScoreJob", "work_room"]

_AT_ONCE = np.empty(0, np.int64)
_LANES = 16
"""Columns of a query are filled up to a multiple: numbers of a vector register."""


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """Queries as the kernels take them.

    Attributes:
        texts: vectors of the texts, float32 [Q, D].
        columns: vectors of all tokens as columns [E, C], zeros between queries.
        starts: first column of each query [Q + 1].
        lengths: tokens of each query [Q].
    """

    texts: NDArray[np.float32]
    columns: NDArray[np.float32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(
        cls, texts: NDArray[Any], tokens: Sequence[NDArray[Any]], store: MultiVectorStore
    ) -> Self:
        """Arrange queries.

        Args:
            texts: vectors of the texts [Q, D].
            tokens: vectors of the tokens [T, E] of each; T may be 0.
            store: what is asked.

        Returns:
            The queries.

        Raises:
            DataError: vectors of another width, or not finite (the query is named).
        """
        layout = store.layout
        found = np.ascontiguousarray(np.atleast_2d(np.asarray(texts, np.float32)))
        lengths = np.array([len(item) for item in tokens], np.int64)
        if found.shape != (len(tokens), layout.text_dim):
            raise DataError(
                f"{len(tokens)} queries with text vectors {list(found.shape)}",
                hint=f"give one vector of {layout.text_dim} numbers for each",
            )
        padded = -(-lengths // _LANES) * _LANES
        starts = np.concatenate([[0], np.cumsum(padded)]).astype(np.int64)
        columns = np.zeros((layout.token_dim, int(starts[-1])), np.float32)
        for query, item in enumerate(tokens):
            rows = np.asarray(item, np.float32)
            if rows.ndim != 2 or (len(rows) and rows.shape[1] != layout.token_dim):
                raise DataError(
                    f"query {query}: token vectors {list(rows.shape)}",
                    hint=f"give rows of {layout.token_dim} numbers",
                )
            if not (np.isfinite(rows).all() and np.isfinite(found[query]).all()):
                raise DataError(f"query {query} has a number that is not finite")
            if len(rows):
                columns[:, starts[query] : starts[query] + len(rows)] = rows.T
        return cls(found, columns, starts, lengths)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return what kernels take."""
        return self.texts, self.columns, self.starts, self.lengths


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """Documents to read once each, and the queries that want them.

    Attributes:
        store: where they are.
        asked: all queries.
        offsets: first byte of each document int64 [N]; what a query wants most comes first.
        sizes: its bytes [N].
        numbers: its number [N].
        pair_starts: first pair of each document [N + 1].
        pair_queries: query of each pair [P].
        pair_places: place of each pair among the wanted ones [P].
        text_scores: inner product of the texts' vectors, filled in [P].
        token_scores: sum over the query's tokens of the best product, filled in [P].
        states: what became of each document, uint8 [N].
        dropped: 1 for documents that nobody wants any more, which may be set while the job runs;
            those that are not asked for yet are then left out, uint8 [N].
        wanted_width: documents that each query wanted, K.
    """

    store: MultiVectorStore
    asked: AskedTexts
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    numbers: NDArray[np.int64]
    pair_starts: NDArray[np.int64]
    pair_queries: NDArray[np.int64]
    pair_places: NDArray[np.int64]
    text_scores: NDArray[np.float32]
    token_scores: NDArray[np.float32]
    states: NDArray[np.uint8]
    dropped: NDArray[np.uint8]
    wanted_width: int

    @classmethod
    def of(cls, store: MultiVectorStore, asked: AskedTexts, wanted: NDArray[np.int64]) -> Self:
        """Arrange reads: each document once, whoever wants it.

        Args:
            store: where documents are.
            asked: all queries.
            wanted: numbers of documents by query [Q, K]; those below 0 are left out.

        Returns:
            The job.

        Raises:
            DataError: a document is not in the store.
        """
        width, flat = max(wanted.shape[1], 1), wanted.reshape(-1)
        places = np.flatnonzero(flat >= 0)
        order = places[np.argsort(flat[places], kind="stable")]
        is_first = np.ones(len(order), bool)
        is_first[1:] = flat[order][1:] != flat[order][:-1]
        # What is near the top of a query's list is likely to stay there: it is read first.
        starts = np.flatnonzero(is_first)
        ranks = np.minimum.reduceat(order % width, starts) if len(starts) else order
        group = np.repeat(ranks, np.diff(np.append(starts, len(order))))
        order = order[np.lexsort((flat[order], group))]
        is_first[1:] = flat[order][1:] != flat[order][:-1]
        starts = np.append(np.flatnonzero(is_first), len(order)).astype(np.int64)
        numbers = flat[order][is_first]
        rows = store.rows_of(numbers)
        return cls(
            store,
            asked,
            store.offsets[rows].astype(np.int64),
            store.blocks[rows].astype(np.int64) * store.layout.block_bytes,
            numbers,
            starts,
            order // width,
            order,
            np.full(len(order), -np.inf, np.float32),
            np.full(len(order), -np.inf, np.float32),
            np.zeros(len(numbers), np.uint8),
            np.zeros(len(numbers), np.uint8),
            wanted.shape[1],
        )

    def __len__(self) -> int:
        """Return how many documents are read."""
        return len(self.numbers)

    @property
    def num_read(self) -> int:
        """Documents that were read: all but those that were dropped in time."""
        return int((self.states != DROPPED).sum())

    @property
    def num_bytes(self) -> int:
        """Bytes that were read."""
        return int(self.sizes[self.states != DROPPED].sum())

    def keep_only(self, numbers: NDArray[np.int64]) -> None:
        """Drop all other documents; those that are asked for already are still read."""
        self.dropped[~np.isin(self.numbers, numbers)] = 1

    def score_compiled(
        self, raw: NDArray[np.uint8], ready_ns: NDArray[np.int64] = _AT_ONCE, begin_ns: int = 0
    ) -> None:
        """Fill everything in by the compiled kernel, from records in memory or in a mapped file.

        Args:
            raw: all records.
            ready_ns: as of `score_documents`.
            begin_ns: likewise.
        """
        room = work_room(self.store, self.asked.columns.shape[1])
        score_documents(raw, -1, 0, 1, begin_ns, ready_ns, *self.arrays(), room)

    @property
    def damaged(self) -> int:
        """Documents whose bytes are not whole, or could not be read."""
        return int(((self.states == DAMAGED) | (self.states == UNREAD)).sum())

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """Return documents, layout, queries and pairs as kernels take them."""
        return (
            (self.offsets, self.sizes, self.numbers, self.states, self.dropped),
            self.store.kernel_layout(),
            self.asked.arrays(),
            (self.pair_starts, self.pair_queries, self.text_scores, self.token_scores),
        )

    def is_scored(self) -> NDArray[np.bool_]:
        """Return whether each pair has a score [P]."""
        return np.repeat(self.states == SCORED, np.diff(self.pair_starts))


def work_room(store: MultiVectorStore, columns: int) -> tuple[NDArray[Any], ...]:
    """Return memory that a kernel works in.

    Args:
        store: whose documents are scored.
        columns: columns of all queries.

    Returns:
        Bits and values (the same memory), sums, and best products.
    """
    layout = store.layout
    count = max(layout.text_dim, store.counts.longest_tokens * layout.token_dim)
    bits = np.empty(count, np.uint32)
    sums = np.empty(max(columns, 1), np.float32)
    return bits, bits.view(np.float32), sums, np.empty_like(sums)
