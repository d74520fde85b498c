"""Tables written, cut by key, set side by side; conditions that leave row groups unread."""

import math
import os
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402
from pyarrow import parquet  # noqa: E402

ENDS = (".csv", ".tsv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet", ".arrow")


def rows_of(count):
    return pa.table(
        {
            "id": np.arange(count),
            "price": np.arange(count) / 8 + 0.125,
            "day": pa.array([date(2026, 1, 1 + place % 28) for place in range(count)]),
            "at": pa.array([datetime(2026, 1, 1, place % 24, 5) for place in range(count)]),
            "note": [None if place % 7 == 0 else f'a "{place}", b' for place in range(count)],
            "good": [place % 2 == 0 for place in range(count)],
        }
    )


@pytest.mark.parametrize("end", ENDS)
def test_what_is_written_is_read_again(tmp_path, end):
    whole = rows_of(700)
    path = tmp_path / f"a{end}"
    rows, quarantine = DataTable.scan(whole).write(path)
    assert (rows, quarantine.total) == (700, 0)
    again, _ = DataTable.scan(path).collect()
    assert again.to_pylist() == whole.to_pylist()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(-(2**40), 2**40), st.none() | st.floats(width=64)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from((".csv", ".jsonl", ".parquet")),
)
def test_numbers_survive_every_format(tmp_path_factory, rows, end):
    # A column of text files without one value has no kind of its own.
    whole = pa.table({"a": [1, *(row[0] for row in rows)], "b": [0.5, *(row[1] for row in rows)]})
    path = tmp_path_factory.mktemp("numbers") / f"a{end}"
    DataTable.scan(whole).write(path)
    again, quarantine = DataTable.scan(
        path, types={} if end == ".parquet" else {"b": "number"}
    ).collect()
    assert quarantine.total == 0

    def plain(values):
        # Text has no sign for a number that is none, and JSON none for an infinite one.
        is_text = end != ".parquet"
        hidden = (lambda item: not math.isfinite(item)) if end == ".jsonl" else math.isnan
        return [
            None if item is None or (is_text and hidden(item)) else repr(item) for item in values
        ]

    assert again["a"].to_pylist() == whole["a"].to_pylist()
    assert plain(again["b"].to_pylist()) == plain(whole["b"].to_pylist())


