"""Decode attention straight over the block table, compiled with numba and run in parallel over sequences and key/value heads."""

import numba
import numpy as np

__all__ = ["paged_decode"]


@numba.njit(parallel=True, fastmath=True, cache=True, nogil=True)
def paged_decode(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tables: np.ndarray,
    contexts: np.ndarray,
    block_size: int,
    out: np.ndarray,
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

    Source: Kwon et al. 2023 (arXiv 2309.06180), equation 4; running softmax of Milakov and Gimelshein 2018 (arXiv 1805.02867).
    """
    num_sequences, num_heads, width = query.shape
    num_kv = keys.shape[1]
    group = num_heads // num_kv
    scale = np.float32(1.0 / np.sqrt(width))
    for work in numba.prange(num_sequences * num_kv):
        row = work // num_kv
        head = work % num_kv
        context = contexts[row]
        scores = np.empty(block_size, np.float32)
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
