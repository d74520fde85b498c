"""Which schemas lie within which: clusters around the largest ones, then pairs inside clusters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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


def schema_edges(tokens: Sequence[frozenset[str]]) -> SchemaEdges:
    """Find every pair of tables with one schema inside the other, exactly.

    Schemas are taken by size, the largest first. Each goes into every cluster whose centre holds
    it, and where none does it becomes a centre; pairs are compared inside clusters only. If A lies
    in B, the centre that holds B holds A, so that no pair is missed. Only centres that have a
    schema's rarest column can hold it, and tables of one schema are compared once.

    Args:
        tokens: columns of each table, as `column_token` names them.

    Returns:
        The pairs; two tables of one schema make a pair each way. A table without columns is in none.

    Source: R2D2 (arXiv 2312.13427), schema graph builder.
    """
    members: dict[frozenset[str], list[int]] = {}
    for place, schema in enumerate(tokens):
        if schema:
            members.setdefault(schema, []).append(place)
    schemas = sorted(members, key=len, reverse=True)
    names = {name: code for code, name in enumerate(dict.fromkeys(sorted(frozenset().union(*schemas))))}
    sizes = np.array([len(schema) for schema in schemas], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    codes = np.array([names[name] for schema in schemas for name in schema], np.int64)
    frequency = np.bincount(codes, minlength=len(names))
    bits = np.zeros((len(schemas), (len(names) + 63) // 64), np.uint64)
    owners = np.repeat(np.arange(len(schemas)), sizes)
    np.bitwise_or.at(bits, (owners, codes // 64), np.uint64(1) << (codes % 64).astype(np.uint64))
    inner, outer, tests, centres = _within(bits, sizes, starts, codes, frequency)
    children, parents = _expanded([members[schema] for schema in schemas], inner, outer)
    return SchemaEdges(children, parents, int(tests), len(schemas), int(centres))


@njit()
def _is_within(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether all bits of one row are set in the other."""
    for word in range(len(inner)):
        if inner[word] & ~outer[word]:
            return False
    return True


@njit()
def _within(
    bits: np.ndarray, sizes: np.ndarray, starts: np.ndarray, codes: np.ndarray, frequency: np.ndarray
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
    members = [np.int64(0) for _ in range(0)]
    member_nexts = [np.int64(0) for _ in range(0)]
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
    members: list[int],
    nexts: list[int],
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
    groups: Sequence[Sequence[int]], inner: NDArray[np.int64], outer: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn pairs of schemas into pairs of tables, each once though clusters may share it."""
    lengths = np.array([len(group) for group in groups], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    flat = np.array([place for group in groups for place in group], np.int64)
    pairs = np.unique(np.stack([inner, outer], axis=1), axis=0) if len(inner) else np.zeros((0, 2), int)
    same = np.flatnonzero(lengths > 1)
    pairs = np.concatenate([pairs, np.stack([same, same], axis=1)]).astype(np.int64)
    counts = lengths[pairs[:, 0]] * lengths[pairs[:, 1]]
    owners = np.repeat(np.arange(len(pairs)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    wide = lengths[pairs[owners, 1]]
    children = flat[starts[pairs[owners, 0]] + within // np.maximum(wide, 1)]
    parents = flat[starts[pairs[owners, 1]] + within % np.maximum(wide, 1)]
    differs = children != parents
    return children[differs], parents[differs]
