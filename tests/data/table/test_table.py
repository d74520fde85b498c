"""Tables in files: kinds by majority, rows set aside and counted, parts that follow the files."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cli.data.table import app
from steelyard.data.table import DataTable
from steelyard.data.table.kinds import as_kind, majority_kind
from steelyard.data.table.partitions import list_files, split_lines
from steelyard.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402
from pyarrow import parquet  # noqa: E402

LINES = 'id,day,price,note\n1,2026-01-02,3.5,"a, b"\n2,2026-01-03,,x\n3,2026-01-04,7,"two\nlines"\n'


def saved(folder, text=LINES, name="a.csv"):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_is_read_with_the_kinds_of_its_values(tmp_path):
    rows, quarantine = DataTable.scan(saved(tmp_path)).collect()
    assert [str(kind) for kind in rows.schema.types] == ["int64", "date32[day]", "double", "string"]
    assert rows["price"].to_pylist() == [3.5, None, 7.0]
    assert rows["note"].to_pylist() == ["a, b", "x", "two\nlines"]
    assert quarantine.total == 0


@pytest.mark.parametrize(
    "name", ["a.csv.gz", "a.tsv", "a.jsonl", "a.ndjson.gz", "a.parquet", "a.arrow"]
)
def test_every_format_holds_the_same_rows(tmp_path, name):
    plain, _ = DataTable.scan(saved(tmp_path)).collect()
    path = tmp_path / "other" / name
    path.parent.mkdir()
    lines = "\n".join(json.dumps(row, default=str) for row in plain.to_pylist())
    if name == "a.csv.gz":
        path.write_bytes(gzip.compress(LINES.encode()))
    elif name == "a.tsv":
        path.write_text(LINES.replace("a, b", "a; b").replace(",", "\t").replace("a; b", "a, b"))
    elif name == "a.jsonl":
        path.write_text(lines + "\n")
    elif name == "a.ndjson.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif name == "a.parquet":
        parquet.write_table(plain, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, plain.schema) as writer:
            writer.write(plain)
    rows, quarantine = DataTable.scan(path).collect()
    assert rows.to_pylist() == plain.to_pylist()
    assert quarantine.total == 0


def test_rows_that_do_not_fit_are_set_aside_by_file_row_and_field(tmp_path):
    lines = [f"{place},{place / 2}" for place in range(100)]
    lines[3], lines[7], lines[50], lines[99] = "3,much", "7", "5o,25", "99,1,2"
    table = DataTable.scan(saved(tmp_path, "id,price\n" + "\n".join(lines) + "\n"))
    rows, quarantine = table.collect()
    found = [(bad.row, bad.field, bad.value, bad.reason) for bad in quarantine.rows]
    assert sorted(found) == [
        (4, "price", "much", "no number"),
        (8, "", "7", "1 values, not 2"),
        (51, "id", "5o", "no whole number"),
        (100, "", "99,1,2", "3 values, not 2"),
    ]
    assert len(rows) + quarantine.total == 100
    assert {bad.file for bad in quarantine.rows} == {table.files[0].path}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_parts_of_a_file_hold_each_row_once(tmp_path_factory, seed, split):
    rng = np.random.default_rng(seed)
    pieces = ["a", "", '"x,y"', '"two\nlines"', '"say ""hi"""', "ä" * 9]
    drawn = [[str(place), pieces[rng.integers(len(pieces))]] for place in range(60)]
    path = saved(
        tmp_path_factory.mktemp("split"),
        "id,text\n" + "".join(",".join(row) + "\n" for row in drawn),
    )
    cuts = split_lines(path, quoted=True, split_bytes=split)
    raw = Path(path).read_bytes()
    ends = [*(first for first, _ in cuts[1:]), len(raw)]
    parts = [raw[first:end] for (first, _), end in zip(cuts, ends, strict=True)]
    starts = [line for _, line in cuts]
    found = []
    for part in parts:
        found.append(part.count(b'"') % 2)
    # No part begins or ends inside quotation marks, and its first line is the one that is said.
    assert not any(found)
    for part, line in zip(parts[1:], starts[1:], strict=True):
        assert int(part.split(b",")[0]) == line - 1


def test_rows_of_later_parts_have_their_number_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("steelyard.data.table.partitions._SPLIT_BYTES", 100)
    lines = [f"{place},{place}" for place in range(200)]
    lines[150], lines[160] = "150,bad", "160"
    path = saved(tmp_path, "id,price\n" + "\n".join(lines) + "\n")
    cuts = split_lines(path, quoted=True, split_bytes=100)
    monkeypatch.setattr("steelyard.data.table.looking.split_lines", lambda path, **how: cuts)
    table = DataTable.scan(path)
    assert len(table.partitions) > 5
    rows, quarantine = table.collect()
    assert sorted(bad.row for bad in quarantine.rows) == [151, 161]
    assert rows["id"].to_pylist() == [place for place in range(200) if place not in (150, 160)]


def test_a_column_that_some_files_lack_is_missing_there(tmp_path):
    saved(tmp_path, "a,b\n1,2\n", "one.csv")
    saved(tmp_path, "b,c\n3,4\n", "two.csv")
    rows, _ = DataTable.scan(tmp_path).collect()
    assert rows.to_pylist() == [{"a": 1, "b": 2, "c": None}, {"a": None, "b": 3, "c": 4}]


