"""Scores documents from the bytes of their records; one compiled path for every reader.

The score of a query and a document is computed the same way, in the same order, wherever its bytes
came from and whatever else is scored beside it, so that results do not depend on the reader.
"""

from typing import Any

import numpy as np

from steelyard.data.checksums import word_sum
from steelyard.data.embeddings.kernels import half_to_float
from steelyard.direct_io import read_at, sleep_until
from steelyard.jit import njit, njit_inner
from steelyard.retrieve.multivector.layout import GOES_ON, HEAD_BYTES

__all__ = [
    "DAMAGED",
    "DROPPED",
    "SCORED",
    "UNREAD",
    "score_documents",
]

SCORED, DAMAGED, UNREAD, DROPPED = 1, 2, 3, 4
_GOES_ON, _HEAD = GOES_ON, HEAD_BYTES


@njit_inner()
def _decode(
    raw: np.ndarray, tokens: int, kind: int, tables: Any, bits: np.ndarray, values: np.ndarray
) -> None:
    """Turn codes of tokens into float32 [tokens * D]."""
    coarse, parts, dim = tables
    if kind == 0:
        half_to_float(raw[: 2 * tokens * dim].view(np.uint16), bits[: tokens * dim], values)
    elif kind == 1:
        size = 4 + dim
        for token in range(tokens):
            scale = raw[token * size : token * size + 4].view(np.float32)[0]
            codes = raw[token * size + 4 : (token + 1) * size].view(np.int8)
            for place in range(dim):
                values[token * dim + place] = np.float32(codes[place]) * scale
    else:
        count, width = parts.shape[0], parts.shape[2]
        size = 2 + count
        for token in range(tokens):
            at, own = token * size, token * dim
            center = np.int64(raw[at]) | (np.int64(raw[at + 1]) << 8)
            for part in range(count):
                code = raw[at + 2 + part]
                for place in range(width):
                    spot = part * width + place
                    values[own + spot] = coarse[center, spot] + parts[part, code, place]


@njit_inner()
def _raise_best(
    values: np.ndarray,
    tokens: int,
    dim: int,
    columns: np.ndarray,
    first: int,
    last: int,
    total: np.ndarray,
    best: np.ndarray,
) -> None:
    """Raise the best inner product of each query token [first, last) by a document's tokens."""
    width = last - first
    whole = dim - dim % 8
    for token in range(tokens):
        own = token * dim
        for place in range(width):
            total[place] = np.float32(0.0)
        # Eight numbers of the document's token at once: sums are loaded and stored an eighth as
        # often. The order of the additions is written down, so the compiler keeps it.
        for spot in range(0, whole, 8):
            v0, v1, v2, v3 = (
                values[own + spot],
                values[own + spot + 1],
                values[own + spot + 2],
                values[own + spot + 3],
            )
            v4, v5, v6, v7 = (
                values[own + spot + 4],
                values[own + spot + 5],
                values[own + spot + 6],
                values[own + spot + 7],
            )
            r0, r1, r2, r3 = columns[spot], columns[spot + 1], columns[spot + 2], columns[spot + 3]
            r4, r5, r6, r7 = (
                columns[spot + 4],
                columns[spot + 5],
                columns[spot + 6],
                columns[spot + 7],
            )
            for place in range(width):
                at = first + place
                total[place] += ((v0 * r0[at] + v1 * r1[at]) + (v2 * r2[at] + v3 * r3[at])) + (
                    (v4 * r4[at] + v5 * r5[at]) + (v6 * r6[at] + v7 * r7[at])
                )
        for spot in range(whole, dim):
            value, row = values[own + spot], columns[spot]
            for place in range(width):
                total[place] += value * row[first + place]
        for place in range(width):
            best[first + place] = max(best[first + place], total[place])


