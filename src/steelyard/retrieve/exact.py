"""Exact search of many queries: bytes in memory leave out what cannot be near, vectors decide."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.index import Hits, SearchStats, checked_k, checked_vectors
from steelyard.retrieve.native.library import address, trusted_library

__all__ = ["ExactSearch"]

Floats = NDArray[np.float32]
_BLOCK = 65_536
_MOST_DIM = 1024
"""Numbers of a vector: sums of products of bytes then stay exact in float32 as well."""
_SLACK = 1e-5
"""Bounds are widened by this share of the product of lengths, more than float32 rounds off."""


class ExactSearch:
    """The largest inner products, exactly, with a byte for each number in memory.

    The vectors themselves may lie in a mapped file of float16 or float32; few of them are read for
    a query. No vector of the answer is missed: with bytes x' and q' for x and q,
    |q.x - q'.x'| <= |q - q'| |x'| + |q| |x - x'|, and all whose upper bound reaches the k-th best
    lower bound are compared in float64. An error of 1e-5 of the lengths is allowed for rounding.

    Attributes:
        vectors: [N, D], float16 or float32.
    """

    def __init__(self, vectors: NDArray[np.generic]) -> None:
        """Make the bytes.

        Args:
            vectors: [N, D], D up to 1,024; float16 and float32 stay where they are, and other
                numbers are copied as float32.

        Raises:
            DataError: no rows of vectors or of real numbers, or numbers that are not finite (the
                row is named).
        """
        shape, is_real = vectors.shape, vectors.dtype.kind in "fiu"
        if len(shape) != 2 or not vectors.size or shape[1] > _MOST_DIM or not is_real:
            raise DataError(
                f"vectors are {vectors.dtype} {list(shape)}",
                hint=f"give rows of 1 to {_MOST_DIM} real numbers",
            )
        if vectors.dtype not in (np.float16, np.float32) or not vectors.flags.c_contiguous:
            vectors = np.ascontiguousarray(vectors, np.float32)
        self.vectors = vectors
        count, dim = vectors.shape
        self._width = -(-dim // 4) * 4
        self._codes = np.zeros((count, self._width), np.int8)
        self._sums = np.empty(count, np.int32)
        self._facts = np.empty((3, count), np.float32)
        for first in range(0, count, _BLOCK):
            part = slice(first, min(first + _BLOCK, count))
            rows = checked_vectors(vectors[part], dim, first=first)
            codes, facts = _coded(rows)
            self._codes[part, :dim] = codes
            self._sums[part] = 128 * codes.sum(axis=1, dtype=np.int32)
            self._facts[:, part] = facts

    def __len__(self) -> int:
        """Return how many vectors there are."""
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self.vectors.shape[1]

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes in memory by part; vectors that are mapped are not among them."""
        facts = self._sums.nbytes + self._facts.nbytes
        return {"codes": self._codes.nbytes, "bounds": facts}

    def search(self, queries: NDArray[np.generic], k: int, *, threads: int = 1) -> Hits:
        """Return the k largest inner products of each query.

        Args:
            queries: [Q, D].
            k: neighbours.
            threads: threads among which queries are shared.

        Returns:
            Hits, the largest first and of equal ones the smaller number; -1 where there are fewer
            vectors than k. `stats.reranked` counts vectors that were looked at themselves.

        Raises:
            ConfigError: k or threads below 1.
            DataError: queries of another width, or not finite.
        """
        asked = checked_vectors(queries, self.dim, what="queries")
        if threads < 1:
            raise ConfigError(f"threads is {threads}", hint="give 1 or more")
        count = checked_k(k)
        library = _library()
        ids = np.full((len(asked), count), -1, np.int64)
        products = np.full((len(asked), count), -np.inf, np.float32)
        parts = [part for part in np.array_split(np.arange(len(asked)), threads) if len(part)]

        def searched(part: NDArray[np.int64]) -> int:
            rows = slice(int(part[0]), int(part[-1]) + 1)
            given = asked[rows], count, products[rows], ids[rows]
            return self._native(library, *given) if library else self._stepped(*given)

        if len(parts) == 1:
            compared = searched(parts[0])
        else:
            with ThreadPoolExecutor(threads) as pool:
                compared = sum(pool.map(searched, parts))
        stats = SearchStats(scanned=len(asked) * len(self), reranked=compared)
        return Hits(ids=ids, distances=products, stats=stats)

    def _native(
        self, library: ctypes.CDLL, asked: Floats, k: int, products: Floats, ids: NDArray[np.int64]
    ) -> int:
        """Search in native code; return how many vectors were compared."""
        codes, facts = self._queries(asked)
        compared = np.zeros(1, np.int64)
        library.steelyard_exact_search(
            *(address(self._codes), address(self._sums)),
            *(address(row) for row in self._facts),
            *(len(self), self._width, address(self.vectors), self.dim, self.vectors.itemsize),
            *(address(asked), address(codes), address(facts), len(asked), k),
            *(address(products), address(ids), address(compared)),
        )
        return int(compared[0])

    def _queries(self, asked: Floats) -> tuple[NDArray[np.int8], Floats]:
        """Return the bytes of queries, and scale, error and length of each."""
        codes, (scales, _, errors) = _coded(asked)
        wide = np.zeros((len(asked), self._width), np.int8)
        wide[:, : self.dim] = codes
        lengths = np.sqrt(np.einsum("nd,nd->n", asked, asked, dtype=np.float64))
        # What float32 rounds off is a share of the product of both lengths.
        facts = np.stack([scales, errors + _SLACK * lengths, lengths], axis=1)
        return wide, np.ascontiguousarray(facts, np.float32)

    def _stepped(self, asked: Floats, k: int, products: Floats, ids: NDArray[np.int64]) -> int:
        """Search by matrix products of bytes, which are exact in float32."""
        codes, facts = self._queries(asked)
        scales, lengths, residues = self._facts
        compared = 0
        for place, query in enumerate(asked):
            scale, error, length = facts[place]
            dots = np.empty(len(self), np.float32)
            for first in range(0, len(self), _BLOCK):
                part = slice(first, first + _BLOCK)
                dots[part] = self._codes[part].astype(np.float32) @ codes[place].astype(np.float32)
            scores, margins = dots * scales * scale, error * lengths + length * residues
            lows, most = scores - margins, min(k, len(self))
            threshold = np.partition(lows, len(lows) - most)[len(lows) - most]
            rows = np.flatnonzero(scores + margins >= threshold)
            exact = self.vectors[rows].astype(np.float64) @ query.astype(np.float64)
            order = np.lexsort((rows, -exact))[:most]
            products[place, : len(order)], ids[place, : len(order)] = exact[order], rows[order]
            compared += len(rows)
        return compared