def test_a_file_that_cannot_be_read_is_named_and_left_out(tmp_path):
    saved(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    saved(tmp_path, "", "empty.csv")
    saved(tmp_path, "a,a\n1,2\n", "twice.csv")
    saved(tmp_path, "[1, 2]\n", "list.jsonl")
    table = DataTable.scan(tmp_path)
    assert len(table.files) == 1
    assert len(table.unreadable) == 4
    assert any("'a' twice" in why for why in table.unreadable.values())


def test_text_beside_typed_files_is_of_their_types_or_set_aside(tmp_path):
    typed = pa.table({"v": pa.array([1, 2], pa.int8()), "w": [0.5, 1.5], "x": ["a", "b"]})
    parquet.write_table(typed, tmp_path / "a.parquet")
    saved(tmp_path, "v,w,x\n3,much,7\n4,2,8\n300,2.5,9\n", "b.csv")
    table = DataTable.scan(tmp_path)
    assert table.schema == typed.schema
    assert any("b.csv: column 'x' looks like whole number" in line for line in table.drift)
    rows, quarantine = table.collect()
    assert rows.to_pylist()[2:] == [{"v": 4, "w": 2.0, "x": "8"}]
    told = [(bad.row, bad.field, bad.value, bad.reason) for bad in quarantine.rows]
    assert sorted(told) == [
        (1, "w", "much", "no number"),
        (3, "v", "300", "no int8 as elsewhere"),
    ]


def test_rows_of_bytes_that_are_no_text_are_set_aside_with_their_row(tmp_path):
    raw = b"id,name,note\n1,ok,x\n2,b\xff\xfed,y\n3,c,\xe9\n4\n5,\xc3\xa9,z\n"
    (tmp_path / "a.csv").write_bytes(raw)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(raw))
    for name in ("a.csv", "b.csv.gz"):
        rows, quarantine = DataTable.scan(tmp_path / name).collect()
        assert rows["id"].to_pylist() == [1, 5]
        assert rows["name"].to_pylist() == ["ok", "é"]
        told = sorted((bad.row, bad.field, bad.value, bad.reason) for bad in quarantine.rows)
        assert told == [
            (2, "name", "b\\xff\\xfed", "invalid UTF-8"),
            (3, "note", "\\xe9", "invalid UTF-8"),
            (4, "", "4", "1 values, not 3"),
        ]


@pytest.mark.parametrize("text", ["a,b\n", "note of a kind\n1,2\n"])
def test_a_header_alone_is_a_table_without_rows(tmp_path, text, capsys):
    path = saved(tmp_path, text, "a.csv")
    rows, quarantine = DataTable.scan(path).collect()
    assert (len(rows), quarantine.total) == (0, text.count("1,2"))
    app(["profile", path, "--no-keep", "--json"], result_action="return_value")
    assert json.loads(capsys.readouterr().out)["rows"] == 0
    saved(tmp_path, "a,b\n1,2\n", "b.csv")
    if "a,b" in text:
        assert DataTable.scan(tmp_path).collect()[0].to_pylist() == [{"a": 1, "b": 2}]


def test_a_type_that_differs_between_files_names_file_and_column(tmp_path):
    for name, values in (("a", [1, 2]), ("b", [3, 4]), ("c", ["x"])):
        parquet.write_table(pa.table({"v": values}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"column 'v' of .*c\.parquet is string"):
        DataTable.scan(tmp_path).collect()


def test_steps_choose_and_change_rows(tmp_path):
    table = DataTable.scan(saved(tmp_path)).select(["price", "id"])
    rows, _ = table.filter(pc.field("id") > 1).collect()
    assert rows.to_pylist() == [{"price": None, "id": 2}, {"price": 7.0, "id": 3}]
    with pytest.raises(ConfigError, match="no column 'x'"):
        table.select(["x"])
    with pytest.raises(ConfigError, match="before steps"):
        table.filter(pc.field("id") > 1).select(["id"])


def test_kinds_may_be_given_and_are_checked(tmp_path):
    path = saved(tmp_path)
    rows, _ = DataTable.scan(path, types={"id": "text"}).collect()
    assert rows["id"].to_pylist() == ["1", "2", "3"]
    with pytest.raises(ConfigError, match="no kind 'integer'"):
        DataTable.scan(path, types={"id": "integer"})
    with pytest.raises(ConfigError, match="no column 'ident'"):
        DataTable.scan(path, types={"ident": "text"})


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["1", "-2", "+3"], "whole number"),
        (["1", "2.5", "1e9", "nan"], "number"),
        (["true", "False"], "yes or no"),
        (["2026-01-01", "2026-12-31"], "date"),
        (["2026-01-01 10:00", "2026-01-01T10:00:05.25"], "time"),
        (["1"] * 9 + ["x"], "whole number"),
        (["1"] * 8 + ["x", "y"], "text"),
        (["", "  "], "text"),
        (["99999999999999999999"], "number"),
    ],
)
def test_a_kind_is_that_of_nine_of_ten_values(words, kind):
    assert majority_kind(pa.array(words)) == kind


def test_days_that_do_not_exist_do_not_fit():
    values, misfit = as_kind(pa.array(["2026-02-28", "2026-02-30", "", None]), "date")
    assert values.null_count == 3
    assert misfit.values == ["2026-02-30"]


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(DataError, match="no file at"):
        list_files([tmp_path / "none.csv"])
    saved(tmp_path, "x", "a.docx")
    with pytest.raises(DataError, match="no known format"):
        list_files([tmp_path / "a.docx"])
    with pytest.raises(DataError, match="no file can be read"):
        DataTable.scan(saved(tmp_path, "", "b.csv"))


def test_a_large_row_group_is_not_read_at_once(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"v": np.arange(300_000)}), path, row_group_size=300_000)
    from steelyard.data.table import Quarantine

    table = DataTable.scan(path)
    sizes = [len(batch) for batch in table.read(table.partitions[0], Quarantine())]
    assert sum(sizes) == 300_000
    assert max(sizes) <= 65_536
