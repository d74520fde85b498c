"""Clean copies whose counts add up, and SQL that can read its tables alone."""

import csv
import json
from pathlib import Path

import pytest

from steelyard.cli.main import main
from steelyard.data.table import DataTable
from steelyard.data.table.cleaning import clean, quarantine_path
from steelyard.data.table.sql import query, view_name
from steelyard.errors import CapacityError, ConfigError, DataError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

LINES = [
    "id,shop,price",
    "1, north ,1.5",
    "2,south,much",
    "3,unknown,2.5",
    "4,north",
    "5,n/a,3.5",
    "1,north,1.5",
    *(f"{place},west,{place}.5" for place in range(6, 60)),
]


@pytest.fixture
def sales(tmp_path):
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.mark.parametrize("end", [".parquet", ".csv", ".jsonl"])
def test_rows_written_left_out_and_set_aside_are_all_rows(sales, tmp_path, end):
    out = tmp_path / f"good{end}"
    found = clean(DataTable.scan(sales), out, drop_duplicates=True, missing=["unknown"])
    assert (found.read, found.quarantine.total) == (60, 2)
    assert found.written + found.duplicates + found.quarantine.total == found.read
    # A blank around "north" is gone before rows are compared.
    assert (found.duplicates, found.trimmed) == (1, 1)
    # The reader takes "NA" and its kin for missing already; "n/a" is none of them.
    assert found.emptied == 1
    rows, quarantine = DataTable.scan(out).collect()
    assert (len(rows), quarantine.total) == (found.written, 0)
    assert rows["shop"].to_pylist()[:3] == ["north", None, "n/a"]
    with quarantine_path(out).open() as file:
        bad = list(csv.DictReader(file))
    assert [(row["row"], row["field"], row["value"]) for row in bad] == [
        ("4", "", "4,north"),
        ("2", "price", "much"),
    ]


def test_duplicates_stay_unless_it_is_asked(sales, tmp_path):
    found = clean(DataTable.scan(sales), tmp_path / "good.csv.gz")
    assert (found.written, found.duplicates) == (58, 0)
    assert quarantine_path(tmp_path / "good.csv.gz").name == "good.quarantine.csv"


def test_every_row_set_aside_is_written_not_the_first_thousand(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{place},{'x' if place % 20 == 0 else place}" for place in range(40_000)]
    path.write_text("a,b\n" + "\n".join(rows) + "\n")
    found = clean(DataTable.scan(path), tmp_path / "good.parquet")
    assert (found.written, found.quarantine.total) == (38_000, 2000)
    assert len(quarantine_path(tmp_path / "good.parquet").read_text().splitlines()) == 2001


def test_a_copy_that_fails_leaves_the_old_ones(sales, tmp_path, monkeypatch):
    out = tmp_path / "good.parquet"
    clean(DataTable.scan(sales), out)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("steelyard.data.table.cleaning._tidied", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clean(DataTable.scan(sales), out)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def answers(sql, tables, **how):
    with query(sql, tables, **how) as answer:
        rows = [row for batch in answer for row in batch.to_pylist()]
        return rows, answer.set_aside


def test_sql_answers_from_good_rows_and_says_how_many_are_not(sales):
    table = DataTable.scan(sales)
    rows, set_aside = answers(
        "select shop, count(*) as n from sales group by 1 order by 2", {"sales": table}
    )
    assert rows[-1] == {"shop": "west", "n": 54}
    assert set_aside == 2
    # A table may be read twice in one statement.
    rows, _ = answers("select count(*) as n from sales a join sales b using (id)", {"sales": table})
    assert rows == [{"n": 60}]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('{path}')",
        "select * from '{path}'",
        "select * from read_text('/etc/passwd')",
        "select * from glob('/*')",
        "select * from parquet_scan('{path}')",
        "copy (select 1) to '{path}.out'",
        "copy sales from '{path}'",
        "attach '{path}.db'",
        "export database '{path}.out'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "select 1; copy (select 1) to '{path}.out'",
        "pragma enable_external_access",
        "create table t as select 1",
        "select * from pyarrow_table",
        "",
        "selec 1",
    ],
)
def test_sql_reads_no_other_file_and_changes_nothing(sales, tmp_path, sql):
    pyarrow_table = pa.table({"a": [1]})
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ConfigError, DataError)):
        answers(sql.format(path=sales), {"sales": DataTable.scan(sales)})
    assert sorted(tmp_path.iterdir()) == before
    assert len(pyarrow_table) == 1


