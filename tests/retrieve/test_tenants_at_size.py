"""A hundred thousand changes and searches of indexes that tenants share, with writers and kills."""

import multiprocessing
import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from steelyard.retrieve.tenants import (
    ClusterTreeIndex,
    TenantShards,
    create_store,
    open_tenant_index,
    writing_store,
)
from steelyard.retrieve.tenants.records import read_changes
from steelyard.retrieve.tenants.store import LOG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
OPERATIONS, TENANTS, KILLS, ALL = 100_000, 24, 12, 10**9
RNG = np.random.default_rng(5)
MIDDLES = RNG.integers(0, 64, (40, 40))
# Distances of whole numbers are exact in single precision.
POINTS = (MIDDLES[RNG.integers(0, 40, 3000)] + RNG.integers(0, 16, (3000, 40))).astype(np.float32)
KEPT = 500
"""Vectors before this are never removed: another writer grants them."""


def made() -> ClusterTreeIndex:
    index = ClusterTreeIndex(40, shortlist=32, leaf_size=32)
    index.train(POINTS)
    return index


def foreign_or_wrong(index, tenant: str, seen: np.ndarray, rng: np.random.Generator) -> bool:
    query = POINTS[int(rng.integers(0, len(POINTS)))]
    is_exact = bool(rng.integers(0, 2))
    found = index.search(query, 5, tenant=tenant, nprobe=ALL if is_exact else 40)
    ids = found.ids[0][found.ids[0] >= 0]
    wanted = np.sort(((POINTS[seen] - query) ** 2).sum(axis=1))[:5]
    is_wrong = is_exact and not np.array_equal(found.distances[0][: len(wanted)], wanted)
    return is_wrong or not seen[ids].all()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_no_search_finds_a_foreign_vector_while_another_thread_writes(num_shards: int) -> None:
    index = TenantShards([made() for _ in range(num_shards)])
    index.add(POINTS)
    seen, stop, written = np.zeros((TENANTS, len(POINTS)), bool), threading.Event(), [0]

    def write() -> None:
        rng = np.random.default_rng(2)
        while not stop.is_set():
            some, name = rng.integers(0, KEPT, 30), f"other{rng.integers(0, 40)}"
            index.grant(some, name)
            index.revoke(some[:20], name)
            written[0] += 2
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    rng, faults, searches = np.random.default_rng(1), 0, 0
    try:
        for step in range(OPERATIONS):
            tenant = int(rng.integers(0, TENANTS))
            kind = rng.choice(4, p=(0.35, 0.2, 0.05, 0.4))
            some = rng.integers(0, len(POINTS), int(rng.integers(1, 20)))
            if kind == 0:
                index.grant(some, str(tenant))
                seen[tenant, some] = True
            elif kind == 1:
                index.revoke(some, str(tenant))
                seen[tenant, some] = False
            elif kind == 2:
                gone = np.array([rng.integers(KEPT, len(POINTS))])
                index.remove(gone)
                index.add(POINTS[gone], gone)
                seen[:, gone] = False
            else:
                faults += foreign_or_wrong(index, str(tenant), seen[tenant], rng)
                searches += 1
            if step % 1000 == 999:
                index.check()
    finally:
        stop.set()
        writer.join()
    print(f"{num_shards} shards: {searches:,} searches, {written[0]:,} changes beside, {faults=}")
    assert faults == 0
    assert written[0] > 1000


def change_of(place: int) -> tuple[str, np.ndarray, int]:
    """Return kind, numbers and tenant of a change; every fiftieth is undone by the next."""
    rng = np.random.default_rng([7, place - (place % 50 == 11)])
    some, tenant = rng.integers(0, len(POINTS), int(rng.integers(1, 20))), rng.integers(0, TENANTS)
    if place % 50 in (10, 11):
        return ("remove", "add")[place % 50 - 10], some[:1], 0
    return "grant" if rng.random() < 0.6 else "revoke", some, int(tenant)


def write_on(folder: Path, begin: int) -> None:
    with writing_store(folder) as store, (folder / "told").open("r+b", buffering=0) as told:
        for place in range(begin, OPERATIONS):
            kind, numbers, tenant = change_of(place)
            if kind == "remove":
                store.remove(numbers)
            elif kind == "add":
                store.add(POINTS[numbers], numbers)
            else:
                getattr(store, kind)(numbers, str(tenant))
            os.pwrite(told.fileno(), (place + 1).to_bytes(8, "little"), 0)
            if place % 5000 == 4999:
                store.snapshot()


def test_kills_lose_no_change_and_let_nothing_foreign_through(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    create_store(folder, made())
    with writing_store(folder) as store:
        store.add(POINTS)
        for tenant in range(TENANTS):
            store.grant(np.array([tenant]), str(tenant))
    (folder / "told").write_bytes(bytes(8))
    seen = np.zeros((TENANTS, len(POINTS)), bool)
    seen[np.arange(TENANTS), np.arange(TENANTS)] = True
    done, rng = 0, np.random.default_rng(3)
    ends = np.sort(rng.choice(np.arange(1, OPERATIONS - 1000), KILLS, replace=False)).tolist()
    for _, end in pairwise([0, *ends, OPERATIONS]):
        writer = multiprocessing.get_context("spawn").Process(target=write_on, args=(folder, done))
        writer.start()
        while writer.is_alive() and told_of(folder) < end:
            time.sleep(0.001)
        if end < OPERATIONS:
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        changes = sum(1 for _ in read_changes(folder / LOG, 0)) - 1 - TENANTS
        assert told_of(folder) <= changes <= told_of(folder) + 1
        for place in range(done, changes):
            kind, numbers, tenant = change_of(place)
            if kind == "remove":
                seen[:, numbers] = False
            elif kind != "add":
                seen[tenant, numbers] = kind == "grant"
        done = changes
        index = open_tenant_index(folder)
        index.check()
        for tenant in range(TENANTS):
            assert np.array_equal(index.granted(str(tenant)), np.flatnonzero(seen[tenant]))
            assert not foreign_or_wrong(index, str(tenant), seen[tenant], rng)
    assert done == OPERATIONS


def told_of(folder: Path) -> int:
    """Return how many changes the writer was told of."""
    return int.from_bytes((folder / "told").read_bytes(), "little")
