"""Decode attention straight over the block table, compiled with numba.

It holds no lock, so threads may share the work.

The kernel is not `parallel=True`: numba's OpenMP layer shares PyTorch's runtime library and would
overwrite its number of threads. Keys and values come as the bits of their numbers, so one kernel
reads float32 and bfloat16 (the upper half of a float32) alike.
"""

import itertools
from concurrent.futures import Executor

import numpy as np

from steelyard.jit import njit

__all__ = ["paged_decode", "split_pieces"]

_SMALL = 16384
"""Tokens times heads below which handing pieces to a thread costs more than it saves."""

_SPLIT = 1024
"""Tokens of a piece: longer contexts are cut, and their parts combined. A constant, so that a row's
result never depends on others."""


def split_pieces(
    contexts: np.ndarray, split: int = _SPLIT, *, window: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Cut contexts into pieces of at most `split` tokens.

    Args:
        contexts: int64 [S] tokens of each row's context, at least 1.
        split: tokens of a piece.
        window: last tokens of a context that a row attends; 0 for all.

    Returns:
        int64 [P, 3] (row, first token, end) of every piece in order of rows, and int64 [S + 1]
        where each row's pieces begin.
    """
    begins = np.maximum(contexts - window, 0) if window else np.zeros_like(contexts)
    counts = -(-(contexts - begins) // split)
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(len(contexts)), counts)
    first = begins[rows] + (np.arange(len(rows)) - starts[rows]) * split
    return np.stack([rows, first, np.minimum(first + split, contexts[rows])], axis=1), starts


def paged_decode(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tables: np.ndarray,
    contexts: np.ndarray,
    out: np.ndarray,
    *,
    window: int = 0,
    softcap: float = 0.0,
    helpers: Executor | None = None,
    threads: int = 1,
) -> None:
    """Attend from one query per sequence to its paged context, with a running softmax.

    Args:
        query: float32 [S, H, D], not yet scaled.
        keys: uint32 (the bits of float32) or uint16 (of bfloat16) [num_blocks, KV, B, D].
        values: array of the same type and shape.
        tables: int64 [S, M] block ids.
        contexts: int64 [S] tokens of each context, at least 1.
        out: float32 [S, H, D], overwritten.
        window: last tokens of a context that are attended; 0 for all.
        softcap: c of scores c tanh(score / c); 0 for none.
        helpers: threads beside the caller's.
        threads: how many may work, the caller's included.

    Source: Kwon et al. 2023 (arXiv 2309.06180), equation 4; running softmax of Milakov and
        Gimelshein 2018 (arXiv 1805.02867).
    """
    pieces, starts = split_pieces(contexts, window=window)
    parts = np.empty((len(pieces), query.shape[1], query.shape[2] + 2), dtype=np.float32)
    small = helpers is None or int((pieces[:, 2] - pieces[:, 1]).sum()) * query.shape[1] < _SMALL
    edges = [0, len(pieces)] if small else _edges(pieces, threads)
    runs = list(itertools.pairwise(edges))
    arrays = query, keys, values, tables, pieces, parts, np.float32(softcap)
    rest = [helpers.submit(_attend, *arrays, *run) for run in runs[1:]] if helpers else []
    _attend(*arrays, *runs[0])
    for part in rest:
        part.result()
    _combine(parts, starts, out)


def _edges(pieces: np.ndarray, threads: int) -> list[int]:
    """Cut pieces into runs of about equal tokens, since contexts differ a hundredfold."""
    total = np.cumsum(pieces[:, 2] - pieces[:, 1])
    cuts = np.searchsorted(total, total[-1] * np.arange(1, threads) / threads, side="left") + 1
    return sorted({0, *np.minimum(cuts, len(pieces)).tolist(), len(pieces)})


@njit(fastmath=True)
def _read(source: np.ndarray, count: int, target: np.ndarray) -> None:
    """Copy the bits of numbers [count, D] into the bits of float32 [B, D]."""
    shift = np.uint32(32 - 8 * source.itemsize)
    for token in range(count):
        for column in range(source.shape[1]):
            target[token, column] = np.uint32(source[token, column]) << shift


@njit(fastmath=True)
def _attend(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tables: np.ndarray,
    pieces: np.ndarray,
    parts: np.ndarray,
    softcap: np.float32,
    first_piece: int,
    end_piece: int,
) -> None:
    """Attend to pieces of contexts.

    Args:
        query: float32 [S, H, D].
        keys: bits of numbers [num_blocks, KV, B, D].
        values: bits of the same type and shape.
        tables: int64 [S, M].
        pieces: int64 [P, 3] from `split_pieces`.
        parts: float32 [P, H, D + 2]; numerator, peak and denominator of each piece and head.
        softcap: cap of the scores, 0 for none.
        first_piece: first piece to do.
        end_piece: piece after the last.
    """
    _, num_heads, width = query.shape
    _, num_kv, block_size, _ = keys.shape
    group = num_heads // num_kv
    scale = np.float32(1.0 / np.sqrt(width))
    scores = np.empty(block_size, np.float32)
    bits = np.empty((block_size, width), np.uint32)
    state = bits.view(np.float32)
    for work in range(first_piece * num_kv, end_piece * num_kv):
        piece = work // num_kv
        head = work % num_kv
        row = pieces[piece, 0]
        totals = parts[piece, head * group : (head + 1) * group]
        totals[:, :width] = np.float32(0.0)
        # Finite, so that the first shrink is exp(-huge) = 0 and never infinity less infinity.
        totals[:, width] = np.float32(-3.0e38)
        totals[:, width + 1] = np.float32(0.0)
        shares = np.empty((group, block_size), np.float32)
        end = pieces[piece, 2]
        for place in range(pieces[piece, 1] // block_size, (end - 1) // block_size + 1):
            block = tables[row, place]
            # A window may begin within a block.
            skipped = max(pieces[piece, 1] - place * block_size, 0)
            count = min(block_size, end - place * block_size) - skipped
            # Read once for all heads of the group: memory is what decoding waits for.
            _read(keys[block, head, skipped:], count, bits)
            for member in range(group):
                q = query[row, head * group + member]
                highest = totals[member, width]
                for token in range(count):
                    score = np.float32(0.0)
                    for column in range(width):
                        score += q[column] * state[token, column]
                    score *= scale
                    if softcap > np.float32(0.0):
                        score = softcap * np.tanh(score / softcap)
                    scores[token] = score
                    highest = max(highest, score)
                shrink = np.exp(totals[member, width] - highest)
                totals[member, width] = highest
                weight = totals[member, width + 1] * shrink
                if shrink != np.float32(1.0):  # most blocks do not raise the peak
                    for column in range(width):
                        totals[member, column] *= shrink
                for token in range(count):
                    share = np.exp(scores[token] - highest)
                    shares[member, token] = share
                    weight += share
                totals[member, width + 1] = weight
            _read(values[block, head, skipped:], count, bits)
            for member in range(group):
                total = totals[member, :width]
                for token in range(count):
                    share = shares[member, token]
                    for column in range(width):
                        total[column] += share * state[token, column]


@njit(fastmath=True)
def _combine(parts: np.ndarray, starts: np.ndarray, out: np.ndarray) -> None:
    """Join the pieces of each row and divide by the denominators."""
    rows, num_heads, width = out.shape
    for row in range(rows):
        for head in range(num_heads):
            peak = np.float32(-3.0e38)
            for piece in range(starts[row], starts[row + 1]):
                peak = max(peak, parts[piece, head, width])
            weight = np.float32(0.0)
            total = out[row, head]
            total[:] = np.float32(0.0)
            for piece in range(starts[row], starts[row + 1]):
                shrink = np.exp(parts[piece, head, width] - peak)
                weight += shrink * parts[piece, head, width + 1]
                for column in range(width):
                    total[column] += shrink * parts[piece, head, column]
            for column in range(width):
                total[column] /= weight
