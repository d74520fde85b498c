"""Vectors by place on every tier: equal, checked, streamed."""

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.embeddings import EmbeddingStore
from steelyard.errors import CapacityError, ConfigError, DataError

ERRORS = {"fp32": 0.0, "fp16": 2e-3, "int8": 0.02}


def parts(rows, sizes=(1, 30, 7)):
    """Cut rows into parts of some sizes, over and over."""
    first = turn = 0
    while first < len(rows):
        yield rows[first : first + sizes[turn % len(sizes)]]
        first, turn = first + sizes[turn % len(sizes)], turn + 1


@settings(max_examples=10)
@given(
    dtype=st.sampled_from(sorted(ERRORS)),
    dim=st.sampled_from([1, 3, 16, 33, 500]),
    count=st.integers(1, 400),
)
def test_every_tier_returns_the_rows_that_came_in(tmp_path_factory, dtype, dim, count):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, dim)).astype(np.float32).clip(-3, 3)
    path = tmp_path_factory.mktemp("rows") / "vectors"
    store = EmbeddingStore.build(path, parts(rows), dtype=dtype)
    wanted = rng.integers(0, count, 50)
    first = store.rows(wanted)
    assert np.abs(first - rows[wanted]).max() <= ERRORS[dtype]
    for tier in ("memory", "direct"):
        with EmbeddingStore.open(path, tier=tier, depth=3) as other:
            assert (other.rows(wanted) == first).all()
            assert other.rows(np.empty(0, np.int64)).shape == (0, dim)
    assert len(store) == count and store.memory_bytes() == 0


def test_half_precision_comes_back_as_numpy_has_it(tmp_path):
    rows = np.array([[0, 6e-8, 5.96e-8, 6.1e-5, -3e-6, 65504, -1.0009765625, 1 / 3]], np.float32)
    store = EmbeddingStore.build(tmp_path / "v", [rows], dtype="fp16")
    assert (store.rows(np.array([0])) == rows.astype(np.float16).astype(np.float32)).all()


def test_a_flipped_byte_is_seen_by_every_tier(tmp_path):
    path = tmp_path / "v"
    EmbeddingStore.build(path, [np.ones((100, 64), np.float32)])
    raw = bytearray(path.read_bytes())
    raw[4096 * 3 + 77] ^= 1
    path.write_bytes(raw)
    for tier in ("memory", "mmap", "direct"):
        with EmbeddingStore.open(path, tier=tier) as store:
            store.rows(np.array([0, 99]))
            with pytest.raises(DataError, match="block of rows 30"):
                store.rows(np.array([31]))


def test_bad_input_is_refused_and_an_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "v"
    ones = np.ones((3, 4), np.float32)
    EmbeddingStore.build(path, [ones])
    for given_, words in (
        ([], "without rows"),
        ([ones, np.ones((2, 5))], "rows 3 and on"),
        ([ones, ones * np.nan], "row 3 is not finite"),
        ([np.ones(4)], "rows 0"),
    ):
        with pytest.raises(DataError, match=words):
            EmbeddingStore.build(path, given_)
    for options in ({"dtype": "fp8"}, {"block": 1000}):
        with pytest.raises(ConfigError):
            EmbeddingStore.build(path, [ones], **options)
    with pytest.raises(ConfigError, match="blocks of 4,096"):
        EmbeddingStore.build(path, [np.ones((1, 2000))])

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("steelyard.files.os.fsync", full)
    with pytest.raises(CapacityError, match="disk full"):
        EmbeddingStore.build(path, [ones * 2])
    store = EmbeddingStore.open(path)
    assert (store.rows(np.arange(3)) == ones).all()
    with pytest.raises(DataError, match="no row 3"):
        store.rows(np.array([3]))
    with pytest.raises(ConfigError, match="tape"):
        EmbeddingStore.open(path, tier="tape")
    os.truncate(path, 5000)
    with pytest.raises(DataError, match="5,000 of"):
        EmbeddingStore.open(path)
    path.write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match="no store"):
        EmbeddingStore.open(path)
