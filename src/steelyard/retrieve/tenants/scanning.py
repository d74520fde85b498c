"""The search of one tenant's vectors: nodes of the tree in the order of their promise."""

from typing import Any

import numpy as np

from steelyard.jit import njit
from steelyard.retrieve.distance import new_heap, offer, sorted_rows
from steelyard.retrieve.tenants.lists import lower_bound

__all__ = ["continue_tenant", "search_tenant"]

_WHOLE = 256


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
def _scan(
    query: np.ndarray,
    first: Any,
    entry: np.ndarray,
    lists: Any,
    vectors: np.ndarray,
    numbers: Any,
    is_l2: bool,
    distances: np.ndarray,
    ids: np.ndarray,
) -> None:
    """Compare a query with the rows of a range."""
    rows, lengths, _, chunks, _ = lists
    for at in range(entry[1], entry[3] + 1):
        chunk = chunks[first + at]
        begin = entry[2] if at == entry[1] else 0
        end = entry[4] if at == entry[3] else lengths[chunk]
        for place in range(begin, end):
            row = rows[chunk, place]
            distance = _distance(query, vectors[row], is_l2)
            if distance <= distances[0]:
                offer(distances, ids, distance, numbers[row])


@njit()
def _walk(
    query: np.ndarray,
    first: Any,
    size: Any,
    seen: Any,
    enough: Any,
    nprobe: Any,
    shortlist: Any,
    boost: Any,
    is_l2: bool,
    tree: Any,
    lists: Any,
    vectors: np.ndarray,
    leaves: np.ndarray,
    numbers: np.ndarray,
    scores: np.ndarray,
    entries: np.ndarray,
    distances: np.ndarray,
    ids: np.ndarray,
) -> Any:
    """Go on with the search of one query until so many vectors were compared.

    Return nodes on the heap, vectors compared so far, and nodes expanded here.
    """
    centers, first_child, num_children, last_leaf, spread = tree
    rows, lengths, _, chunks, keys = lists
    top, entry = np.empty(5, np.int64), np.empty(5, np.int64)
    expanded = 0
    while size and seen < enough:
        for place in range(5):
            top[place] = entries[0, place]
        _pop(scores, entries, size)
        size -= 1
        node = top[0]
        # A tenant of few vectors is compared whole: no tree beats that.
        most = max(nprobe, _WHOLE) if node == 0 else shortlist
        found = _counted(lengths, chunks, first, top, most)
        if found <= most or not num_children[node]:
            _scan(
                query,
                first,
                top,
                lists,
                vectors,
                numbers,
                is_l2,
                distances,
                ids,
            )
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
    return size, seen, expanded


@njit()
def search_tenant(
    queries: np.ndarray,
    tenant: Any,
    k: Any,
    nprobe: Any,
    shortlist: Any,
    boost: Any,
    is_l2: bool,
    tree: Any,
    lists: Any,
    vectors: np.ndarray,
    leaves: np.ndarray,
    numbers: np.ndarray,
    scores: np.ndarray,
    entries: np.ndarray,
) -> Any:
    """Search the vectors of one tenant.

    Args:
        queries: float32 [Q, D].
        tenant: number of the tenant, which has a row at least.
        k: neighbours.
        nprobe: vectors to compare with at least, where there are so many.
        shortlist: rows below a node that are compared without going further down.
        boost: share of a node's spread that its score is lowered by: its edge may be near.
        is_l2: squared distances, else negative inner products.
        tree: centers, first children, numbers of children, last leaves, and what scores are
            lowered by: variances, or deviations for inner products.
        lists: arrays of the lists.
        vectors: vectors by row.
        leaves: leaf of every row.
        numbers: number of every row.
        scores: room for a score per node.
        entries: room for a node and its range [M, 5].

    Returns:
        Distances and numbers [Q, K], the nearest first, vectors compared, and nodes expanded.

    Source: Jin et al. 2024 (Curator, arXiv 2401.07119), best-first search; buckets are scanned as
        they are popped, as in its later version.
    """
    _, lengths, places, chunks, _ = lists
    distances, ids = new_heap(len(queries), k)
    first, count = places[tenant, 0], places[tenant, 1]
    entry = np.empty(5, np.int64)
    scanned, expanded = 0, 0
    for query in range(len(queries)):
        entry[0], entry[1], entry[2] = 0, 0, 0
        entry[3], entry[4] = count - 1, lengths[chunks[first + count - 1]]
        _push(scores, entries, 0, np.float32(0.0), entry)
        _, seen, nodes = _walk(
            queries[query],
            first,
            1,
            0,
            nprobe,
            nprobe,
            shortlist,
            boost,
            is_l2,
            tree,
            lists,
            vectors,
            leaves,
            numbers,
            scores,
            entries,
            distances[query],
            ids[query],
        )
        expanded += nodes
        scanned += seen
    found, numbers_found = sorted_rows(distances, ids)
    return found, numbers_found, scanned, expanded


@njit()
def continue_tenant(
    queries: np.ndarray,
    tenant: Any,
    enough: Any,
    nprobe: Any,
    shortlist: Any,
    boost: Any,
    is_l2: bool,
    tree: Any,
    lists: Any,
    vectors: np.ndarray,
    leaves: np.ndarray,
    numbers: np.ndarray,
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
        shortlist: as of `search_tenant`, like all up to `numbers`.
        boost: of scores.
        is_l2: the metric.
        tree: the tree.
        lists: of tenants.
        vectors: by row.
        leaves: by row.
        numbers: by row.
        state: of each query nodes on its heap, below 0 before the first step, vectors compared
            [Q], and room for its heap: scores [Q, M] and entries [Q, M, 5].
        distances: heaps [Q, K].
        ids: heaps [Q, K].

    Returns:
        Vectors compared and nodes expanded in this step.
    """
    sizes, compared, scores, entries = state
    _, lengths, places, chunks, _ = lists
    first, count = places[tenant, 0], places[tenant, 1]
    entry = np.empty(5, np.int64)
    scanned, expanded = 0, 0
    for query in range(len(queries)):
        if sizes[query] < 0:
            entry[0], entry[1], entry[2] = 0, 0, 0
            entry[3], entry[4] = count - 1, lengths[chunks[first + count - 1]]
            _push(scores[query], entries[query], 0, np.float32(0.0), entry)
            sizes[query] = 1
        before = compared[query]
        sizes[query], compared[query], nodes = _walk(
            queries[query],
            first,
            sizes[query],
            before,
            enough,
            nprobe,
            shortlist,
            boost,
            is_l2,
            tree,
            lists,
            vectors,
            leaves,
            numbers,
            scores[query],
            entries[query],
            distances[query],
            ids[query],
        )
        scanned += compared[query] - before
        expanded += nodes
    return scanned, expanded
