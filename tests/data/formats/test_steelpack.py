"""Steelpack files: bit for bit what went in, whatever the type; damage is named."""

import datetime
import decimal
import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402

from steelyard.data.formats import Steelpack, write_steelpack  # noqa: E402
from steelyard.data.pack import Pack, write_pack  # noqa: E402
from steelyard.errors import CapacityError, ConfigError, DataError  # noqa: E402

RNG = np.random.default_rng(0)
ROWS = 20_000


def table_of_types(rows=ROWS):
    mask = RNG.random(rows) < 0.1
    words = np.array([f"word {place}" for place in range(300)])
    floats = np.round(RNG.normal(0, 100, rows), 2)
    floats[:4] = [np.nan, -0.0, np.inf, 0.0]
    day = datetime.date(2026, 1, 1)
    return pa.table(
        {
            "id": np.arange(rows),
            "zipf": pa.array(np.minimum(RNG.zipf(1.3, rows), 900), mask=mask),
            "small": RNG.integers(-5, 5, rows).astype(np.int8),
            "wide": RNG.integers(0, 1 << 63, rows).astype(np.uint64) * np.uint64(2),
            "uint32": RNG.integers(0, 1 << 32, rows).astype(np.uint32),
            "price": pa.array(floats, mask=np.roll(mask, 7)),
            "noise": RNG.normal(size=rows),
            "few": RNG.choice([1.5, -0.0, 0.0, np.nan], rows),
            "half": RNG.normal(size=rows).astype(np.float16),
            "single": np.round(RNG.normal(size=rows), 1).astype(np.float32),
            "flag": pa.array(RNG.random(rows) < 0.3, mask=np.roll(mask, 9)),
            "word": pa.array(words[np.minimum(RNG.zipf(1.4, rows), 300) - 1], mask=mask),
            "key": [f"item {row} \0 ä" for row in range(rows)],
            "large": pa.array(words[RNG.integers(0, 300, rows)], pa.large_string()),
            "bytes": pa.array([bytes([row % 256, 255, 0]) for row in range(rows)]),
            "time": pa.array(np.sort(RNG.integers(0, 10**15, rows)), pa.timestamp("us", tz="UTC")),
            "day": pa.array([day + datetime.timedelta(int(n)) for n in RNG.integers(0, 99, rows)]),
            "money": pa.array([decimal.Decimal(int(n)) / 100 for n in RNG.integers(0, 99, rows)]),
            "vector": pa.FixedSizeListArray.from_arrays(RNG.normal(size=rows * 3), 3),
            "list": pa.array([[row, None] if row % 3 else None for row in range(rows)]),
            "record": pa.array([{"a": row, "b": "x"} for row in range(rows)]),
            "kind": pa.array(words[RNG.integers(0, 9, rows)]).dictionary_encode(),
            "none": pa.nulls(rows, pa.string()),
            "null": pa.nulls(rows),
            "seven": np.full(rows, 7),
            "same": pa.array(["same"] * rows),
        }
    )


def written(tmp_path, table, **options):
    path = tmp_path / "table.steelpack"
    write_steelpack(table.to_batches(), path, schema=table.schema, **options)
    return path


def assert_same(found, given):
    """Equal bits: NaN, -0.0 and missing values too."""
    assert found.schema == given.schema
    assert len(found) == len(given)
    for name in given.column_names:
        one, two = found[name].combine_chunks(), given[name].combine_chunks()
        if pa.types.is_dictionary(one.type):
            # Which code a value has is no part of it.
            one, two = one.dictionary_decode(), two.dictionary_decode()
        if pa.types.is_floating(one.type):
            bits = f"u{one.type.bit_width // 8}"
            assert one.is_valid().equals(two.is_valid())
            left, right = (x.drop_null().to_numpy().view(bits) for x in (one, two))
            np.testing.assert_array_equal(left, right, err_msg=name)
        else:
            assert one.equals(two), name


