"""Share of the memory's bandwidth that native decode attention reaches, by type and group."""

from collections.abc import Callable

import numpy as np
import torch
from benchmarks.common import Check, alternate, median_spread, ratio

from steelyard.catalog.architecture import Architecture
from steelyard.serve.running.native.library import Team, compiled_library
from steelyard.serve.running.pool import KVPool

__all__ = ["STREAM_BYTES", "checks", "layer_shape"]

_KV_HEADS, _WIDTH, _BLOCK = 4, 64, 16
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Types of keys and values, as the kernels number them."""
STREAM_BYTES = 80 * 2**20
"""What is read to measure the memory's bandwidth."""


def _attend_call(
    query: np.ndarray, pool: KVPool, tables: np.ndarray, contexts: np.ndarray
) -> Callable[[], np.ndarray]:
    """Return a run of the native kernel.

    Args:
        query: float32 [S, H, D], one query per sequence.
        pool: one layer of keys and values.
        tables: int64 [S, B].
        contexts: int64 [S].

    Returns:
        A call that gives [S, H, D], in the same memory each time.
    """
    library = compiled_library()
    team = Team(library, torch.get_num_threads())
    keys, values = pool.kv[0]
    out = np.empty_like(query)
    sizes = len(query), query.shape[1], _KV_HEADS, _WIDTH, _BLOCK, tables.shape[1]

    def run() -> np.ndarray:
        """Call the library."""
        library.steelyard_attend(
            team.address,
            *(query.ctypes.data, keys.data_ptr(), values.data_ptr(), _KINDS[keys.dtype]),
            *(tables.ctypes.data, None, contexts.ctypes.data),
            *(*sizes, 0, 0.0, out.ctypes.data),
        )
        return out

    return run


def layer_shape(heads: int) -> Architecture:
    """Return the shape of one layer with some query heads."""
    return Architecture(
        name="layer",
        num_layers=1,
        num_heads=heads,
        num_kv_heads=_KV_HEADS,
        hidden_size=768,
        intermediate_size=2048,
        vocab_size=2,
        head_dim=_WIDTH,
    )


def _fill(pool: KVPool, blocks: int) -> None:
    """Store random tokens in every block, some at a time."""
    generator = torch.Generator().manual_seed(0)
    for first in range(0, blocks, 256):
        slots = torch.arange(first * _BLOCK, min(first + 256, blocks) * _BLOCK)
        tokens = torch.randn(2, len(slots), _KV_HEADS, _WIDTH, generator=generator)
        pool.write(0, slots // _BLOCK, slots % _BLOCK, *tokens)


def checks(streams: dict[str, Callable[[], object]], quick: bool) -> list[Check]:
    """Time types and groups in turn with plain reading, and print their shares of its rate.

    Args:
        streams: ways of only reading memory; the fastest counts.
        quick: fewer groups, contexts and rounds.

    Returns:
        Shares, medians over rounds.
    """
    groups, rounds = ((1, 8), 5) if quick else ((1, 2, 4, 8), 15)
    contexts = {"1K": (32, 1024)} if quick else {"1K": (32, 1024), "8K": (4, 8192)}
    found = []
    for dtype in _KINDS:
        name = str(dtype).removeprefix("torch.")
        for label, (sequences, context) in contexts.items():
            blocks = sequences * context // _BLOCK
            pool = KVPool(layer_shape(_KV_HEADS), blocks, _BLOCK, dtype, torch.device("cpu"))
            _fill(pool, blocks)
            order = np.random.default_rng(0).permutation(blocks)
            tables, lengths = order.reshape(sequences, -1), np.full(sequences, context)
            generator = np.random.default_rng(1)
            runs = {}
            for group in groups:
                shape = sequences, _KV_HEADS * group, _WIDTH
                query = generator.standard_normal(shape).astype(np.float32)
                runs[str(group)] = _attend_call(query, pool, tables, lengths)
            seconds = alternate(runs | streams, rounds=rounds)
            read = pool.kv[0].numel() * pool.kv.element_size()
            stream = min((median_spread(seconds[item]).median, seconds[item]) for item in streams)[
                1
            ]
            for group in groups:
                rates = [read / item for item in seconds[str(group)]]
                share = ratio(rates, [STREAM_BYTES / item for item in stream]).median
                print(f"{label} context, {name}, {group} queries a key head: {share:.2f}")
                title = f"5 share of the bandwidth, {name}, {group} queries, context {label}"
                found.append(Check(title, share, 0.70, "higher"))
    return found
