"""Which schemas lie within which: clusters around the largest ones, then pairs inside clusters."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.index import ColumnIndex
from steelyard.jit import njit

__all__ = ["SchemaEdges", "schema_edges"]


class SchemaEdges(NamedTuple):
    """Pairs of tables of which one has all columns of the other.

    Attributes:
        children: places of the tables with fewer or as many columns, [edges].
        parents: places of the others, [edges].
        tests: comparisons of two schemas that were made.
        schemas: different schemas.
        centres: clusters.
    """

    children: NDArray[np.int64]
    parents: NDArray[np.int64]
    tests: int
    schemas: int
    centres: int


def schema_edges(index: ColumnIndex) -> SchemaEdges:
    """Find every pair of tables with one schema inside the other, exactly.

    Schemas are taken by size, the largest first. Each goes into every cluster whose centre holds
    it, and where none does it becomes a centre; pairs are compared inside clusters only. If A lies
    in B, the centre that holds B holds A, so that no pair is missed. Only centres that have a
    schema's rarest column can hold it, and tables of one schema are compared once.

    Args:
        index: columns of the tables.

    Returns:
        The pairs; two tables of one schema make a pair each way.

    Source: R2D2 (arXiv 2312.13427), schema graph builder.
    """
    sizes = np.diff(index.starts)[index.first_of]
    order = np.argsort(-sizes, kind="stable")
    sizes, firsts = sizes[order], index.starts[:-1][index.first_of[order]]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    codes = index.codes[np.repeat(firsts, sizes) + within]
    frequency = np.bincount(codes, minlength=len(index.names))
    bits = _bits(starts, codes, (len(index.names) + 63) // 64)
    inner, outer, tests, centres = _within(bits, sizes, starts, codes, frequency)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    children, parents = _expanded(rank, index.schema_of, inner, outer)
    return SchemaEdges(children, parents, int(tests), len(sizes), int(centres))


@njit()
def _bits(starts: np.ndarray, codes: np.ndarray, words: int) -> np.ndarray:
    """Return the columns of each schema as bits, [schemas, words]."""
    bits = np.zeros((len(starts) - 1, words), np.uint64)
    for schema in range(len(starts) - 1):
        for place in range(starts[schema], starts[schema + 1]):
            bits[schema, codes[place] // 64] |= np.uint64(1) << np.uint64(codes[place] % 64)
    return bits


@njit()
def _is_within(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether all bits of one row are set in the other."""
    # As a loop, because numba compiles no generator for `all`.
    for word in range(len(inner)):  # noqa: SIM110
        if inner[word] & ~outer[word]:
            return False
    return True


@njit()
def _within(
    bits: np.ndarray,
    sizes: np.ndarray,
    starts: np.ndarray,
    codes: np.ndarray,
    frequency: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return pairs of schemas, [pairs] each, the number of comparisons, and of clusters."""
    count = len(sizes)
    # Centres by column, as linked lists in arrays.
    heads = np.full(len(frequency), -1, np.int64)
    nexts = np.full(len(codes), -1, np.int64)
    centre_of = np.empty(len(codes), np.int64)
    used, centres, tests = 0, 0, 0
    # Memberships, as linked lists by cluster: members come largest first, and are kept last first.
    member_heads = np.full(count, -1, np.int64)
    members: Any = [np.int64(0) for _ in range(0)]
    member_nexts: Any = [np.int64(0) for _ in range(0)]
    of_centre = np.full(count, -1, np.int64)
    for schema in range(count):
        rarest = codes[starts[schema]]
        for place in range(starts[schema], starts[schema + 1]):
            if frequency[codes[place]] < frequency[rarest]:
                rarest = codes[place]
        is_held = False
        link = heads[rarest]
        while link >= 0:
            centre = centre_of[link]
            tests += 1
            if _is_within(bits[schema], bits[centre]):
                is_held = True
                members.append(np.int64(schema))
                member_nexts.append(member_heads[of_centre[centre]])
                member_heads[of_centre[centre]] = len(members) - 1
            link = nexts[link]
        if not is_held:
            of_centre[schema] = centres
            for place in range(starts[schema], starts[schema + 1]):
                centre_of[used], nexts[used] = schema, heads[codes[place]]
                heads[codes[place]] = used
                used += 1
            members.append(np.int64(schema))
            member_nexts.append(np.int64(-1))
            member_heads[centres] = len(members) - 1
            centres += 1
    inner, outer, more = _pairs(bits, sizes, member_heads[:centres], members, member_nexts)
    return inner, outer, tests + more, centres


@njit()
def _pairs(
    bits: np.ndarray,
    sizes: np.ndarray,
    heads: np.ndarray,
    members: Any,
    nexts: Any,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Compare the members of each cluster, the smaller with the larger."""
    inner = [np.int64(0) for _ in range(0)]
    outer = [np.int64(0) for _ in range(0)]
    tests = 0
    for cluster in range(len(heads)):
        small = heads[cluster]
        while small >= 0:
            large = nexts[small]
            while large >= 0:
                one, other = members[small], members[large]
                tests += 1
                # Different schemas of one size cannot lie within one another.
                if sizes[one] < sizes[other] and _is_within(bits[one], bits[other]):
                    inner.append(one)
                    outer.append(other)
                large = nexts[large]
            small = nexts[small]
    return np.array(inner), np.array(outer), tests


def _expanded(
    rank: NDArray[np.int64],
    schema_of: NDArray[np.int64],
    inner: NDArray[np.int64],
    outer: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn pairs of schemas into pairs of tables, each once though clusters may share it."""
    tables = np.flatnonzero(schema_of >= 0)
    own = rank[schema_of[tables]]
    flat = tables[np.argsort(own, kind="stable")]
    lengths = np.bincount(own, minlength=len(rank))
    starts = np.cumsum(lengths) - lengths
    same = np.flatnonzero(lengths > 1)
    coded = np.unique(np.concatenate([inner * len(rank) + outer, same * len(rank) + same]))
    small, large = coded // max(len(rank), 1), coded % max(len(rank), 1)
    counts = lengths[small] * lengths[large]
    owners = np.repeat(np.arange(len(coded)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    wide = lengths[large][owners]
    children = flat[starts[small][owners] + within // wide]
    parents = flat[starts[large][owners] + within % wide]
    differs = children != parents
    return children[differs], parents[differs]
