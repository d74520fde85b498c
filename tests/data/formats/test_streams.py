"""Streams of integers: every encoding returns what went in, whole, in parts and by rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.formats.lookup import ROOM, copy_texts, repeat_runs, text_offsets
from steelyard.data.formats.memory import empty
from steelyard.data.formats.streams import KINDS, Stream, _code_lengths, encode_integers
from steelyard.data.formats.symbols import (
    compress_texts,
    expand_neighbours,
    expand_texts,
    trained,
)
from steelyard.errors import DataError

RNG = np.random.default_rng(0)
ZIPF = np.minimum(RNG.zipf(1.3, 5000), 1 << 19)
CASES = {
    "empty": np.zeros(0, np.int64),
    "one": np.array([7]),
    "zeros": np.zeros(3000, np.int64),
    "zipf": ZIPF,
    "runs": np.repeat(RNG.integers(-3, 50, 60), 70),
    "sorted": np.sort(RNG.integers(-(10**12), 10**12, 4100)),
    "widest": RNG.integers(-(2**63), 2**63 - 1, 2500),
    "extremes": np.tile([-(2**63), 2**63 - 1], 1024),
    "57 bits": RNG.integers(0, 1 << 57, 3000),
}


def read(values, kind=""):
    raw = encode_integers(values.astype(np.int64), only=kind)
    return Stream(np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize("kind", ["", *KINDS])
@pytest.mark.parametrize("name", CASES)
def test_every_encoding_returns_what_went_in(name, kind):
    values = CASES[name].astype(np.int64)
    if kind == "prefix" and len(values) and (values.min() < 0 or values.max() >= 1 << 20):
        return
    stream = read(values, kind)
    np.testing.assert_array_equal(stream.decode(0, len(values)), values)
    if len(values) > 2048:
        np.testing.assert_array_equal(stream.decode(1024, 2100), values[1024:2100])
        rows = np.sort(RNG.integers(0, len(values), 50))
        np.testing.assert_array_equal(stream.take(rows), values[rows])


def test_the_smallest_encoding_is_chosen():
    assert read(CASES["runs"]).kind == "runs"
    assert read(CASES["zipf"]).kind == "prefix"
    assert read(np.arange(100_000)).kind == "delta"
    assert read(RNG.integers(0, 1 << 20, 10_000)).kind == "packed"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=60))
def test_code_lengths_are_those_of_a_code_and_nearly_the_entropy(uses):
    uses = np.array([*uses, 1])
    lengths = _code_lengths(uses)
    used = lengths[uses > 0].astype(float)
    assert lengths.max() <= 12 and (lengths[uses == 0] == 0).all()
    assert (2.0**-used).sum() <= 1 + 1e-9
    share = uses[uses > 0] / uses.sum()
    entropy = -(share * np.log2(share)).sum()
    # A Huffman code is within a bit of the entropy; shortened ones lose a little more.
    assert (share * used).sum() <= entropy + 1.1


def test_an_unknown_encoding_is_refused():
    raw = np.frombuffer(bytes([9]) + encode_integers(np.arange(5))[1:], np.uint8)
    with pytest.raises(DataError, match="encoding of integers of number 9"):
        Stream(raw)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_texts_by_pieces_come_back_byte_for_byte(texts):
    lengths = np.array([len(text) for text in texts])
    heap = np.frombuffer(b"".join(texts), np.uint8)
    table = trained(lengths, heap)
    codes, raw = compress_texts(lengths, heap, table)
    ends = np.concatenate([[0], np.cumsum(codes)])
    for rows in (np.arange(len(texts), dtype=np.int32), np.array([len(texts) - 1], np.int32)):
        offsets, found = expand_texts(raw, ends, rows, table)
        for place, row in enumerate(rows.tolist()):
            assert found[offsets[place] : offsets[place + 1]].tobytes() == texts[row]
    first = len(texts) // 2
    offsets, found = expand_neighbours(raw, ends[first:], table)
    for place, text in enumerate(texts[first:]):
        assert found[offsets[place] : offsets[place + 1]].tobytes() == text


def test_neighbouring_texts_of_many_pieces_and_escapes_are_those_of_single_ones():
    words = [bytes(RNG.integers(0, 256, 3, np.uint8)) for _ in range(400)]
    texts = [b"".join(RNG.choice(words, RNG.integers(0, 9)).tolist()) for _ in range(5000)]
    lengths, heap = np.array(list(map(len, texts))), np.frombuffer(b"".join(texts), np.uint8)
    table = trained(lengths, heap)
    codes, raw = compress_texts(lengths, heap, table)
    ends = np.concatenate([[0], np.cumsum(codes)])
    offsets, found = expand_neighbours(raw, ends, table)
    np.testing.assert_array_equal(np.diff(offsets), lengths)
    np.testing.assert_array_equal(found[: offsets[-1]], heap)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=20), st.data())
def test_texts_of_a_dictionary_are_copied_behind_each_other(texts, data):
    codes = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=60))
    lengths = np.array(list(map(len, texts)), np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    offsets = np.empty(len(codes) + 1, np.int32)
    codes = np.array(codes, np.int32)
    text_offsets(lengths, codes, offsets)
    expected = b"".join(texts[code] for code in codes)
    for spare in (0, 7, ROOM):
        heap = np.frombuffer(b"".join(texts) + bytes(spare), np.uint8)
        found = np.zeros(offsets[-1] + ROOM, np.uint8)
        copy_texts(heap, ends, codes, offsets, found)
        assert found[: offsets[-1]].tobytes() == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 30)), min_size=1), st.data())
def test_runs_are_filled_as_numpy_repeats(runs, data):
    kept, lengths = (np.array(side) for side in zip(*runs, strict=True))
    ends, expected = np.cumsum(lengths).astype("u4"), np.repeat(kept, lengths)
    first = data.draw(st.integers(0, int(lengths[0]) - 1))
    last = data.draw(st.integers(first, len(expected)))
    found = np.full(last - first, 99, np.int32)
    repeat_runs(kept.astype("i2"), ends, first, found)
    np.testing.assert_array_equal(found, expected[first:last])


def test_large_arrays_are_of_arrows_pool():
    pool = pytest.importorskip("pyarrow").default_memory_pool()
    before = pool.bytes_allocated()
    values = empty(1 << 18, np.float64)
    values[:] = 1.5
    assert pool.bytes_allocated() - before == values.nbytes and len(values) == 1 << 18
    del values
    assert pool.bytes_allocated() == before


def test_texts_that_repeat_pieces_become_smaller():
    texts = [f"https://example.org/item/{row:05d}?lang=en".encode() for row in range(3000)]
    lengths = np.array([len(text) for text in texts])
    heap = np.frombuffer(b"".join(texts), np.uint8)
    _, raw = compress_texts(lengths, heap, trained(lengths, heap))
    assert len(raw) < 0.35 * len(heap)
