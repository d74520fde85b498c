"""Random changes and searches of a shared index against sets of numbers."""

import threading
from typing import Any

import numpy as np
from benchmarks.common import Check
from numpy.typing import NDArray

from steelyard.retrieve.tenants import ClusterTreeIndex, TenantShards

_CHECK_EVERY, _TENANTS, _ALL = 1000, 24, 10**9


def oracle_checks(vectors: NDArray[np.float32], operations: int) -> list[Check]:
    """Change and search one index and three shards at random."""
    checks = []
    for name, count in (("one index", 1), ("three shards", 3)):
        shards = []
        for _ in range(count):
            shard = ClusterTreeIndex(vectors.shape[1], shortlist=32, leaf_size=32)
            shard.train(vectors)
            shards.append(shard)
        done = operations if count == 1 else operations // 4
        foreign, wrong, faults = _changed(TenantShards(shards), vectors, done)
        print(
            f"{name}: {done:,} operations, {foreign} foreign results, {wrong} exact answers that "
            f"differ, {faults} faults of the structure"
        )
        checks += [
            Check(f"1 results outside the tenant, {name}", float(foreign), 0.0, "lower"),
            Check(f"1 exact answers that differ, {name}", float(wrong), 0.0, "lower"),
            Check(f"1 faults of the structure, {name}", float(faults), 0.0, "lower"),
        ]
    return [*checks, *_concurrent(vectors)]


def _changed(index: TenantShards, vectors: NDArray[np.float32], operations: int) -> Any:
    """Return foreign results, wrong exact answers and faults after random operations."""
    rng = np.random.default_rng(1)
    index.add(vectors)
    is_there = np.ones(len(vectors), bool)
    seen = np.zeros((_TENANTS, len(vectors)), bool)
    foreign = wrong = faults = 0
    for step in range(operations):
        tenant = int(rng.integers(0, _TENANTS))
        kind = rng.choice(4, p=(0.35, 0.2, 0.05, 0.4))
        there = np.flatnonzero(is_there)
        some = rng.choice(there, int(rng.integers(1, 20)))
        if kind == 0:
            index.grant(some, str(tenant))
            seen[tenant, some] = True
        elif kind == 1:
            index.revoke(some, str(tenant))
            seen[tenant, some] = False
        elif kind == 2:
            gone = np.unique(some[:1])
            index.remove(gone)
            index.add(vectors[gone], gone)
            seen[:, gone] = False
        else:
            query = vectors[int(rng.integers(0, len(vectors)))]
            exact = bool(rng.integers(0, 2))
            found = index.search(query, 5, tenant=str(tenant), nprobe=_ALL if exact else 40)
            ids = found.ids[0][found.ids[0] >= 0]
            foreign += int((~seen[tenant, ids]).sum())
            wrong += exact and not _is_exact(found, vectors, seen[tenant], query)
        if step % _CHECK_EVERY == _CHECK_EVERY - 1:
            try:
                index.check()
            except Exception as error:
                print(error)
                faults += 1
    return foreign, wrong, faults


def _is_exact(
    found: Any, vectors: NDArray[np.float32], seen: NDArray[np.bool_], query: NDArray[np.float32]
) -> bool:
    """Whether distances are those of the nearest that a tenant sees; equal ones may change places.

    Distances of whole numbers are exact in single precision.
    """
    apart = np.sort(((vectors[seen] - query) ** 2).sum(axis=1))[:5]
    own = found.distances[0]
    return bool(np.array_equal(own[: len(apart)], apart) and np.isinf(own[len(apart) :]).all())


def _concurrent(vectors: NDArray[np.float32]) -> list[Check]:
    """Search for one tenant while another thread grants to and revokes from others."""
    index = ClusterTreeIndex(vectors.shape[1], shortlist=32, leaf_size=32)
    index.train(vectors)
    index.add(vectors)
    own = np.arange(0, len(vectors), 3)
    index.grant(own, "own")
    stop = threading.Event()

    def change() -> None:
        rng = np.random.default_rng(2)
        while not stop.is_set():
            some = rng.integers(0, len(vectors), 50)
            name = f"other{rng.integers(0, 40)}"
            index.grant(some, name)
            index.revoke(some[:20], name)

    writer = threading.Thread(target=change)
    writer.start()
    rng, foreign, wrong = np.random.default_rng(3), 0, 0
    is_own = np.zeros(len(vectors), bool)
    is_own[own] = True
    for _ in range(1000):
        query = vectors[int(rng.integers(0, len(vectors)))]
        found = index.search(query, 5, tenant="own", nprobe=_ALL)
        foreign += int((~is_own[found.ids[0]]).sum())
        wrong += not _is_exact(found, vectors, is_own, query)
    stop.set()
    writer.join()
    index.check()
    return [
        Check("1 results outside the tenant, under writes", float(foreign), 0.0, "lower"),
        Check("1 exact answers that differ, under writes", float(wrong), 0.0, "lower"),
    ]
