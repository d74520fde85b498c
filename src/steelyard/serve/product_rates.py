"""Times the native products of every weight type over sets of weights inside and beyond caches."""

import ctypes
import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch

from steelyard.catalog.engine_rates import ProductTime
from steelyard.catalog.probes.memory import last_level_cache_bytes, memory_bytes
from steelyard.serve.running.native.library import Team
from steelyard.serve.running.native.packing import LinearMap, padded
from steelyard.serve.running.weights import INT4_GROUP
from steelyard.serve.step_parts import own_core

__all__ = ["product_times"]

_KINDS = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
"""`Kind` of linear.h."""
_DEPTHS = {512: 2048, 2048: 512}
"""Inputs of the products, and their outputs: a matrix of 4 MiB in float32."""
_NARROW = 128
"""Outputs of a product in which its inputs and the call show."""
_MOST_MATRICES = 256
_SETS = (0.25, 1.0, 2.0, 4.5, 10.0)
"""Sizes of the sets in last-level caches, rising; the cache still holds some of a set five times
its size."""
_MOST_BYTES = 512e6
_FEW = (1, 4, 8, 16, 32)
_MANY = (64, 128, 256, 512)
"""Rows at which memory no longer counts: timed over the smallest set alone."""
_FILL = 0x3C
"""Every byte of the weights and scales: a small number in each type, never NaN or denormal."""
_ROUNDS = 2
"""Rounds over all cases: they lie apart in time, so that a passing disturbance spoils one."""
_TURNS = 2
"""Least timed runs of a case in a round."""


def product_times(library: ctypes.CDLL, threads: int, *, limit_s: float = 6.0) -> list[ProductTime]:
    """Time products in the engine's kernels.

    Weights are one pattern of bytes, of which all types are made: times do not depend on values.
    Narrow products tell what a call and its inputs take beside the weights.

    Args:
        library: the kernels.
        threads: threads that share a product.
        limit_s: seconds for all, about; each case runs at least four times.

    Returns:
        Each case's median over the runs of its quieter round.
    """
    cache = last_level_cache_bytes("cpu")
    most = min(_SETS[-1] * cache, _MOST_BYTES, memory_bytes("cpu") / 8)
    sizes = [min(share * cache, most) for share in _SETS]
    memory = np.full(int(most) + 64, _FILL, dtype=np.uint8)
    bench = _Bench(library, Team(library, threads), memory)
    small = sizes[0]
    counts = [(rows, size) for size in sizes for rows in _FEW] + [(rows, small) for rows in _MANY]
    wide = [(rows, n, k, size) for rows, size in counts for k, n in _DEPTHS.items()]
    narrow = [(rows, _NARROW, k, small) for rows in (*_FEW, *_MANY) for k in _DEPTHS]
    cases = list(itertools.product(wide + narrow, _KINDS))
    best: dict[tuple[_Shape, str], float] = {}
    with own_core():
        for case in cases * _ROUNDS:
            seconds = bench.time(*case, limit_s=limit_s / len(cases) / _ROUNDS)
            best[case] = min(seconds, best.get(case, seconds))
    return [
        _solved(best, bench, shape, kind, smallest=small)
        for shape, kind in itertools.product(wide, _KINDS)
    ]


_Shape = tuple[int, int, int, float]
"""Rows, outputs, inputs, and bytes of the set."""


class _Bench:
    """Kernels, threads, and memory to cut matrices out of."""

    def __init__(self, library: ctypes.CDLL, team: Team, memory: np.ndarray) -> None:
        """Keep the parts."""
        self._library = library
        self._team = team
        self._memory = memory

    def bytes_of(self, kind: str, n: int, k: int) -> tuple[int, int]:
        """Return the bytes of a matrix and of its scales."""
        scales = {"int8": 4 * n, "int4": 2 * n * k // INT4_GROUP}.get(kind, 0)
        return self._library.steelyard_packed_bytes(_KINDS[kind], n, k), scales

    def count(self, kind: str, shape: _Shape) -> int:
        """Return how many matrices a set has."""
        _, n, k, size = shape
        return min(max(int(size) // sum(self.bytes_of(kind, n, k)), 1), _MOST_MATRICES)

    def time(self, shape: _Shape, kind: str, *, limit_s: float) -> float:
        """Multiply rows with every matrix of a set, several times; return seconds per product."""
        rows, n, k, _ = shape
        x, out = torch.ones(rows, padded(k)), torch.empty(rows, padded(n))
        tiles = torch.empty(self._library.steelyard_tile_words(rows, k), dtype=torch.int32)
        maps = list(self._maps(kind, shape))
        before = self._team.address, x.data_ptr(), padded(k), rows
        after = out.data_ptr(), padded(n), 0, tiles.data_ptr()
        calls = [(*before, ctypes.addressof(item), *after) for item in maps]
        seconds: list[float] = []
        end = time.perf_counter() + limit_s
        # The first turn brings the set into the caches, or throws it out of them.
        while len(seconds) <= _TURNS or time.perf_counter() < end:
            begin = time.perf_counter()
            for call in calls:
                self._library.steelyard_linear(*call)
            seconds.append(time.perf_counter() - begin)
        return float(np.median(seconds[1:])) / len(maps)

    def _maps(self, kind: str, shape: _Shape) -> Iterator[LinearMap]:
        """Cut the matrices of a set out of memory."""
        _, n, k, _ = shape
        lines, scales = self.bytes_of(kind, n, k)
        span = INT4_GROUP if kind == "int4" else k
        first = self._memory.ctypes.data + -self._memory.ctypes.data % 64
        for index in range(self.count(kind, shape)):
            place = first + index * (lines + scales)
            yield LinearMap(place, place + lines, None, None, n, k, _KINDS[kind], span)


def _solved(
    best: dict[tuple[_Shape, str], float],
    bench: _Bench,
    shape: _Shape,
    kind: str,
    *,
    smallest: float,
) -> ProductTime:
    """Tell a product's time per weight from that of a call with its inputs."""
    rows, n, k, _ = shape
    wide, narrow = (best[(rows, outputs, k, smallest), kind] for outputs in (n, _NARROW))
    call = max(narrow - _NARROW * max(wide - narrow, 0.0) / (n - _NARROW), 0.0)
    # Of what a disturbed run says of it, no more is taken than half of this case's time.
    call = min(call, 0.5 * best[shape, kind])
    return ProductTime(
        weights=kind,
        rows=rows,
        inputs=k,
        set_bytes=float(sum(bench.bytes_of(kind, n, k)) * bench.count(kind, shape)),
        s_per_weight=(best[shape, kind] - call) / (n * k),
        call_s=call,
    )
