"""The search of one tenant's vectors: nodes of the tree in the order of their promise."""

from typing import Any, NamedTuple

import numpy as np

from steelyard.jit import njit
from steelyard.retrieve.distance import new_heap, offer, sorted_rows
from steelyard.retrieve.tenants.lists import lower_bound
from steelyard.retrieve.tenants.sign_codes import coded_query, lower_bound_of

__all__ = ["CODED_WHOLE", "WHOLE", "Scanned", "continue_tenant", "search_tenant"]

WHOLE, CODED_WHOLE = 256, 2048
"""Rows of a tenant that are looked at without the tree: by whole vectors, and by codes."""
_LONG = 256
"""Rows of a range of which the most promising are compared first."""


class Scanned(NamedTuple):
    """What a search of one tenant's vectors looks at, as kernels take it.

    Attributes:
        shortlist: rows below a node that are compared without going further down.
        boost: share of a node's spread that its score is lowered by: its edge may be near.
        is_l2: squared distances, else negative inner products.
        tree: centers, first children, numbers of children, last leaves, what scores are lowered by
            (variances, or deviations for inner products), and the rotation of codes.
        lists: arrays of the lists.
        held: by row: vectors, leaves, numbers, records of codes, and the same as float32.
    """

    shortlist: Any
    boost: Any
    is_l2: bool
    tree: Any
    lists: Any
    held: Any


@njit(fastmath={"reassoc", "contract", "nsz"})
def _distance(query: np.ndarray, vector: np.ndarray, is_l2: bool) -> Any:
    """Return the squared distance, or the negative inner product."""
    total = np.float32(0.0)
    if is_l2:
        for place in range(len(query)):
            apart = query[place] - vector[place]
            total += apart * apart
    else:
        for place in range(len(query)):
            total -= query[place] * vector[place]
    return total


@njit()
def _push(scores: np.ndarray, entries: np.ndarray, size: Any, score: Any, entry: Any) -> None:
    """Put a node and its range on the heap of nodes, the most promising on top."""
    place = size
    while place:
        above = (place - 1) // 2
        if scores[above] <= score:
            break
        scores[place] = scores[above]
        entries[place] = entries[above]
        place = above
    scores[place] = score
    entries[place, 0], entries[place, 1] = entry[0], entry[1]
    entries[place, 2], entries[place, 3], entries[place, 4] = entry[2], entry[3], entry[4]


@njit()
def _pop(scores: np.ndarray, entries: np.ndarray, size: Any) -> None:
    """Take the top off a heap of so many nodes."""
    last = size - 1
    score, place = scores[last], 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and scores[child + 1] < scores[child]:
            child += 1
        if score <= scores[child]:
            break
        scores[place] = scores[child]
        entries[place] = entries[child]
        place = child
    scores[place] = score
    entries[place] = entries[last]


@njit()
def _counted(
    lengths: np.ndarray, chunks: np.ndarray, first: Any, entry: np.ndarray, most: Any
) -> Any:
    """Count the rows of a range, no further than just above `most`."""
    if entry[1] == entry[3]:
        return entry[4] - entry[2]
    total = lengths[chunks[first + entry[1]]] - entry[2]
    for at in range(entry[1] + 1, entry[3]):
        if total > most:
            return total
        total += lengths[chunks[first + at]]
    return total + entry[4]


@njit()
def _rows_of_range(first: Any, entry: np.ndarray, lists: Any, found: Any) -> np.ndarray:
    """Return the rows of a range."""
    rows, lengths, _, chunks, _ = lists
    count = 0
    for at in range(entry[1], entry[3] + 1):
        chunk = chunks[first + at]
        begin = entry[2] if at == entry[1] else 0
        end = entry[4] if at == entry[3] else lengths[chunk]
        for place in range(begin, end):
            found[count] = rows[chunk, place]
            count += 1
    return found[:count]


