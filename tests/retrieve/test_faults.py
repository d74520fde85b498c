"""Indexes on a full disk, with turned bits, and killed: what was told of stays."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from steelyard.append_log import AppendLog
from steelyard.errors import CapacityError, DataError
from steelyard.retrieve import IVFFlat, open_index
from steelyard.retrieve.serving.live import LiveIndex, live_index
from steelyard.retrieve.tenants import (
    ClusterTreeIndex,
    create_store,
    open_tenant_index,
    writing_store,
)
from steelyard.retrieve.tenants.store import LOG, SNAPSHOT

DIM = 8
POINTS = np.random.default_rng(2).normal(size=(1200, DIM)).astype(np.float32)
KILLED = """
import sys
import numpy as np
from pathlib import Path
from steelyard.retrieve.serving.live import live_index
points = np.random.default_rng(2).normal(size=(1200, 8)).astype(np.float32)
with live_index(Path(sys.argv[1])) as live:
    for row in range(1000, 1200):
        print(live.add(points[row : row + 1])[0], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    index = IVFFlat(DIM, nlist=8, nprobe=8)
    index.train(POINTS[:1000])
    index.add(POINTS[:1000])
    index.save(tmp_path / "a.index")
    return tmp_path / "a.index"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    index = ClusterTreeIndex(DIM, leaf_size=16)
    index.train(POINTS[:1000])
    create_store(tmp_path / "shared", index)
    with writing_store(tmp_path / "shared") as writer:
        writer.add(POINTS[:1000])
        writer.grant(np.arange(100), "a")
    return tmp_path / "shared"


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk that takes 20 bytes more of each write, and then none."""

    def refused(handle: int, data: bytes, offset: int) -> int:
        if len(data) > 20:
            return os.pwritev(handle, [data[:20]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def unsynced(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refused)
        patch.setattr(os, "fsync", unsynced)
        yield


def test_a_full_disk_leaves_the_old_index_readable(path: Path, full_disk: None) -> None:
    wanted = open_index(path).search(POINTS[:9], 5)
    larger = IVFFlat(DIM)
    larger.add(POINTS)
    with pytest.raises(CapacityError, match="disk full"):
        larger.save(path)
    np.testing.assert_array_equal(open_index(path).search(POINTS[:9], 5).ids, wanted.ids)
    assert sorted(item.name for item in path.parent.iterdir()) == ["a.index"]


def test_an_add_that_a_full_disk_refuses_is_not_there(
    path: Path, request: pytest.FixtureRequest
) -> None:
    with live_index(path) as live:
        live.add(POINTS[1000:1010])
        request.getfixturevalue("full_disk")
        with pytest.raises(CapacityError, match="no room"):
            live.add(POINTS[1010:1020])
        assert len(live) == 1010
        # The end of the block cannot write the index anew: the log stays, and is read next time.
    with live_index(path, read_only=True) as reader:
        assert len(reader) == 1000
    assert len(LiveIndex(path, log=AppendLog(path.parent / "a.index.changes/log.bin"))) == 1010


def test_a_grant_that_a_full_disk_refuses_is_not_there(
    store: Path, request: pytest.FixtureRequest
) -> None:
    with writing_store(store) as writer:
        request.getfixturevalue("full_disk")
        with pytest.raises(CapacityError, match="no room"):
            writer.grant(np.arange(200), "b")
        with pytest.raises(CapacityError, match="disk full"):
            writer.snapshot()
        assert writer.index.granted("b").size == 0
    found = open_tenant_index(store)
    assert (found.granted("a").size, found.granted("b").size) == (100, 0)


def _turned(file: Path, place: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[place] ^= 4
    file.write_bytes(raw)


def test_a_turned_bit_in_a_log_of_changes_is_named_and_nothing_is_guessed(store: Path) -> None:
    # A record that is left out could be one that hides vectors from a tenant: all are wanted.
    with writing_store(store) as writer:
        writer.revoke(np.arange(50), "a")
        writer.grant(np.arange(5), "b")
    whole = (store / LOG).read_bytes()
    for place in (40, len(whole) // 2, len(whole) - 10):
        _turned(store / LOG, place)
        with pytest.raises(DataError, match="damaged behind byte"):
            open_tenant_index(store)
        (store / LOG).write_bytes(whole)
    assert open_tenant_index(store).granted("a").size == 50


def test_a_turned_bit_in_a_snapshot_is_named(store: Path) -> None:
    with writing_store(store) as writer:
        writer.snapshot()
    _turned(store / SNAPSHOT, (store / SNAPSHOT).stat().st_size // 2)
    with pytest.raises(DataError, match="damaged"):
        open_tenant_index(store)


def test_a_turned_bit_in_the_log_of_an_index_is_named(path: Path) -> None:
    log = AppendLog(path.parent / "log.bin")
    LiveIndex(path, log=log).add(POINTS[1000:1100])
    _turned(log.path, 500)
    with pytest.raises(DataError, match=r"log\.bin is damaged behind byte 0"):
        LiveIndex(path, log=log)


def test_vectors_that_were_told_of_survive_a_kill(path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(57)]
        writer.kill()
    assert told == list(range(1000, 1057))
    with live_index(path) as live:
        assert len(live) >= 1057
        assert live.search(POINTS[1000:1057], 1).ids[:, 0].tolist() == told
    # The block wrote all into the file.
    assert len(open_index(path)) >= 1057
