"""Packs: what goes in comes out, and any damaged byte is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.pack import Pack, pack_bytes, write_pack
from steelyard.errors import DataError

SECTIONS = {
    "numbers": np.arange(1000, dtype=np.float32),
    "table/ids": np.arange(12, dtype=np.int64).reshape(3, 4),
    "words": np.array(["a", "bcd"]),
    "empty": np.zeros((0, 5)),
    "flags": np.array([True, False]),
    "times": np.array(["2026-01-01"], "datetime64[s]"),
}


def test_sections_come_back_as_they_were(tmp_path):
    write_pack(tmp_path / "a.pack", SECTIONS)
    pack = Pack.open(tmp_path / "a.pack")
    assert pack.names == tuple(SECTIONS)
    for name, values in SECTIONS.items():
        assert pack[name].dtype == values.dtype
        np.testing.assert_array_equal(pack[name], values)
        assert not pack[name].flags.writeable
    assert pack_bytes(SECTIONS) == (tmp_path / "a.pack").read_bytes()


def test_sections_begin_where_wide_loads_want_them():
    pack = Pack(pack_bytes(SECTIONS))
    for name in SECTIONS:
        assert pack.place(pack.find(name) or 0) % 64 == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_byte_is_named_or_lies_between_sections(place, change):
    payload = bytearray(pack_bytes(SECTIONS))
    place %= len(payload)
    payload[place] ^= change
    try:
        found = Pack(bytes(payload)).sections()
    except DataError as error:
        assert any(word in str(error) for word in ("damaged", "cut short", "version"))
        return
    assert not place or Pack(bytes(payload)).damaged()
    for name, values in SECTIONS.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("length", [0, 10, 100, 2000])
def test_a_pack_that_is_cut_short_is_refused(tmp_path, length):
    path = tmp_path / "short.pack"
    path.write_bytes(pack_bytes(SECTIONS)[:length])
    with pytest.raises(DataError, match=r"cannot read|cut short|damaged"):
        Pack.open(path)


def test_what_a_pack_does_not_keep_is_refused(tmp_path):
    with pytest.raises(DataError, match="section 'bad' holds object"):
        write_pack(tmp_path / "a.pack", {"bad": np.array([{}], dtype=object)})
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="no section 'other'"):
        Pack(pack_bytes(SECTIONS))["other"]
    with pytest.raises(DataError, match="cannot read"):
        Pack.open(tmp_path / "none.pack")