@pytest.mark.parametrize("compress", ["auto", "always"])
def test_all_types_come_back_bit_for_bit(tmp_path, compress):
    table = table_of_types()
    pack = Steelpack.open(written(tmp_path, table, compress=compress, group_rows=8192))
    assert (pack.rows, pack.width, pack.groups) == (ROWS, table.num_columns, 3)
    assert pack.schema == table.schema
    assert_same(pack.read(), table)
    rows = RNG.integers(0, ROWS, 300)
    assert_same(pack.take(rows), table.take(rows))
    assert_same(pack.take([]), table.slice(0, 0))
    assert not pack.pack.damaged() and pack.last_good_group() == 2


def test_some_columns_are_read_in_the_order_wanted(tmp_path):
    table = table_of_types(500)
    pack = Steelpack.open(written(tmp_path, table))
    before = pack.pack.checked_bytes
    assert_same(pack.read(["word", "id"]), table.select(["word", "id"]))
    assert pack.pack.checked_bytes - before < 0.1 * len(pack.pack._payload)
    with pytest.raises(ConfigError, match="no column 'other'"):
        pack.read(["other"])
    with pytest.raises(ConfigError, match="no row 500"):
        pack.take([3, 500])


values = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=40).map(
        lambda items: pa.array(items, pa.int64())
    ),
    st.lists(st.one_of(st.none(), st.floats()), max_size=40).map(
        lambda items: pa.array(items, pa.float64())
    ),
    st.lists(st.one_of(st.none(), st.text(max_size=12)), max_size=40).map(
        lambda items: pa.array(items, pa.string())
    ),
    st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=40).map(
        lambda items: pa.array(items, pa.binary())
    ),
)


@settings(max_examples=30, deadline=None)
@given(values, st.integers(0, 5))
def test_any_column_comes_back(tmp_path_factory, column, cut):
    table = pa.table({"v": column}).slice(min(cut, len(column)))
    path = written(tmp_path_factory.mktemp("any"), table)
    pack = Steelpack.open(path)
    assert_same(pack.read(), table)
    rows = np.arange(len(table))[::-2]
    assert_same(pack.take(rows), table.take(rows))


def test_an_empty_table_and_one_without_columns(tmp_path):
    for table in (table_of_types(20).slice(0, 0), pa.table({})):
        pack = Steelpack.open(written(tmp_path, table))
        assert pack.rows == 0 and pack.read().schema == table.schema


def test_ranges_are_those_of_a_filter_and_skip_zones(tmp_path):
    table = table_of_types(25_000)
    pack = Steelpack.open(written(tmp_path, table, group_rows=16_384))
    cases = {
        "id": (1000, 1100),
        "price": (-3.0, None),
        "word": ("word 1", "word 15"),
        "zipf": (None, 2),
        "flag": (True, None),
        "wide": (1 << 62, 3 << 62),
        "none": ("a", "b"),
    }
    for name, (low, high) in cases.items():
        column = table[name]
        mask = pc.is_valid(column)
        if low is not None:
            mask = pc.and_kleene(mask, pc.greater_equal(column, pa.scalar(low, column.type)))
        if high is not None:
            mask = pc.and_kleene(mask, pc.less_equal(column, pa.scalar(high, column.type)))
        assert_same(pack.select({name: (low, high)}), table.filter(mask))
    both = pack.select({"id": (5, 20_000), "zipf": (3, 3)}, ["id"])
    wanted = table.filter(
        (pc.field("id") >= 5) & (pc.field("id") <= 20_000) & (pc.field("zipf") == 3)
    )
    assert both["id"].equals(wanted["id"])
    fresh = Steelpack.open(tmp_path / "table.steelpack")
    fresh.select({"id": (1000, 1100)}, ["id"])
    assert fresh.pack.checked_bytes < 20_000
    for name, low in (("list", [1]), ("id", "many")):
        with pytest.raises(ConfigError, match=r"bound|order"):
            pack.select({name: (low, None)})