def test_a_folder_holds_a_file_for_each_part_and_replaces_tables_alone(tmp_path):
    table = DataTable.scan(rows_of(1000)).repartition(20_000)
    assert len(table.partitions) > 1
    out = tmp_path / "out"
    assert table.write(out, parts=".parquet")[0] == 1000
    assert len(list(out.iterdir())) == len(table.partitions)
    DataTable.scan(rows_of(10)).write(out, parts=".csv")
    assert [path.name for path in out.iterdir()] == ["part-00000.csv"]
    (out / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="more than tables"):
        table.write(out, parts=".parquet")
    with pytest.raises(ConfigError, match="no known format"):
        table.write(tmp_path / "a.xlsx")
    assert not list(tmp_path.glob(".out*"))


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.parquet"
    DataTable.scan(rows_of(5)).write(path)
    before = path.read_bytes()

    def breaks(batch):
        raise DataError("broken")

    with pytest.raises(DataError):
        DataTable.scan(rows_of(9)).map_batches(breaks).write(path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the file system")
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.csv"
    DataTable.scan(rows_of(5)).write(path)
    before = path.read_bytes()
    program = (
        "import resource, signal, sys, pyarrow as pa\n"
        "from pathlib import Path\n"
        "from steelyard.data.table import DataTable\n"
        "from steelyard.errors import CapacityError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "table = DataTable.scan(pa.table({'a': list(range(200_000))}))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    table.write(Path(sys.argv[1]))\n"
        "except CapacityError as error:\n"
        "    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    assert "disk full" in told.stdout
    assert path.read_bytes() == before


def test_a_split_is_the_same_whatever_the_files(tmp_path):
    whole = rows_of(3000)
    shares = {"train": 0.7, "test": 0.3}
    one = DataTable.scan(whole).split(shares, by="id")
    for place in range(3):
        part = whole.slice(place * 1000, 1000)
        parquet.write_table(part, tmp_path / f"{2 - place}.parquet")
    two = DataTable.scan(tmp_path).split(shares, by="id")
    kept = [
        [set(table.collect()[0]["id"].to_pylist()) for table in cut.values()] for cut in (one, two)
    ]
    assert kept[0] == kept[1]
    train, test = kept[0]
    assert not train & test
    assert len(train) + len(test) == 3000
    assert len(train) / 3000 == pytest.approx(0.7, abs=0.04)
    other = DataTable.scan(whole).split(shares, by="id", seed=1)["train"].collect()[0]
    assert set(other["id"].to_pylist()) != train


def test_rows_of_one_key_stay_together():
    whole = pa.table({"user": [f"u{place % 50}" for place in range(1000)], "v": range(1000)})
    cut = DataTable.scan(whole).split({"a": 0.5, "b": 0.5}, by=["user"])
    users = [set(table.collect()[0]["user"].to_pylist()) for table in cut.values()]
    assert not users[0] & users[1]
    assert len(users[0] | users[1]) == 50


@pytest.mark.parametrize(
    ("shares", "key", "told"),
    [
        ({"a": 0.7, "b": 0.4}, "id", "at most 1"),
        ({"a": -0.1}, "id", "0 or more"),
        ({}, "id", "0 or more"),
        ({"a": 0.5}, "x", "no column 'x'"),
        ({"a": 0.5}, [], "needs a key"),
    ],
)
def test_a_split_that_cannot_be_is_refused(shares, key, told):
    with pytest.raises(ConfigError, match=told):
        DataTable.scan(rows_of(5)).split(shares, by=key)


def test_tables_stand_side_by_side_row_by_row(tmp_path):
    parquet.write_table(rows_of(5000), tmp_path / "a.parquet", row_group_size=700)
    left = DataTable.scan(tmp_path / "a.parquet").select(["id", "note"]).repartition(1)
    right = DataTable.scan(pa.table({"twice": np.arange(5000) * 2})).repartition(9000)
    both = left.zip(right)
    assert len(both.partitions) == 8
    rows, _ = both.collect()
    assert rows.schema.names == ["id", "note", "twice"]
    assert (rows["twice"].to_numpy() == 2 * rows["id"].to_numpy()).all()
    kept, _ = both.filter(pc.field("twice") > 9000).collect()
    assert kept["id"].to_pylist() == list(range(4501, 5000))


def test_tables_that_do_not_fit_side_by_side_are_refused(tmp_path):
    table = DataTable.scan(pa.table({"a": [1, 2]}))
    with pytest.raises(ConfigError, match="in both"):
        table.zip(table)
    with pytest.raises(ConfigError, match="2 and 3 rows"):
        table.zip(DataTable.scan(pa.table({"b": [1, 2, 3]})))
    table.write(tmp_path / "b.csv")
    with pytest.raises(ConfigError, match="known before they are read"):
        DataTable.scan(pa.table({"b": [1, 2]})).zip(DataTable.scan(tmp_path / "b.csv"))


class TestRowGroups:
    """Row groups are left out only where no row can fit."""

    @pytest.fixture
    def path(self, tmp_path):
        rng = np.random.default_rng(0)
        count = 4000
        values = np.arange(count) / 4
        values[[5, 1500, 3999]] = np.nan
        rows = pa.table(
            {
                "id": np.arange(count),
                "gap": pa.array(
                    [None if place % 500 == 3 else place for place in range(count)], pa.int64()
                ),
                "x": values,
                "name": [f"{'long ' * 12}{place:05d}" for place in range(count)],
                "mixed": rng.integers(0, 100, count),
            }
        )
        parquet.write_table(rows, tmp_path / "a.parquet", row_group_size=500)
        return tmp_path / "a.parquet"

    @pytest.mark.parametrize(
        ("condition", "skipped"),
        [
            (pc.field("id") >= 3600, 7),
            ((pc.field("id") < 10) | (pc.field("x") > 990), 6),
            (pc.field("gap").is_null(), 0),
            (pc.field("gap") > 3990, 0),
            (~(pc.field("id") < 3600), 7),
            (~(pc.field("x") > -1), 0),
            (pc.field("x") != 3.0, 0),
            (pc.field("x").is_nan(), 0),
            (pc.field("name") > "long " * 12 + "03990", 0),
            (pc.field("mixed") == 50, 0),
            (pc.field("mixed") > 1000, 8),
            (pc.field("id").isin([7, 3999]), 6),
        ],
    )
    def test_the_rows_are_those_of_a_whole_reading(self, path, condition, skipped):
        table = DataTable.scan(path)
        few = table.filter(condition)
        wanted = parquet.read_table(path).filter(condition)
        assert repr(few.collect()[0].to_pylist()) == repr(wanted.to_pylist())
        assert few.skipped_row_groups == skipped

    def test_nothing_is_left_out_without_statistics(self, path, tmp_path):
        bare = tmp_path / "bare.parquet"
        parquet.write_table(
            parquet.read_table(path), bare, row_group_size=500, write_statistics=False
        )
        few = DataTable.scan(bare).filter(pc.field("id") >= 3600)
        assert few.skipped_row_groups == 0
        assert len(few.collect()[0]) == len(
            DataTable.scan(path).filter(pc.field("id") >= 3600).collect()[0]
        )

    def test_what_a_step_makes_of_a_column_is_not_in_statistics(self, path):
        def moved(batch):
            return batch.set_column(0, "id", pc.add(batch["id"], 10_000))

        table = DataTable.scan(path).map_batches(moved)
        few = table.filter(pc.field("id") >= 13_900)
        assert few.skipped_row_groups == 0
        assert len(few.collect()[0]) == 100

    def test_conditions_add_up(self, path):
        table = DataTable.scan(path).filter(pc.field("id") > 900).filter(pc.field("id") < 1100)
        assert table.skipped_row_groups == 6
        assert len(table.collect()[0]) == 199
        with pytest.raises(ConfigError, match="before rows are chosen"):
            table.repartition(10)


def test_frames_are_tables(tmp_path):
    import polars

    frame = polars.DataFrame({"a": [1, 2, None], "s": ["x", None, "z"]})
    rows, _ = DataTable.scan(frame).collect()
    assert [str(kind) for kind in rows.schema.types] == ["int64", "string"]
    assert rows.to_pylist() == frame.to_dicts()
    batch = pa.RecordBatch.from_pylist([{"a": 1}])
    assert len(DataTable.scan(batch).collect()[0]) == 1
    with pytest.raises(ConfigError, match="no path and no frame"):
        DataTable.scan(3)
    with pytest.raises(ConfigError, match="scanned alone"):
        DataTable.scan(frame, Path("a.csv"))


def test_drift_between_files_names_file_and_column(tmp_path):
    lines = "\n".join(f"{place},{place / 4},x" for place in range(50))
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").write_text(f"id,price,note\n{lines}\n")
    (tmp_path / "lost.csv").write_text("id,note\n1,x\n")
    (tmp_path / "more.csv").write_text(f"id,price,note,extra\n{lines.replace(',x', ',x,1')}\n")
    (tmp_path / "other.csv").write_text("id,price,note\n" + "1,cheap,x\n" * 20)
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "p.parquet")
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "q.parquet")
    parquet.write_table(pa.table({"id": ["one"]}), tmp_path / "r.parquet")
    drift = DataTable.scan(tmp_path).drift
    assert f"{tmp_path}/lost.csv lacks the column 'price'" in drift
    assert f"{tmp_path}/more.csv has a column 'extra' that others lack" in drift
    assert f"{tmp_path}/other.csv: column 'price' looks like text, elsewhere number" in drift
    assert f"{tmp_path}/r.parquet: column 'id' is string, elsewhere int64" in drift
