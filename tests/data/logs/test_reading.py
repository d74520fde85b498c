"""Logs as tables: every line is a row, whatever is wrong with it; tails follow rotation."""

import gzip
import os

import pytest

from steelyard.data.logs import (
    KNOWN_FORMATS,
    LogFormat,
    LogTable,
    LogTail,
    TemplateFold,
    guess_format,
)
from steelyard.data.logs.watching import NewLines
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
HEADER = "17/06/09 20:10:40 INFO a.B: "
LINES = [
    HEADER.encode() + b"read 1 of x",
    b"  at some.Place(File.java:3)",
    b"\tand more",
    b"no header here",
    HEADER.encode() + b"bad \xff byte",
    b"",
    HEADER.encode() + b"read 2 of y",
    HEADER.encode(),
]
PROBLEMS = ["", "continued", "continued", "no format", "invalid UTF-8", "no format", "", ""]


@pytest.fixture
def log(tmp_path):
    (tmp_path / "a.log").write_bytes(b"\n".join(LINES) + b"\n")
    return tmp_path / "a.log"


def rows_of(table):
    return [row for _, batch in table.batches() for row in batch.to_pylist()]


def test_no_line_is_dropped(log):
    table = LogTable.scan(log, format="Spark")
    rows = rows_of(table)
    assert [row["problem"] for row in rows] == PROBLEMS
    assert [row["line"] for row in rows] == list(range(1, 9))
    assert rows[0]["Content"] == "read 1 of x"
    assert rows[0]["Component"] == "a.B"
    assert rows[3]["Content"] == "no header here"
    assert rows[4]["Content"] == "bad \\xff byte"
    found = table.fold(TemplateFold()).results["templates"]
    assert found.problems == {"continued": 2, "no format": 2, "invalid UTF-8": 1}
    assert found.templates.state.lines == 4
    assert found.templates.texts == ("", "bad \\xff byte", "read <*> of x", "read <*> of y")


def test_compressed_logs_are_read_and_damaged_ones_named(log, tmp_path):
    packed = gzip.compress(log.read_bytes())
    (tmp_path / "b.log.gz").write_bytes(packed)
    assert rows_of(LogTable.scan(tmp_path / "b.log.gz", format="Spark")) == rows_of(
        LogTable.scan(log, format="Spark")
    )
    (tmp_path / "c.log.gz").write_bytes(b"no gzip")
    table = LogTable.scan(tmp_path / "*.log*", format="Spark")
    assert len(table.files) == 2
    assert "c.log.gz" in next(iter(table.unreadable.values()))
    with pytest.raises(DataError, match="no log can be read"):
        LogTable.scan(tmp_path / "c.log.gz")
    with pytest.raises(DataError, match="no log at"):
        LogTable.scan(tmp_path / "nothing")


def test_workers_and_parts_do_not_change_templates(tmp_path, monkeypatch):
    import steelyard.data.logs.reading as reading
    from steelyard.data.table.partitions import split_lines

    for name in range(3):
        lines = [f"{HEADER}job {place} of user{place % 5}z is {name}" for place in range(300)]
        (tmp_path / f"{name}.log").write_text("\n".join(lines))
    whole = LogTable.scan(tmp_path, format="Spark").fold(TemplateFold())
    monkeypatch.setattr(
        reading,
        "split_lines",
        lambda path, quoted: split_lines(path, quoted=quoted, split_bytes=999),
    )
    table = LogTable.scan(tmp_path, format="Spark")
    assert len(table.partitions) > 20
    cut = table.fold(TemplateFold())
    for folded in (cut, table.fold(TemplateFold(), workers=2)):
        ours, theirs = (item.results["templates"].templates for item in (folded, whole))
        assert folded.rows == 900
        assert ours.texts == theirs.texts
        assert ours.counts.tolist() == theirs.counts.tolist()
    rows = rows_of(table)
    assert [row["line"] for row in rows] == [*range(1, 301)] * 3


def test_templates_of_a_column_of_any_table(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,up 3 s\n2,up 4 s\n3,down\n")
    found = DataTable.scan(tmp_path / "a.csv").fold(TemplateFold(column="text"))
    assert found.results["templates of text"].templates.texts == ("down", "up <*> s")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("<Date> <Time>", "does not end in <Content>"),
        ("<Date> <Date> <Content>", "twice"),
        ("[<Date> <Content>", "no regular expression"),
        ("<1x> <Content>", "1x"),
        ("Sparc", "does not end in"),
    ],
)
def test_bad_formats_are_refused(pattern, message):
    with pytest.raises(ConfigError, match=message):
        LogFormat(pattern)


def test_long_lines_without_a_header_are_judged_at_once():
    line = "a b: [" * 2000
    for name in KNOWN_FORMATS:
        LogFormat.of(name).regex.match(line)
    assert guess_format([line] * 20) in ("", *KNOWN_FORMATS)


def test_the_format_is_found(log):
    lines = ["[Sun Dec 04 04:47:44 2005] [notice] ok", "[Sun Dec 04 04:47:45 2005] [error] no"]
    assert guess_format(lines) == "Apache"
    assert guess_format(["hello world", "second"]) == ""
    assert LogTable.scan(log).format.pattern == ""


def test_a_tail_follows_renaming_and_cutting(tmp_path):
    path = tmp_path / "a.log"
    tail = LogTail(path)
    assert tail.poll() == []
    path.write_bytes(b"one\ntwo")
    assert tail.poll() == [b"one"]
    with path.open("ab") as file:
        file.write(b" more\nlast")
    path.rename(tmp_path / "a.log.1")
    assert tail.poll() == [b"two more"]
    with (tmp_path / "a.log.1").open("ab") as file:
        file.write(b" words\nend")
    path.write_bytes(b"new\n")
    assert tail.poll() == [b"last words", b"end", b"new"]
    os.truncate(path, 0)
    assert tail.poll() == []
    with path.open("ab") as file:
        file.write(b"x\n")
    assert tail.poll() == [b"x"]
    assert tail.rotations == 2
    tail.close()


def test_new_lines_are_those_of_no_known_template(log):
    templates = (
        LogTable.scan(log, format="Spark").fold(TemplateFold()).results["templates"].templates
    )
    judge = NewLines(templates, "Spark")
    lines = [f"{HEADER}read 9 of x".encode(), f"{HEADER}write 9".encode(), b"  at more"]
    assert judge.unknown(lines) == [f"{HEADER}write 9"]
    assert (judge.lines, judge.unknown_lines) == (3, 1)
