"""Decode attention straight over the block table, compiled with numba; it holds no lock, so threads may share the rows.

The kernel is not `parallel=True`: numba's OpenMP layer shares PyTorch's runtime library and would overwrite its number of threads.
"""

import itertools
from concurrent.futures import Executor

import numba
import numpy as np

__all__ = ["paged_decode", "split_rows"]

_SMALL = 16384
"""Tokens times heads below which handing rows to a thread costs more than it saves."""


def split_rows(contexts: np.ndarray, parts: int) -> list[tuple[int, int]]:
    """Cut rows into runs of about equal context, dropping empty runs.

    Args:
        contexts: [S] tokens each row attends.
        parts: runs to make at most.

    Returns:
        (first, end) of each run, covering all rows in order.
    """
    total = np.cumsum(contexts)
    cuts = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts, side="left") + 1
    edges = [0, *np.minimum(cuts, len(contexts)).tolist(), len(contexts)]
    return [(first, end) for first, end in itertools.pairwise(edges) if first < end]


def paged_decode(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tables: np.ndarray,
    contexts: np.ndarray,
    block_size: int,
    out: np.ndarray,
    *,
    helpers: Executor | None = None,
    threads: int = 1,
) -> None:
    """Attend from one query per sequence to its paged context; softmax is kept running from block to block.

    Args:
        query: float32 [S, H, D], not yet scaled.
        keys: float32 [slots, KV, D].
        values: float32 [slots, KV, D].
        tables: int64 [S, M] block ids.
        contexts: int64 [S] tokens to attend, at least 1.
        block_size: slots per block.
        out: float32 [S, H, D], overwritten.
        helpers: threads beside the caller's.
        threads: how many may work, the caller's included.

    Source: Kwon et al. 2023 (arXiv 2309.06180), equation 4; running softmax of Milakov and Gimelshein 2018 (arXiv 1805.02867).
    """
    small = helpers is None or int(contexts.sum()) * query.shape[1] < _SMALL
    runs = [(0, len(contexts))] if small else split_rows(contexts, threads)
    rest = [helpers.submit(_attend, query, keys, values, tables, contexts, block_size, out, *run) for run in runs[1:]] if helpers else []
    _attend(query, keys, values, tables, contexts, block_size, out, *runs[0])
    for part in rest:
        part.result()


@numba.njit(fastmath=True, cache=True, nogil=True)
def _attend(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tables: np.ndarray,
    contexts: np.ndarray,
    block_size: int,
    out: np.ndarray,
    first_row: int,
    end_row: int,
) -> None:
    """Do rows [first_row, end_row) of `paged_decode`."""
    _, num_heads, width = query.shape
    num_kv = keys.shape[1]
    group = num_heads // num_kv
    scale = np.float32(1.0 / np.sqrt(width))
    scores = np.empty(block_size, np.float32)
    for work in range(first_row * num_kv, end_row * num_kv):
        row = work // num_kv
        head = work % num_kv
        context = contexts[row]
        for member in range(group):
            q = query[row, head * group + member]
            total = out[row, head * group + member]
            total[:] = np.float32(0.0)
            peak = np.float32(-3.0e38)
            weight = np.float32(0.0)
            for block in range((context + block_size - 1) // block_size):
                first = tables[row, block] * block_size
                count = min(block_size, context - block * block_size)
                highest = peak
                for token in range(count):
                    key = keys[first + token, head]
                    score = np.float32(0.0)
                    for column in range(width):
                        score += q[column] * key[column]
                    score *= scale
                    scores[token] = score
                    highest = max(highest, score)
                shrink = np.exp(peak - highest)
                peak = highest
                weight *= shrink
                for column in range(width):
                    total[column] *= shrink
                for token in range(count):
                    share = np.exp(scores[token] - peak)
                    weight += share
                    value = values[first + token, head]
                    for column in range(width):
                        total[column] += share * value[column]
            for column in range(width):
                total[column] /= weight