@njit()
def _compared(
    query: np.ndarray, rows: Any, bounds: Any, held: Any, is_l2: bool, heap: Any, ids: Any
) -> Any:
    """Compare a query with rows whose bounds may be near enough; return how many were compared."""
    vectors, _, numbers, _, _ = held
    compared = 0
    for place in range(len(rows)):
        if bounds[place] > heap[0]:
            continue
        compared += 1
        distance = _distance(query, vectors[rows[place]], is_l2)
        if distance <= heap[0]:
            offer(heap, ids, distance, numbers[rows[place]])
    return compared


@njit()
def _scan_coded(
    query: np.ndarray, coded: Any, rows: np.ndarray, held: Any, is_l2: bool, heap: Any, ids: Any
) -> Any:
    """Look at the codes of rows, compare the most promising, then those that may be nearer."""
    _, _, _, records, facts = held
    planes, terms = coded
    bounds = np.empty(len(rows), np.float32)
    near, places = new_heap(1, len(heap))
    for place in range(len(rows)):
        row = rows[place]
        bounds[place] = lower_bound_of(records[row], facts[row], planes, terms)
        # In a short range what was found before tells enough.
        if len(rows) > _LONG:
            offer(near[0], places[0], bounds[place], place)
    chosen = places[0][places[0] < len(rows)]
    compared = _compared(query, rows[chosen], bounds[chosen], held, is_l2, heap, ids)
    bounds[chosen] = np.inf
    left = np.flatnonzero((bounds <= heap[0]) & (bounds < np.inf))
    return compared + _compared(query, rows[left], bounds[left], held, is_l2, heap, ids)


@njit()
def _walk(
    query: np.ndarray,
    first: Any,
    size: Any,
    seen: Any,
    enough: Any,
    nprobe: Any,
    is_coded: bool,
    coded: Any,
    searched: Any,
    scores: np.ndarray,
    entries: np.ndarray,
    heap: np.ndarray,
    kept: np.ndarray,
) -> Any:
    """Go on with the search of one query until so many vectors were looked at.

    Return nodes on the heap, vectors looked at so far, nodes expanded and vectors compared here.
    """
    shortlist, boost, is_l2, tree, lists, held = searched
    centers, first_child, num_children, last_leaf, spread, _ = tree
    leaves = held[1]
    rows, lengths, _, chunks, keys = lists
    top, entry = np.empty(5, np.int64), np.empty(5, np.int64)
    expanded, compared = 0, 0
    while size and seen < enough:
        for place in range(5):
            top[place] = entries[0, place]
        _pop(scores, entries, size)
        size -= 1
        node = top[0]
        # A tenant of few vectors is compared whole: no tree beats that.
        most = shortlist
        if node == 0:
            most = max(nprobe, CODED_WHOLE if is_coded else WHOLE)
        found = _counted(lengths, chunks, first, top, most)
        if found <= most or not num_children[node]:
            own = _rows_of_range(first, top, lists, np.empty(found, np.int64))
            if is_coded:
                compared += _scan_coded(query, coded, own, held, is_l2, heap, kept)
            else:
                everything = np.full(len(own), -np.inf, np.float32)
                compared += _compared(query, own, everything, held, is_l2, heap, kept)
            seen += found
            continue
        expanded += 1
        begin, place = top[1], top[2]
        for child in range(first_child[node], first_child[node] + num_children[node]):
            if last_leaf[child] == last_leaf[node]:
                end, until = top[3], top[4]
            else:
                end, until = lower_bound(
                    first, begin, top[3], last_leaf[child], rows, lengths, chunks, keys, leaves
                )
                if end == top[3] and until > top[4]:
                    until = top[4]
            if end > begin or until > place:
                score = _distance(query, centers[child], is_l2)
                entry[0], entry[1], entry[2], entry[3], entry[4] = (
                    child,
                    begin,
                    place,
                    end,
                    until,
                )
                _push(scores, entries, size, score - boost * spread[child], entry)
                size += 1
            begin, place = end, until
    return size, seen, expanded, compared


@njit()
def _no_codes() -> Any:
    """Return what stands for the codes of a query where none are looked at."""
    return np.zeros((1, 4), np.uint64), np.zeros(7, np.float32)


