"""A hundred thousand changes and searches of indexes that tenants share, with a writer."""

import threading
import time

import numpy as np
import pytest
from tests.retrieve.tenant_changes import POINTS, TENANTS, foreign_or_wrong, made

from steelyard.retrieve.tenants import TenantShards

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
OPERATIONS = 100_000
KEPT = 500
"""Vectors before this are never removed: another writer grants them."""


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
