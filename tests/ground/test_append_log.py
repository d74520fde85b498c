"""Records survive a torn end, a full disk and a second start; damage before the end is named."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.append_log import AppendLog, read_records
from steelyard.errors import CapacityError, DataError


def _kept(path: Path) -> list[bytes]:
    log = AppendLog(path)
    records = list(log.read())
    log.close()
    return records


@settings(max_examples=30, deadline=None)
@given(records=st.lists(st.binary(max_size=40), max_size=6), cut=st.integers(0, 400))
def test_a_torn_end_loses_only_what_was_not_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.bin"
    log, ends = AppendLog(path), [0]
    for record in records:
        log.append(record)
        ends.append(log.num_bytes)
    log.close()
    cut = min(cut, ends[-1])
    with path.open("r+b") as file:
        file.truncate(cut)
    whole = sum(end <= cut for end in ends) - 1
    assert _kept(path) == records[:whole]
    assert path.stat().st_size == ends[whole]
    assert [body for body, _ in read_records(path)] == records[:whole]


def test_what_finds_no_room_is_not_kept(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "log.bin")
    log.append(b"first")
    with pytest.raises(CapacityError, match=r"log\.bin"):
        log.append(b"second", most_bytes=log.num_bytes + 4)
    log.append(b"third", most_bytes=1 << 20)
    log.close()
    assert _kept(tmp_path / "log.bin") == [b"first", b"third"]


def test_damage_before_the_end_is_named_by_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "log.bin"
    log = AppendLog(path)
    log.append(b"first")
    end = log.num_bytes
    log.append(b"second")
    log.close()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"behind byte {end}"):
        list(read_records(path))
    assert path.read_bytes() == bytes(content)  # reading never writes


def test_a_cleared_log_begins_anew(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "log.bin")
    log.append(b"old")
    log.clear()
    log.append(b"new")
    log.close()
    assert _kept(tmp_path / "log.bin") == [b"new"]
