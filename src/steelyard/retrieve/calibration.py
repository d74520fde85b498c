"""How fast this machine searches and builds: measured on generated indexes, fitted part by part."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.search_rates import SearchRates
from steelyard.cost.vector_search.work import IndexShape, build_work, query_work
from steelyard.parallel import torch_threads
from steelyard.retrieve.cells import CellRows
from steelyard.retrieve.fast import HalfByteCodes
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.ivfpq import ResidualCodes
from steelyard.retrieve.kinds import IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.native import NativeCells
from steelyard.retrieve.pq import ProductQuantizer
from steelyard.retrieve.rate_fit import fit_rates
from steelyard.retrieve.tenant_rates import measure_tenant_rates, measure_tree_build

__all__ = [
    "TimedSearch",
    "empty_index",
    "fit_query_s",
    "measure_search_rates",
    "timed_searches",
]

_QUERIES, _ROUNDS, _K = 48, 10, 10
_CALM = 0.25
"""Share of rounds that nothing else on the machine is taken to have disturbed."""
_PROBES = (1, 4, 16, 64)
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


def _shapes() -> Iterator[IndexShape]:
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


_BUILDS = (
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSearch:
    """Time of a query that was measured.

    Attributes:
        shape: the index.
        nprobe: cells that were looked into.
        k: neighbours.
        query_s: seconds per query, of rounds that nothing disturbed.
    """

    shape: IndexShape
    nprobe: int
    k: int
    query_s: float


def empty_index(shape: IndexShape) -> IVF:
    """Return an index of some sizes that holds nothing yet."""
    if shape.kind in ("flat", "ivf"):
        kind = "uint8" if shape.number_bytes == 1 else "float32"
        return IVFFlat(shape.dim, nlist=shape.nlist, store=kind)
    if shape.kind == "ivfpq":
        return IVFPQ(
            shape.dim,
            nlist=shape.nlist,
            parts=shape.parts,
            rerank=shape.rerank,
            rotate=shape.rotate,
        )
    return IVFFastScan(shape.dim, nlist=shape.nlist, parts=shape.parts, rerank=shape.rerank or 1)


def measure_search_rates(
    *,
    shapes: Sequence[IndexShape] | None = None,
    builds: Sequence[IndexShape] = _BUILDS,
    advance: Callable[[float, str], None] = lambda done, what: None,
    threads: int = 2,
) -> SearchRates:
    """Measure searches and builds of generated indexes, and fit the seconds of each unit of work.

    Args:
        shapes: indexes that are searched, three or more of each kind; those chosen to differ in
            all sizes when None.
        builds: indexes that are built; without any there are no rates of builds.
        advance: told of the share of indexes that are done, and what comes next.
        threads: threads of a build; searches run on one.

    Returns:
        The rates.
    """
    began_s = time.perf_counter()
    when_s = time.time()
    searched: list[TimedSearch] = []
    chosen = list(_shapes() if shapes is None else shapes)
    steps = len(chosen) + len(builds)
    native = False
    with torch_threads(1):
        for place, shape in enumerate(chosen):
            advance(place / steps, f"search {shape.kind} of {shape.num_vectors:,}")
            index = _generated(shape)
            native = isinstance(index._settled(), NativeCells)
            searched += timed_searches(index, shape, _PROBES)
    built: list[tuple[IndexShape, float]] = []
    with torch_threads(threads):
        for place, shape in enumerate(builds):
            done = (len(chosen) + place) / steps
            advance(done, f"build {shape.kind} of {shape.num_vectors:,}")
            built.append((shape, _build_s(shape)))
    query_s, query_relative = {}, {}
    for kind in dict.fromkeys(item.shape.kind for item in searched):
        own = [item for item in searched if item.shape.kind == kind]
        query_s[kind], query_relative[kind] = fit_query_s(own)
    if shapes is None:
        advance(1 - 1 / steps, "searches for tenants")
        for kind, (own_s, relative) in measure_tenant_rates().items():
            query_s[kind], query_relative[kind] = own_s, relative
    build_s, build_relative = _build_rates(built) if built else ({}, 0.0)
    return SearchRates(
        query_s=query_s,
        build_s=build_s,
        query_relative=query_relative,
        build_relative=build_relative,
        threads=threads,
        native=native,
        time_s=when_s,
        duration_s=time.perf_counter() - began_s,
    )


def _build_rates(built: Sequence[tuple[IndexShape, float]]) -> tuple[dict[str, float], float]:
    """Return the seconds of each unit of a build, and the error that is left."""
    found, relative = fit_rates(
        [build_work(shape) for shape, _ in built],
        [took for _, took in built],
        [str(shape) for shape, _ in built],
    )
    return found | measure_tree_build(), relative


def fit_query_s(searched: Sequence[TimedSearch]) -> tuple[dict[str, float], float]:
    """Fit the seconds of each unit of work of a query.

    Args:
        searched: times of one kind of index.

    Returns:
        Seconds per unit by part, none negative, and the half-width of an 80 % interval.
    """
    work = [query_work(item.shape, item.nprobe, item.k) for item in searched]
    groups = [str(item.shape) for item in searched]
    return fit_rates(work, [item.query_s for item in searched], groups)


def timed_searches(
    index: IVF, shape: IndexShape, probes: Sequence[int], *, k: int = _K, seed: int = 1
) -> list[TimedSearch]:
    """Time searches of an index, one query at a time, over several numbers of cells.

    Args:
        index: index with vectors.
        shape: its sizes.
        probes: cells to look into; numbers above those that there are are left out.
        k: neighbours.
        seed: seed of the queries, which are other ones in every round.

    Returns:
        Times.
    """
    rng = np.random.default_rng(seed)
    tried = [nprobe for nprobe in probes if nprobe <= shape.nlist]
    took_s = np.empty((_ROUNDS + 1, len(tried)))
    # In turn, so that something else on the machine does not fall on one number of cells.
    for turn in range(_ROUNDS + 1):
        for place, nprobe in enumerate(tried):
            queries = rng.random((_QUERIES, shape.dim), np.float32) * 255
            began_s = time.perf_counter()
            for query in queries:
                index.search(query, k, nprobe=nprobe)
            took_s[turn, place] = (time.perf_counter() - began_s) / _QUERIES
    calm_s = np.quantile(took_s[1:], _CALM, axis=0)
    return [
        TimedSearch(shape=shape, nprobe=nprobe, k=k, query_s=float(own))
        for nprobe, own in zip(tried, calm_s, strict=True)
    ]


def _generated(shape: IndexShape) -> IVF:
    """Return an index whose vectors, centers and codes are drawn at random: times are the same."""
    rng = np.random.default_rng(0)
    index = empty_index(shape)
    count = shape.num_vectors
    index.centers = rng.random((shape.nlist, shape.dim), np.float32) * 255
    columns: dict[str, NDArray[np.generic]] = {}
    if shape.rerank or not shape.code_centers:
        columns["vectors"] = _numbers(rng, count, shape)
    if shape.code_centers:
        width = shape.dim // shape.parts
        drawn = rng.random((shape.parts, shape.code_centers, width), np.float32) * 255
        assert isinstance(index.codec, (ResidualCodes, HalfByteCodes))
        index.codec.quantizer = ProductQuantizer(drawn)
        columns["codes"] = rng.integers(0, shape.code_centers, (count, shape.parts), dtype=np.uint8)
    if shape.kind == "ivfpq":
        columns["extra"] = rng.random(count, np.float32)
    cells = rng.integers(0, shape.nlist, count)
    index.rows = CellRows.empty(shape.nlist, columns)
    index.rows.add(np.arange(count), cells, columns)
    return index


def _numbers(
    rng: np.random.Generator, count: int, shape: IndexShape
) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Return random vectors."""
    if shape.number_bytes == 1:
        return rng.integers(0, 256, (count, shape.dim), dtype=np.uint8)
    return rng.random((count, shape.dim), np.float32) * 255


def _build_s(shape: IndexShape) -> float:
    """Build an index of random vectors; return the seconds."""
    vectors = _numbers(np.random.default_rng(2), shape.num_vectors, shape)
    index = empty_index(shape)
    began_s = time.perf_counter()
    index.train(vectors)
    index.add(vectors)
    index.memory_bytes()  # what waits to be sorted into cells is
    return time.perf_counter() - began_s
