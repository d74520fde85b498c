"""Hashes of columns: equal values alike, others apart, whatever the array's layout."""

import datetime

import numpy as np
import pytest

from steelyard.data.sketch.hashing import NULL_HASH, hash_column

pa = pytest.importorskip("pyarrow")


def test_equal_values_of_different_types_hash_alike():
    whole = hash_column(pa.array([3, -1, 0, None]))
    for kind in (pa.int8(), pa.int32(), pa.float32(), pa.float64()):
        assert np.array_equal(hash_column(pa.array([3, -1, 0, None], kind)), whole)
    assert whole[3] == NULL_HASH
    assert hash_column(pa.array([0.0]))[0] == hash_column(pa.array([-0.0]))[0]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_texts_hash_by_their_bytes(kind):
    words = ["", "a", "b", "ab", "ba", "12345678", "123456789", "ä", None, "a\0", "\0a"]
    given = [word.encode() if word is not None and kind == pa.binary() else word for word in words]
    found = hash_column(pa.array(given, kind))
    assert len(set(found.tolist())) == len(words)
    assert np.array_equal(found, hash_column(pa.array(words, pa.string())))
    sliced = pa.array(["x", *given], kind)[1:]
    assert np.array_equal(hash_column(sliced), found)


def test_coded_columns_hash_as_their_values():
    plain = pa.array(["a", "b", None, "a"])
    assert np.array_equal(hash_column(plain.dictionary_encode()), hash_column(plain))


def test_times_hash_by_their_instant():
    day = datetime.datetime(2026, 3, 1)
    slow, fast = pa.array([day], pa.timestamp("s")), pa.array([day], pa.timestamp("ns"))
    assert hash_column(slow)[0] == hash_column(fast)[0]
    assert hash_column(pa.array([day.date()]))[0] == hash_column(slow)[0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([], pa.string()),
        pa.array([None, None]),
        pa.array(["", ""]),
        pa.array([[1, 2], [1]]),
        pa.array([True, False]),
        pa.array([2**64 - 1, 1], pa.uint64()),
    ],
)
def test_any_column_has_a_hash_a_row(column):
    found = hash_column(column)
    assert found.dtype == np.uint64
    assert len(found) == len(column)


def test_hashes_fill_all_bits_evenly():
    found = hash_column(pa.array(np.arange(20_000)))
    bits = (found[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02
    assert len(set(found.tolist())) == 20_000