@njit_inner()
def _score(
    raw: np.ndarray, number: int, document: int, layout: Any, asked: Any, pairs: Any, room: Any
) -> int:
    """Score one document for all queries that want it; return whether its bytes are whole."""
    block, text_dim, token_bytes, kind, tables = layout
    texts, columns, starts, lengths = asked
    pair_starts, pair_queries, text_scores, token_scores = pairs
    bits, values, total, best = room
    dim = tables[2]
    begin, end = pair_starts[document], pair_starts[document + 1]
    for pair in range(begin, end):
        query = pair_queries[pair]
        for place in range(starts[query], starts[query + 1]):
            best[place] = -np.inf
    at, seen = 0, 0
    while True:
        if at + block > len(raw):
            return DAMAGED
        first = raw[at : at + 16].view(np.uint64)
        tokens = int((first[0] >> np.uint64(32)) & np.uint64(0xFFFF))
        used = _HEAD + 2 * text_dim + tokens * token_bytes
        size = (used + block - 1) // block * block
        if at + size > len(raw) or tokens * dim > len(values):
            return DAMAGED
        words = raw[at : at + size].view(np.uint64)
        told = np.int64(words[0] & np.uint64(0xFFFFFFFF))
        found = np.int64(word_sum(words[1:], raw[:0])) ^ np.int64(words[0] >> np.uint64(32))
        # The number guards against a read that ends up at another document's record.
        if told != found or np.int64(words[1]) != number:
            return DAMAGED
        if at == 0:
            text = raw[_HEAD : _HEAD + 2 * text_dim].view(np.uint16)
            half_to_float(text, bits, values)
            for pair in range(begin, end):
                score, own = np.float32(0.0), texts[pair_queries[pair]]
                for place in range(text_dim):
                    score += values[place] * own[place]
                text_scores[pair] = score
        codes = at + _HEAD + 2 * text_dim
        _decode(raw[codes : codes + tokens * token_bytes], tokens, kind, tables, bits, values)
        for pair in range(begin, end):
            query = pair_queries[pair]
            _raise_best(values, tokens, dim, columns, starts[query], starts[query + 1], total, best)
        seen += tokens
        at += size
        if not (words[0] >> np.uint64(48)) & np.uint64(_GOES_ON):
            break
    for pair in range(begin, end):
        query, score = pair_queries[pair], np.float32(0.0)
        # Columns behind a query's length only fill vector registers.
        for place in range(lengths[query] if seen else 0):
            score += best[starts[query] + place]
        token_scores[pair] = score
    return SCORED


@njit()
def score_documents(
    raw: np.ndarray,
    handle: int,
    first: int,
    step: int,
    begin_ns: int,
    ready_ns: np.ndarray,
    documents: Any,
    layout: Any,
    asked: Any,
    pairs: Any,
    room: Any,
) -> None:
    """Score every `step`-th document as it arrives.

    Args:
        raw: uint8: all records in memory or in a mapped file; or, where a file is read, a buffer
            that begins on a page and holds the longest document.
        handle: descriptor of the file that is read; below 0 where records lie in `raw`.
        first: the first of the documents.
        step: from one to the next.
        begin_ns: moment at which the reads were asked for, by the clock of `monotonic_ns`.
        ready_ns: nanoseconds after which each document counts as read, ascending [N]; empty where
            it is there when it is there.
        documents: first bytes, sizes and numbers int64 [N], what became of each, and which are not
            wanted any more, uint8 [N].
        layout: block bytes, text_dim, token_bytes, number of the codec and its tables.
        asked: text vectors [Q, text_dim], token vectors as columns [D, C], first column of each
            query [Q + 1], tokens of each query [Q].
        pairs: first pair of each document [N + 1], query of each pair, and both scores of each.
        room: bits and values (the same memory), sums, and best products [C].
    """
    offsets, sizes, numbers, states, dropped = documents
    clock = np.empty(2, np.int64)
    for place in range(first, len(offsets), step):
        if dropped[place]:
            states[place] = DROPPED
            continue
        offset, size = offsets[place], sizes[place]
        if handle >= 0:
            if read_at(handle, raw.ctypes.data, size, offset) != size:
                states[place] = UNREAD
                continue
            offset = 0
        elif len(ready_ns):
            sleep_until(begin_ns + ready_ns[place], clock)
        own = raw[offset : offset + size]
        states[place] = _score(own, numbers[place], place, layout, asked, pairs, room)