def _coded(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return bytes of rows, their scales, lengths of what they stand for, and its distances."""
    scales = np.maximum(np.abs(rows).max(axis=1), np.float32(1e-30)) / np.float32(127)
    codes = np.rint(rows / scales[:, None]).astype(np.int8)
    stands = codes.astype(np.float32) * scales[:, None]
    lengths = np.sqrt(np.einsum("nd,nd->n", stands, stands, dtype=np.float64))
    left = rows - stands
    residues = np.sqrt(np.einsum("nd,nd->n", left, left, dtype=np.float64))
    return codes, np.stack([scales, lengths, residues * (1 + _SLACK)]).astype(np.float32)


@cache
def _library() -> ctypes.CDLL | None:
    """Load the library; None without a compiler, switched off, or where it finds others."""
    return trusted_library("exact", _difference)


def _difference(library: ctypes.CDLL) -> float:
    """Return how many results of native searches differ from those of the other way."""
    rng = np.random.default_rng(0)
    wrong = 0
    for dtype, dim in ((np.float32, 70), (np.float16, 64)):
        index = ExactSearch(rng.normal(size=(3000, dim)).astype(dtype))
        asked = rng.normal(size=(37, dim)).astype(np.float32)
        found = []
        for is_native in (True, False):
            ids, products = np.full((37, 9), -1), np.full((37, 9), -np.inf, np.float32)
            if is_native:
                index._native(library, asked, 9, products, ids)
            else:
                index._stepped(asked, 9, products, ids)
            found.append((ids, products))
        (one, first), (two, second) = found
        wrong += int((one != two).sum() + (~np.isclose(first, second, rtol=1e-6)).sum())
    return float(wrong)