def test_plain_numbers_share_the_files_memory(tmp_path):
    torch = pytest.importorskip("torch")
    table = table_of_types().select(["noise", "vector", "id"])
    pack = Steelpack.open(written(tmp_path, table))
    arrays = pack.numpy(["noise", "vector"])
    start = pack.pack.raw(0).ctypes.data
    assert 0 <= arrays["noise"].ctypes.data - start < pack.pack.size(0)
    assert arrays["vector"].shape == (ROWS, 3)
    tensors = pack.torch()
    assert tensors["noise"].data_ptr() == arrays["noise"].ctypes.data
    assert torch.equal(tensors["id"], torch.arange(ROWS))
    words = Steelpack.open(written(tmp_path, table_of_types(10).select(["word"])))
    with pytest.raises(ConfigError, match="column 'word' holds object"):
        words.torch()


def test_large_dictionaries_are_kept_by_pieces_unless_zstd_saves_more(tmp_path):
    words = [f"user {row * 7919 % 9973:05d} of shop {row % 31}" for row in range(6000)]
    table = pa.table({"word": pa.array(words).take(pa.array(RNG.integers(0, 6000, 30_000)))})
    pack = Steelpack.open(written(tmp_path, table))
    chunk = pack._chunk(0, 0)._chunk
    assert chunk.encoding == "dictionary" and len(chunk.raw(3)) and not len(chunk.raw(2))
    assert_same(pack.read(), table)
    rows = RNG.integers(0, 30_000, 100)
    assert_same(pack.take(rows), table.take(rows))
    same = pa.table({"word": pa.array([f"{'x' * 90}{row:05d}" for row in range(6000)] * 3)})
    long = Steelpack.open(written(tmp_path, same))
    assert len(long._chunk(0, 0)._chunk.raw(2))
    assert_same(long.read(), same)


def test_a_pack_that_is_let_go_closes_its_file(tmp_path):
    path, folder = written(tmp_path, table_of_types(500)), Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("open files are not listed here")
    before = len(list(folder.iterdir()))
    for _ in range(20):
        Steelpack.open(path).read(["id", "noise"])
    assert len(list(folder.iterdir())) <= before + 2


def test_any_flipped_byte_is_named_with_the_last_whole_group(tmp_path):
    table = table_of_types().select(["id", "zipf", "word", "noise"])
    path = written(tmp_path, table, group_rows=8192)
    raw = bytearray(path.read_bytes())
    pack = Steelpack.open(path)
    number = pack.pack.find("1/word")
    place = pack.pack.place(number) + pack.pack.size(number) // 2
    del pack
    for at in [place, *RNG.integers(0, len(raw), 20).tolist()]:
        raw[at] ^= 1 << int(RNG.integers(0, 8))
        path.write_bytes(raw)
        try:
            flipped = Steelpack.open(path)
            assert flipped.pack.damaged()
            assert_same(flipped.read(), table)  # a byte between sections that nobody reads
        except DataError as error:
            told = str(error)
            assert any(word in told for word in ("damaged", "no pack", "version", "encoding")), told
            if at == place:
                assert "row group 1" in told and "'1/word'" in told
                assert "row groups 0 to 0 are whole" in told
        raw[at] = path.read_bytes()[at]
        raw = bytearray(written(tmp_path, table, group_rows=8192).read_bytes())


def test_a_file_that_is_cut_short_tells_what_is_whole(tmp_path):
    path = written(tmp_path, table_of_types().select(["id", "word"]), group_rows=8192)
    raw = path.read_bytes()
    pack = Steelpack.open(path)
    end = pack.pack.place(pack.pack.find("end/1")) + 64
    path.write_bytes(raw[: end + 100])
    with pytest.raises(DataError, match=r"cut short; row groups 0 to 1 .* 16,384 rows"):
        Steelpack.open(path)
    path.write_bytes(raw[:30])
    with pytest.raises(DataError, match="cut short"):
        Steelpack.open(path)
    with pytest.raises(DataError, match="cannot read"):
        Steelpack.open(tmp_path / "none.steelpack")


