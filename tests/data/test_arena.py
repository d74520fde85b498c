"""Shared slabs: what is read is what was written, or nothing."""

import subprocess
import sys

import numpy as np
import pytest

from steelyard.data.arena import ArenaConfig, ArenaReader, SlabArena, SlabRef, sweep
from steelyard.errors import CapacityError, ConfigError, DataError


class Clock:
    """A clock that is set."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def arena(tmp_path):
    made = SlabArena(
        "test",
        ArenaConfig(slab_bytes=5000, num_slabs=2, lease_s=1.0),
        folder=tmp_path,
        clock=Clock(),
    )
    yield made
    made.close()


def write(arena, value, size=5000):
    slab, place = arena.take(size)
    place[:] = value
    return arena.publish(slab, size)


def test_slabs_are_read_by_reference(arena):
    first, second = write(arena, 1), write(arena, 2, 100)
    reader = ArenaReader(arena.path)
    assert np.array_equal(reader.read(first), np.ones(5000, np.uint8))
    assert np.array_equal(reader.read(second), np.full(100, 2, np.uint8))


def test_leased_slabs_are_not_used_again(arena):
    first, second = write(arena, 1), write(arena, 2)
    assert arena.take(1) is None
    arena.give_back(first)
    slab, place = arena.take(10)
    assert slab == first.slab
    reader = ArenaReader(arena.path)
    with pytest.raises(DataError, match="used again"):  # already while it is written
        reader.read(first)
    place[:] = 3
    arena.give_back(first)  # of the earlier use: the slab stays taken
    assert arena.take(1) is None
    arena.publish(slab, 10)
    arena._clock.now_s = 1.5
    assert write(arena, 4).slab == second.slab
    with pytest.raises(DataError, match="used again"):
        reader.read(second)


def test_bad_references_and_sizes_are_refused(arena, tmp_path):
    assert arena.take(5001) is None
    reader = ArenaReader(arena.path)
    for ref in (SlabRef(2, 0, 1), SlabRef(0, 0, 5001), SlabRef(-1, 0, 1)):
        with pytest.raises(DataError, match="outside"):
            reader.read(ref)
    (tmp_path / "no.arena").write_bytes(bytes(100))
    with pytest.raises(DataError, match="no arena"):
        ArenaReader(tmp_path / "no.arena")
    with pytest.raises(DataError, match="cannot be opened"):
        ArenaReader(tmp_path / "missing")
    with pytest.raises(ConfigError, match="num_slabs"):
        ArenaConfig(num_slabs=0)
    with pytest.raises(CapacityError, match="no room"):
        SlabArena("big", ArenaConfig(slab_bytes=1 << 55), folder=tmp_path)


def test_what_dead_owners_left_is_removed(arena, tmp_path):
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom steelyard.data.arena import SlabArena\n"
        "SlabArena('gone', folder=Path(sys.argv[1]))\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    left = list(tmp_path.glob("*-gone.arena"))
    assert len(left) == 1
    assert sweep(tmp_path) == left
    assert arena.path.exists()
