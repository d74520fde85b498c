"""Indexes that a calibration searches and builds: what they differ in tells units of work apart."""

from collections.abc import Iterator
from typing import Literal

from steelyard.cost.vector_search.work import IndexShape

__all__ = ["BUILT_SHAPES", "searched_shapes"]

_BYTES_FROM = 500_000
"""Vectors of more than so many are kept as bytes: a calibration should not take much memory."""
_FLAT = ((500, 128), (2_000, 64), (5_000, 128), (20_000, 128), (50_000, 64), (100_000, 96))
_FLAT_FAR = ((150_000, 128), (300_000, 64))
_CELLS = (
    (10_000, 128, 64),
    (20_000, 128, 256),
    (20_000, 64, 1024),
    (50_000, 32, 512),
    (60_000, 256, 512),
    (100_000, 96, 2048),
    (150_000, 128, 1024),
    (150_000, 128, 4096),
    (250_000, 128, 8192),
    (400_000, 64, 2048),
)
_BYTE_CODES = (
    (20_000, 128, 256, 16, 0),
    (20_000, 64, 1024, 8, 4),
    (60_000, 128, 256, 16, 8),
    (100_000, 128, 1024, 32, 8),
    (100_000, 96, 4096, 24, 2),
    (200_000, 128, 4096, 16, 4),
    (400_000, 64, 512, 8, 0),
    (500_000, 128, 8192, 16, 8),
    (1_000_000, 32, 1024, 8, 0),
    (2_000_000, 64, 2048, 32, 0),
)
_HALF_BYTE_CODES = (
    (20_000, 128, 256, 64, 4),
    (20_000, 64, 1024, 32, 16),
    (60_000, 256, 512, 128, 8),
    (100_000, 128, 256, 64, 8),
    (100_000, 96, 2048, 48, 8),
    (200_000, 128, 1024, 64, 2),
    (200_000, 128, 4096, 64, 8),
    (500_000, 128, 8192, 64, 4),
    (1_000_000, 64, 1024, 32, 8),
    (2_000_000, 64, 2048, 32, 4),
)
"""Sizes of the indexes that are searched: vectors, numbers, cells, parts of a code, candidates per
neighbour. Each size is large in two of them or more, so that leaving one out extrapolates little;
the largest do not fit into caches."""


def searched_shapes() -> Iterator[IndexShape]:
    """List the indexes that are searched."""
    for count, dim in (*_FLAT, *_FLAT_FAR):
        yield IndexShape(kind="flat", num_vectors=count, dim=dim)
    for count, dim, nlist in _CELLS:
        yield IndexShape(kind="ivf", num_vectors=count, dim=dim, nlist=nlist, scan_ratio=1.0)
    codes: tuple[tuple[Literal["ivfpq", "fastscan"], tuple[tuple[int, ...], ...]], ...] = (
        ("ivfpq", _BYTE_CODES),
        ("fastscan", _HALF_BYTE_CODES),
    )
    for kind, sizes in codes:
        for count, dim, nlist, parts, again in sizes:
            yield IndexShape(
                kind=kind,
                num_vectors=count,
                dim=dim,
                nlist=nlist,
                parts=parts,
                rerank=again,
                number_bytes=1 if count > _BYTES_FROM else 4,
                scan_ratio=1.0,
            )


BUILT_SHAPES = (
    IndexShape(kind="ivf", num_vectors=20_000, dim=64, nlist=128),
    IndexShape(kind="ivf", num_vectors=60_000, dim=128, nlist=512),
    IndexShape(kind="ivf", num_vectors=100_000, dim=32, nlist=1024),
    IndexShape(kind="ivfpq", num_vectors=20_000, dim=64, nlist=128, parts=8),
    IndexShape(kind="ivfpq", num_vectors=60_000, dim=128, nlist=256, parts=16),
    IndexShape(kind="ivf", num_vectors=120_000, dim=96, nlist=1024),
    # Wide ones, without which products of vectors and centers would count for nothing.
    IndexShape(kind="ivf", num_vectors=30_000, dim=384, nlist=512),
    IndexShape(kind="ivf", num_vectors=20_000, dim=768, nlist=512),
    IndexShape(kind="ivf", num_vectors=40_000, dim=768, nlist=1024),
    IndexShape(kind="ivf", num_vectors=30_000, dim=512, nlist=1024),
    IndexShape(kind="ivfpq", num_vectors=40_000, dim=96, nlist=512, parts=24),
    IndexShape(kind="fastscan", num_vectors=40_000, dim=96, nlist=512, parts=24, rerank=4),
    IndexShape(kind="fastscan", num_vectors=20_000, dim=64, nlist=128, parts=32, rerank=4),
    IndexShape(kind="fastscan", num_vectors=60_000, dim=128, nlist=512, parts=64, rerank=4),
)