def test_foreign_packs_and_versions_are_refused(tmp_path):
    path = tmp_path / "other.pack"
    write_pack(path, {"numbers": np.arange(3)})
    with pytest.raises(DataError, match="holds no table"):
        Steelpack.open(path)
    facts = np.array([9, 0, 0, 0, 8192, 0])
    write_pack(path, {"steelpack": facts})
    with pytest.raises(DataError, match="version 9"):
        Steelpack.open(path)


def test_bad_input_is_refused_and_the_old_file_stays(tmp_path, monkeypatch):
    path = written(tmp_path, pa.table({"a": [1, 2]}))
    before = path.read_bytes()
    good = pa.record_batch({"t": ["fine"]})
    raw = pa.array([b"fine", b"\xff\xfe"]).cast(pa.binary())
    bad = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.string(), 2, raw.buffers())], ["t"])
    with pytest.raises(DataError, match="column 't' holds a text that is not UTF-8 in row 3"):
        write_steelpack([good, bad], path)
    with pytest.raises(DataError, match="a batch has the columns a: int64"):
        write_steelpack([good, pa.record_batch({"a": [1]})], path)
    with pytest.raises(DataError, match="two columns are named 'a'"):
        write_steelpack([pa.RecordBatch.from_arrays([pa.array([1])] * 2, ["a", "a"])], path)
    with pytest.raises(DataError, match="no batches"):
        write_steelpack([], path)
    with pytest.raises(ConfigError, match="compress is 'brotli'"):
        write_steelpack([good], path, compress="brotli")
    with pytest.raises(ConfigError, match="multiple of 8192"):
        write_steelpack([good], path, group_rows=1000)

    def full(self, data):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("steelyard.data.pack.PackWriter._put", full)
    with pytest.raises(CapacityError, match="disk"):
        write_steelpack([good], path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["table.steelpack"]


def test_an_unknown_encoding_is_named(tmp_path):
    path = written(tmp_path, pa.table({"a": [1, 2, 3]}))
    kept = Pack.open(path).sections()
    kept["0/a"] = np.concatenate([[99], kept["0/a"][1:]]).astype(np.uint8)
    write_pack(path, kept)
    with pytest.raises(DataError, match=r"encoding of number 99"):
        Steelpack.open(path).read()


def test_rows_are_written_as_they_come(tmp_path):
    def batches():
        for start in range(0, 40 * 4096, 4096):
            yield pa.record_batch({"id": np.arange(start, start + 4096)})

    path = tmp_path / "streamed.steelpack"
    assert write_steelpack(batches(), path, group_rows=8192) == 40 * 4096
    pack = Steelpack.open(path)
    assert pack.groups == 20
    np.testing.assert_array_equal(pack.numpy()["id"], np.arange(40 * 4096))


def test_tables_are_scanned_and_written_as_steelpack(tmp_path):
    from steelyard.data.table import DataTable

    table = table_of_types(30_000).select(["id", "zipf", "word", "key", "price"])
    path = written(tmp_path, table, group_rows=8192)
    scanned = DataTable.scan(path)
    assert len(scanned.partitions) == 4
    assert [part.first_row for part in scanned.partitions] == [1, 8193, 16_385, 24_577]
    found, quarantine = scanned.collect()
    assert not quarantine.total
    assert_same(found, table)
    assert_same(scanned.select(["word"]).collect()[0], table.select(["word"]))
    out = tmp_path / "copy.steelpack"
    assert scanned.write(out)[0] == 30_000
    assert_same(Steelpack.open(out).read(), table)


def test_batches_may_be_smaller_than_row_groups(tmp_path):
    table = table_of_types(30_000)
    pack = Steelpack.open(written(tmp_path, table, group_rows=16_384))
    batches = list(pack.batches(batch_rows=8192))
    assert [len(batch) for batch in batches] == [8192, 8192, 8192, 5424]
    assert_same(pa.Table.from_batches(batches), table)
    assert len(list(pack.batches(["id"], groups=[1]))) == 1
