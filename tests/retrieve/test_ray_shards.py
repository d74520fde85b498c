"""Shards of a service as actors of a Ray cluster of two machines, both of them here."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.ray_machines import two_machines

from steelyard.errors import BackendError, DataError
from steelyard.retrieve import IVFFlat
from steelyard.retrieve.serving.ray_shards import RayShards
from steelyard.retrieve.serving.service import SearchService
from steelyard.retrieve.serving.shards import ShardDownError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
RNG = np.random.default_rng(8)
VECTORS = RNG.normal(size=(400, 6)).astype(np.float32)
QUERIES = RNG.normal(size=(5, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def address():
    with two_machines(1) as address:
        yield address


def shard_file(path: Path, rows: slice) -> Path:
    index = IVFFlat(6, nlist=8, nprobe=8)
    index.train(VECTORS)
    index.add(VECTORS[rows], np.arange(400)[rows])
    index.save(path)
    return path


def test_a_killed_actor_makes_answers_partial_until_it_is_back(address, tmp_path: Path) -> None:
    import ray  # pyright: ignore[reportMissingImports]

    paths = [shard_file(tmp_path / f"{n}.index", slice(n, None, 2)) for n in range(2)]
    room = RayShards(address, shards=2)
    shards = [room.start(path) for path in paths]
    service = SearchService(shards)
    one = IVFFlat(6)
    one.add(VECTORS)
    added = service.add(np.full((1, 6), 9.0))
    whole = service.search(QUERIES, 6)
    assert whole is not None and not whole.missing
    np.testing.assert_array_equal(whole.hits.ids, one.search(QUERIES, 6).ids)
    process = ray.get(shards[0].actor.process_id.remote())
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ShardDownError, match=r"0\.index"):
        service.search(QUERIES, 6, strict=True)
    found, partial, deadline = service.search(QUERIES, 6), 0, time.monotonic() + 120
    while found is not None and found.missing and time.monotonic() < deadline:
        partial += 1
        assert found.missing == (str(paths[0]),)
        assert not np.isin(found.hits.ids, np.arange(0, 400, 2)).any()
        time.sleep(0.1)
        found = service.search(QUERIES, 6)
    assert found is not None and partial > 0 and service.num_restarts >= 1
    np.testing.assert_array_equal(found.hits.ids, whole.hits.ids)
    assert ray.get(shards[0].actor.process_id.remote()) != process
    # What was acknowledged before the kill is there after it.
    again = service.search(np.full((1, 6), 9.0), 1)
    assert again is not None and again.hits.ids[0, 0] == added[0]
    service.remove(added)
    service.close()
    room.close()
    again = RayShards(address, shards=2)  # the room is free, and so are the files
    opened = SearchService([again.start(path, read_only=True) for path in paths])
    assert sum(about.size for about in opened.about()) == 400
    opened.close()
    again.close()


def test_what_cannot_be_opened_or_placed_is_refused(address, tmp_path: Path) -> None:
    room = RayShards(address, shards=1)
    with pytest.raises(DataError, match="has not started") as refused:
        room.start(tmp_path / "none.index")
    assert "is no file" in str(refused.value)
    room.close()
    with pytest.raises(BackendError, match="no room for 9 shards"):
        RayShards(address, shards=9, wait_s=2.0)