@njit()
def _begin(first: Any, count: Any, lists: Any, scores: np.ndarray, entries: np.ndarray) -> None:
    """Put the root and all rows of a tenant on an empty heap."""
    _, lengths, _, chunks, _ = lists
    entry = np.empty(5, np.int64)
    entry[0], entry[1], entry[2] = 0, 0, 0
    entry[3], entry[4] = count - 1, lengths[chunks[first + count - 1]]
    _push(scores, entries, 0, np.float32(0.0), entry)


@njit()
def search_tenant(
    queries: np.ndarray,
    tenant: Any,
    k: Any,
    nprobe: Any,
    is_coded: bool,
    errors: Any,
    searched: Any,
    scores: np.ndarray,
    entries: np.ndarray,
) -> Any:
    """Search the vectors of one tenant.

    Args:
        queries: float32 [Q, D].
        tenant: number of the tenant, which has a row at least.
        k: neighbours.
        nprobe: vectors to compare with at least, where there are so many.
        is_coded: let codes tell which vectors are compared.
        errors: errors of an estimate that are allowed for.
        searched: a `Scanned`.
        scores: room for a score per node.
        entries: room for a node and its range [M, 5].

    Returns:
        Distances and numbers [Q, K], the nearest first, rows looked at, nodes expanded, and
        vectors compared.

    Source: Jin et al. 2024 (Curator, arXiv 2401.07119), best-first search; buckets are scanned as
        they are popped, as in its later version.
    """
    _, _, is_l2, tree, lists, _ = searched
    places = lists[2]
    distances, ids = new_heap(len(queries), k)
    first, count = places[tenant, 0], places[tenant, 1]
    scanned, expanded, compared = 0, 0, 0
    coded = _no_codes()
    for query in range(len(queries)):
        if is_coded:
            coded = coded_query(queries[query], tree[0][0], tree[5], is_l2, errors)
        _begin(first, count, lists, scores, entries)
        _, seen, entered, asked = _walk(
            queries[query],
            first,
            1,
            0,
            nprobe,
            nprobe,
            is_coded,
            coded,
            searched,
            scores,
            entries,
            distances[query],
            ids[query],
        )
        scanned += seen
        expanded += entered
        compared += asked
    found, numbers_found = sorted_rows(distances, ids)
    return found, numbers_found, scanned, expanded, compared


@njit()
def continue_tenant(
    queries: np.ndarray,
    tenant: Any,
    enough: Any,
    nprobe: Any,
    is_coded: bool,
    errors: Any,
    searched: Any,
    state: Any,
    distances: np.ndarray,
    ids: np.ndarray,
) -> Any:
    """Begin or go on with a search of one tenant's vectors, in the order of `search_tenant`.

    Args:
        queries: as of `search_tenant`.
        tenant: as of `search_tenant`.
        enough: vectors of this step's end, at least.
        nprobe: as of `search_tenant`: vectors of the last step's end.
        is_coded: as of `search_tenant`.
        errors: as of `search_tenant`.
        searched: a `Scanned`.
        state: of each query nodes on its heap, below 0 before the first step, rows looked at [Q],
            and room for its heap: scores [Q, M] and entries [Q, M, 5].
        distances: heaps [Q, K].
        ids: heaps [Q, K].

    Returns:
        Rows looked at, nodes expanded and vectors compared in this step.
    """
    sizes, looked, scores, entries = state
    _, _, is_l2, tree, lists, _ = searched
    places = lists[2]
    first, count = places[tenant, 0], places[tenant, 1]
    scanned, expanded, compared = 0, 0, 0
    coded = _no_codes()
    for query in range(len(queries)):
        if sizes[query] < 0:
            _begin(first, count, lists, scores[query], entries[query])
            sizes[query] = 1
        if is_coded:
            coded = coded_query(queries[query], tree[0][0], tree[5], is_l2, errors)
        before = looked[query]
        sizes[query], looked[query], entered, asked = _walk(
            queries[query],
            first,
            sizes[query],
            before,
            enough,
            nprobe,
            is_coded,
            coded,
            searched,
            scores[query],
            entries[query],
            distances[query],
            ids[query],
        )
        scanned += looked[query] - before
        expanded += entered
        compared += asked
    return scanned, expanded, compared
