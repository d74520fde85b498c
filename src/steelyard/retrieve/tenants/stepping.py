"""A search of one tenant's vectors that stops on the way and goes on."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from steelyard.retrieve.distance import new_heap, sorted_heap
from steelyard.retrieve.index import Hits, Metric, SearchStats
from steelyard.retrieve.tenants.scanning import Scanned, continue_tenant
from steelyard.retrieve.tenants.sign_codes import ERRORS

__all__ = ["no_hits", "tenant_steps"]


def no_hits(queries: int, k: int, metric: Metric) -> Hits:
    """Return hits without any.

    Args:
        queries: Q.
        k: neighbours that were wanted.
        metric: of the index.

    Returns:
        Numbers of -1 at infinite distance.
    """
    far = np.inf if metric == "l2" else -np.inf
    return Hits(
        ids=np.full((queries, k), -1, np.int64),
        distances=np.full((queries, k), far, np.float32),
        stats=SearchStats(),
    )


def tenant_steps(
    asked: NDArray[np.float32],
    k: int,
    tenant: int,
    stops: Iterable[int],
    nprobe: int,
    nodes: int,
    coded: bool,
    searched: Scanned,
) -> Iterator[Hits]:
    """Yield the nearest so far after some numbers of vectors that were looked at, and at the end.

    Args:
        asked: queries [Q, D].
        k: neighbours.
        tenant: number of the tenant's list, which has a row at least.
        stops: vectors to look at for each query before something is yielded, ascending.
        nprobe: vectors at the end.
        nodes: nodes of the tree, one more at least.
        coded: let codes tell which vectors are compared.
        searched: what is looked at.

    Yields:
        The nearest so far; the last is what a search without stops returns.
    """
    count = len(asked)
    state = (
        np.full(count, -1, np.int64),
        np.zeros(count, np.int64),
        np.empty((count, nodes), np.float32),
        np.empty((count, nodes, 5), np.int64),
    )
    heap, ids = new_heap(count, k)
    scanned = expanded = compared = 0
    errors = np.float32(ERRORS)
    for stop in [*(stop for stop in stops if stop < nprobe), nprobe]:
        more, entered, done = continue_tenant(
            asked, tenant, stop, nprobe, coded, errors, searched, state, heap, ids
        )
        scanned, expanded = scanned + int(more), expanded + int(entered)
        compared += int(done) if coded else 0
        distances, numbers = sorted_heap(heap, ids)
        yield Hits(
            ids=numbers,
            distances=distances if searched.is_l2 else -distances,
            stats=SearchStats(scanned=scanned, probed=expanded, reranked=compared),
        )
