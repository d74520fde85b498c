"""Reads hidden behind work: the closed form against a simulation of requests."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.catalog import storage_tier
from steelyard.catalog.storage import StorageTier
from steelyard.cost.overlap import Prefetched, hidden_items, read_ready_s
from steelyard.errors import ConfigError


def simulated(sizes, drive, depth):
    """Requests one by one: a slot, the latency, then their turn on the drive."""
    slots, free_s, done = [0.0] * depth, 0.0, []
    for size in sizes:
        begin = heapq.heappop(slots)
        busy = max(1 / drive.reads_per_s, size / drive.bytes_per_s)
        free_s = max(begin + drive.first_byte_s, free_s) + busy
        done.append(free_s)
        heapq.heappush(slots, free_s)
    return done


@given(
    sizes=st.lists(st.sampled_from([512, 4096, 12288]), min_size=1, max_size=60),
    depth=st.integers(1, 70),
    reads=st.sampled_from([1e3, 1e5, 1e6]),
    latency=st.sampled_from([1e-6, 8e-5, 1e-2]),
)
def test_reads_are_ready_when_a_simulated_drive_has_them(sizes, depth, reads, latency):
    drive = StorageTier(
        name="d", vendor="x", bytes_per_s=1e9, reads_per_s=reads, first_byte_s=latency
    )
    found = read_ready_s(np.array(sizes), drive, depth)
    np.testing.assert_allclose(found, simulated(sizes, drive, depth), rtol=1e-9)
    assert (np.diff(found) > 0).all()


def test_a_deep_queue_reaches_the_rate_and_a_short_one_the_latency():
    drive = StorageTier(
        name="d", vendor="x", bytes_per_s=2**30, reads_per_s=2.5e5, first_byte_s=8e-5
    )
    sizes = np.full(10_000, 4096)
    rates = [10_000 / read_ready_s(sizes, drive, depth)[-1] for depth in (1, 4, 64)]
    assert rates[0] == pytest.approx(1 / 8.4e-5, rel=0.01)
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.05)
    assert rates[2] == pytest.approx(2.5e5, rel=0.01)


@given(*[st.floats(0, 1)] * 5)
def test_the_slower_of_work_and_reads_bounds_both(before, beside, read, late, after):
    times = Prefetched(
        before_s=before, beside_s=beside, read_s=read, late_s=late, after_s=after
    ).time()
    assert times.total_s == pytest.approx(before + max(beside, read) + late + after)
    assert times.hidden_s + times.stall_s == pytest.approx(read)
    assert times.hidden_s <= beside


def test_as_many_items_are_hidden_as_are_read_meanwhile():
    assert hidden_items(1e-3, 4096e6, 4096) == 1000
    assert hidden_items(1e-3, 4096e6, 4096, first_s=5e-4) == 500
    assert hidden_items(1e-5, 4096e6, 4096, first_s=1e-4) == 0
    with pytest.raises(ConfigError):
        hidden_items(1, 0, 4096)
    with pytest.raises(ConfigError):
        read_ready_s(np.array([1]), storage_tier("pm9a3"), 0)


def test_drives_are_in_the_catalog():
    fast, slow = (storage_tier(name) for name in ("p5800x", "870-evo"))
    assert fast.first_byte_s < slow.first_byte_s and fast.reads_per_s > slow.reads_per_s
    assert fast.depth and slow.depth