def test_sql_keeps_to_its_memory_and_time(sales):
    many = "select count(distinct a.range || 'x' || b.range) from range(3000) a, range(3000) b"
    with pytest.raises(CapacityError, match="memory"):
        answers(many, {}, memory_bytes=20e6)
    with pytest.raises(CapacityError, match="longer"):
        answers("select count(*) from range(1000000000) a, range(1000000) b", {}, timeout_s=0.2)


def test_a_table_that_breaks_while_sql_reads_it_is_told_of(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    table = DataTable.scan(path)
    path.unlink()
    with pytest.raises(DataError, match="cannot"):
        answers("select * from a", {"a": table})


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("data/sales.csv", "sales"),
        ("data/sales/*.csv", "sales"),
        ("data/2026-05.csv.gz", "_2026_05"),
        ("s3://lake/big sales.parquet?region=x", "big_sales"),
        ("*.csv", "data"),
        ("data/sales/", "sales"),
    ],
)
def test_a_table_is_named_as_its_file_or_folder(source, name):
    assert view_name(source) == name


def said(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["data", "table", *words])
    return stopped.value.code, capsys.readouterr()


def test_the_verb_sql_prints_and_writes(sales, tmp_path, capsys):
    words = ["sql", "select shop, sum(price) as total from s group by shop", f"s={sales}"]
    code, printed = said(words, capsys)
    assert code == 0
    assert "west" in printed.out
    assert "2 rows of the files are set aside" in printed.out
    code, printed = said(
        ["sql", "select * from sales", str(sales), "--rows", "3", "--json"], capsys
    )
    found = json.loads(printed.out)
    assert (len(found["rows"]), found["is_cut"]) == (3, True)
    out = tmp_path / "out.parquet"
    assert said(["sql", "select * from sales", str(sales), "--out", str(out)], capsys)[0] == 0
    assert len(DataTable.scan(out).collect()[0]) == 58
    types = ["--types", "price=text", "--json"]
    found = json.loads(
        said(["sql", "select count(*) n from sales", str(sales), *types], capsys)[1].out
    )
    assert found["rows"] == [{"n": 59}]


def test_the_verb_clean_prints_counts(sales, tmp_path, capsys):
    out = tmp_path / "good.parquet"
    code, printed = said(
        ["clean", str(sales), "--out", str(out), "--missing", "unknown, -"], capsys
    )
    assert code == 0
    assert "rows read" in printed.out
    assert "no number" in printed.out
    code, printed = said(["clean", str(sales), "--out", str(out), "--json"], capsys)
    found = json.loads(printed.out)
    assert found["written"] + found["set_aside"] + found["duplicates"] == found["read"] == 60
    assert Path(found["quarantine"]).is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sql", "select 1", "a={sales}", "a={sales}"], "two tables are named 'a'"),
        (["sql", "select 1", "{sales}", "--rows", "0"], "--rows"),
        (["sql", "select x from sales", "{sales}"], "x"),
        (["sql", "select 1", "{sales}", "--types", "x=text"], "--types names 'x'"),
        (["clean", "{sales}", "--out", "a.xlsx"], "no known format"),
        (["clean", "--out", "a.csv"], "needs files"),
    ],
)
def test_the_verbs_refuse_what_cannot_be(sales, capsys, words, told):
    code, printed = said([word.replace("{sales}", str(sales)) for word in words], capsys)
    assert code == 2
    assert told in printed.err
