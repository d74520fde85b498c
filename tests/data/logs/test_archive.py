"""Archives: put together to the last byte, searched in part, damage named."""

import gzip
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.logs import LogArchive, compress
from steelyard.data.logs.columns import decode_column, encode_column
from steelyard.data.pack import write_pack
from steelyard.errors import DataError

pytest.importorskip("pyarrow")
VALUES = st.one_of(
    st.lists(st.text("ab0123-: /", max_size=8), min_size=1, max_size=40),
    st.lists(st.integers(-(10**17), 10**17).map(str), min_size=1, max_size=40),
    st.lists(st.integers(0, 999).map("{:03d}".format), min_size=1, max_size=40),
    st.lists(st.integers(0, 300).map("10.0.{0}.1:{0}".format), min_size=1, max_size=40),
)


@given(VALUES)
@settings(max_examples=120, deadline=None)
def test_columns_come_back(values):
    assert decode_column(encode_column(values, 1), len(values)) == values


@pytest.mark.parametrize(
    "values",
    [
        ["-0", "1"],
        ["07", "123"],
        ["0" * 18, "9" * 18],
        ["9" * 19, "1"],
        [str(2**63 - 1), str(-(2**63)), "0"],
        [""],
        ["x"],
    ],
)
def test_columns_of_odd_numbers_come_back(values):
    assert decode_column(encode_column(values), len(values)) == values


def test_numbers_take_few_bytes():
    values = [str(10**9 + place) for place in range(5000)]
    assert len(encode_column(values)) < 100


def some_log(lines=3000):
    rng = random.Random(0)
    made = []
    for place in range(lines):
        stamp = f"17/06/09 20:{place // 60 % 60:02d}:{place % 60:02d}"
        text = rng.choice(
            [f"read {rng.random()} of f{place % 7}", f"login of u{rng.randrange(40)}"]
        )
        made.append(f"{stamp} INFO a.B: {text}")
    return made


ODD = [b"", b"\xff\xfe broken", b"  at x.y(Z)", b"17/06/09 20:00:00 INFO a.B:  two  blanks ", b"\r"]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_log_comes_back_to_the_last_byte(tmp_path, end):
    lines = [line.encode() for line in some_log(400)]
    lines[50:50] = [*ODD, lines[3] + b"\r"]
    raw = b"\n".join(lines) + end
    (tmp_path / "a.log").write_bytes(raw)
    done = compress(tmp_path / "a.log", tmp_path / "a.pack", format="Spark", level=3)
    assert done.lines == len(lines)
    assert 0 < done.raw_lines < 10
    LogArchive(tmp_path / "a.pack").unpack(tmp_path / "b.log")
    assert (tmp_path / "b.log").read_bytes() == raw


@pytest.mark.parametrize("raw", [b"", b"\n", b"\n\n", b"x"])
def test_tiny_logs_come_back(tmp_path, raw):
    (tmp_path / "a.log").write_bytes(raw)
    compress(tmp_path / "a.log", tmp_path / "a.pack")
    LogArchive(tmp_path / "a.pack").unpack(tmp_path / "b.log")
    assert (tmp_path / "b.log").read_bytes() == raw


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    lines = some_log()
    with gzip.open(folder / "a.log.gz", "wt") as file:
        file.write("\n".join(lines))
    compress(folder / "a.log.gz", folder / "a.pack", level=3)
    return folder / "a.pack", lines


def test_grep_returns_what_a_search_of_the_text_does(archive):
    path, lines = archive
    for pattern in ("u7$", "read 0", "20:0[1-3]"):
        found = list(LogArchive(path).grep(pattern))
        assert found == [
            (number, line) for number, line in enumerate(lines, 1) if re.search(pattern, line)
        ]


def test_grep_on_a_template_does_not_read_the_others(archive):
    path, lines = archive
    whole, part = LogArchive(path), LogArchive(path)
    assert len(list(whole.grep())) == len(lines)
    found = [text for _, text in part.grep(template="login of")]
    assert found == [line for line in lines if "login of" in line]
    assert part.read_bytes < 0.5 * whole.read_bytes
    with pytest.raises(DataError, match="regular expression"):
        next(part.grep("("))


def test_damage_is_named(archive, tmp_path):
    raw = bytearray(archive[0].read_bytes())
    rng = np.random.default_rng(0)
    for place in rng.integers(64, len(raw) - 100, 20).tolist():
        bad = bytearray(raw)
        bad[place] ^= 1
        (tmp_path / "bad.pack").write_bytes(bad)
        try:
            lines = [text for _, text in LogArchive(tmp_path / "bad.pack").grep()]
        except DataError:
            continue
        # Between sections there are bytes that mean nothing.
        assert lines == archive[1]
    write_pack(tmp_path / "other.pack", {"x": np.zeros(3)})
    with pytest.raises(DataError, match="no archive of a log"):
        LogArchive(tmp_path / "other.pack")
