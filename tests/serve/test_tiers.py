import errno
import threading
import time

import numpy as np
import pytest
import torch

from steelyard.data.tiers.links import LinkModel
from steelyard.data.tiers.stores import FileStore, MemoryStore
from steelyard.data.tiers.transfers import Transfer
from steelyard.errors import CapacityError, ConfigError
from steelyard.serve.kv.tiers import TieredKV, make_store
from steelyard.serve.scheduling.swaps.pacing import SwapPacing

NUM_BLOCKS = 24


def pool(dtype=torch.float32):
    return torch.randn(3, 2, NUM_BLOCKS, 2, 4, 5).to(dtype)


def transfer(name, direction, *runs):
    return Transfer(
        id=name, request_id=f"r{name}", direction=direction, runs=np.array(runs, dtype=np.int64)
    )


def finish(tiers):
    while tiers.num_under_way:
        tiers.wait()
        tiers.landed()


@pytest.mark.parametrize("place", ["memory", "direct", "buffered"])
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_come_back_as_they_went(tmp_path, place, grouped, dtype):
    kv = pool(dtype)
    before = kv.clone()
    size = 2 * 4 * 5 * kv.element_size()
    store = (
        MemoryStore(32, 6, size)
        if place == "memory"
        else FileStore(tmp_path, 32, 6, size, direct=None if place == "direct" else False)
    )
    assert list(tmp_path.iterdir()) == []
    tiers = TieredKV(kv, store, grouped=grouped)
    tiers.submit([transfer(0, "out", (3, 10, 7), (20, 0, 2)), transfer(1, "out", (12, 25, 1))])
    finish(tiers)
    kv[:, :, [3, 4, 5, 6, 7, 8, 9, 12, 20, 21]] = 0
    tiers.submit([transfer(2, "in", (0, 10, 7), (7, 0, 2)), transfer(3, "in", (9, 25, 1))])
    finish(tiers)
    assert torch.equal(kv[:, :, :10], before[:, :, [3, 4, 5, 6, 7, 8, 9, 20, 21, 12]])
    assert torch.equal(kv[:, :, [10, 11, 22, 23]], before[:, :, [10, 11, 22, 23]])
    for direction in ("out", "in"):
        stats = tiers.stats(direction)
        assert (stats.transfers, stats.num_bytes, stats.failures) == (2, 10 * 6 * size, 0)
        assert stats.copies == (3 if grouped else 10 * 6)
        assert stats.bytes_per_s > 0
    tiers.close()


def test_a_run_longer_than_the_buffer_goes_in_pieces(tmp_path):
    kv = torch.randn(2, 2, 40, 128, 1024)
    before = kv.clone()
    tiers = TieredKV(kv, make_store(kv, 40, tmp_path))
    tiers.submit([transfer(0, "out", (0, 0, 40))])
    finish(tiers)
    kv.zero_()
    tiers.submit([transfer(1, "in", (0, 0, 40))])
    finish(tiers)
    assert torch.equal(kv, before)
    assert tiers.stats("out").copies == 10
    tiers.close()


class Broken:
    """A store whose device fails for one block."""

    def __init__(self, store, block):
        self.store, self.block, self.num_blocks = store, block, store.num_blocks

    def put(self, block, piece, source):
        if block <= self.block < block + len(source):
            raise OSError(errno.ENOSPC, "no space left on device")
        return self.store.put(block, piece, source)

    def get(self, block, piece, target):
        if block <= self.block < block + len(target):
            raise OSError(errno.EIO, "input/output error")
        return self.store.get(block, piece, target)

    def close(self):
        self.store.close()


def test_a_device_that_fails_fails_the_transfer_only():
    kv = pool()
    tiers = TieredKV(kv, Broken(make_store(kv, 16), 5))
    tiers.submit(
        [transfer(0, "out", (0, 0, 4)), transfer(1, "out", (4, 4, 4)), transfer(2, "in", (8, 5, 1))]
    )
    tiers.wait([0, 1, 2])
    assert sorted(tiers.failed()) == [1, 2]
    assert tiers.landed() == [0]
    assert tiers.failed() == []
    assert tiers.num_under_way == 0
    assert [tiers.stats(direction).failures for direction in ("out", "in")] == [1, 1]
    tiers.close()


def test_a_copy_lets_python_go_on_and_the_emulated_link_takes_its_time():
    kv = pool()
    tiers = TieredKV(kv, make_store(kv, 16), link=LinkModel(latency_s=0.05, bytes_per_s=1e9))
    start = time.perf_counter()
    tiers.submit([transfer(0, "out", (0, 0, 1), (2, 2, 1))])
    assert time.perf_counter() - start < 0.05
    assert tiers.landed() == []
    tiers.wait([0])
    assert time.perf_counter() - start >= 0.1
    assert tiers.landed() == [0]
    tiers.close()


def test_incoming_transfers_do_not_queue_behind_outgoing_ones():
    gate = threading.Event()

    class Slow(Broken):
        def put(self, block, piece, source):
            gate.wait(10)
            return self.store.put(block, piece, source)

    kv = pool()
    tiers = TieredKV(kv, Slow(make_store(kv, 16), -1))
    tiers.submit(
        [
            *(transfer(name, "out", (name, name, 1)) for name in range(6)),
            transfer(9, "in", (20, 9, 1)),
        ]
    )
    tiers.wait()
    assert tiers.landed() == [9]
    gate.set()
    finish(tiers)
    tiers.close()


def test_what_cannot_be_made_is_refused(tmp_path):
    kv = pool()
    with pytest.raises(CapacityError, match="has no room for"):
        make_store(kv, 10**11, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="cannot make"):
        make_store(kv, 4, tmp_path / "missing")
    with pytest.raises(ConfigError, match="contiguous pool on the CPU"):
        TieredKV(kv[:, :, ::2], make_store(kv, 4))


def test_pacing_waits_when_the_batch_is_mostly_on_its_way():
    pacing = SwapPacing()
    assert not pacing.should_wait(0, 0, 0)
    assert pacing.should_wait(0, 1, 100)
    assert not pacing.should_wait(1, 9, 1)
    pacing.step(0.010)
    pacing.swapped(10, 0.010)
    assert pacing.should_wait(1, 9, 8)
    assert not pacing.should_wait(1, 9, 9)
    assert not pacing.should_wait(9, 1, 1)
    assert pacing.should_wait(9, 1, 0)
