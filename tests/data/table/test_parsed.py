"""Text that is parsed once: later passes find the same rows and the same quarantine."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from steelyard.data.table import DataTable, parsed_once  # noqa: E402
from steelyard.data.table.quarantine import Quarantine  # noqa: E402
from steelyard.data.table.reading import ReadLimits  # noqa: E402
from steelyard.data.table.row_folds import RowCountFold, RowHashFold  # noqa: E402

KINDS = {"id": "whole number", "price": "number", "day": "date", "name": "text"}
CELLS = {
    "id": st.sampled_from(["1", "-7", "", "x", " 12 ", "1.5"]),
    "price": st.sampled_from(["2.5", "NA", "broken", "1e3", "nan", "7"]),
    "day": st.sampled_from(["2025-01-31", "2025-02-30", "", "soon"]),
    "name": st.sampled_from(["a", "", "long text", "x y"]),
}
LINES = st.lists(
    st.one_of(st.tuples(*CELLS.values()).map(",".join), st.just("too,few"), st.just("1,2,3,4,5")),
    min_size=1,
    max_size=30,
)


def read(table):
    """Return rows, and all that was set aside; the reader is ahead by a block or not."""
    seen = []
    quarantine = Quarantine(sink=seen.append)
    batches = [batch for part in table.partitions for batch in table.read(part, quarantine)]
    return pa.Table.from_batches(batches, table.schema), sorted(seen), quarantine.counts


def assert_equal(found, expected):
    assert found[1:] == expected[1:]
    # As text: a missing number and one that is not a number are told apart, and equal themselves.
    assert str(found[0].to_pylist()) == str(expected[0].to_pylist())


@settings(max_examples=40, deadline=None)
@given(LINES, st.sampled_from([64, 200, 1 << 20]))
def test_later_passes_find_what_reading_again_finds(tmp_path_factory, lines, block):
    folder = tmp_path_factory.mktemp("parsed")
    path, kept = folder / "a.csv", folder / "kept"
    path.write_text(",".join(KINDS) + "\n" + "\n".join(lines) + "\n")
    kept.mkdir()
    table = DataTable.scan(path, types=KINDS).with_limits(ReadLimits(block_bytes=block))
    once = parsed_once(table, kept)
    # The first pass reads few columns, as one that learns does; all others find them, too.
    assert_equal(read(once.select(["price"])), read(table.select(["price"])))
    assert len(list(kept.iterdir())) == 1
    path_bytes = path.read_bytes()
    numbers = once.with_row_numbers(), table.with_row_numbers()
    for mine, other in ((once, table), numbers, (once.select(["day", "id"]), None)):
        assert_equal(read(mine), read(other or table.select(["day", "id"])))
    small = once.with_limits(ReadLimits(block_bytes=16))
    assert_equal(read(small), read(table))
    assert path.read_bytes() == path_bytes


def test_json_lines_and_compressed_text_are_kept_too(tmp_path):
    path, kept = tmp_path / "a.jsonl", tmp_path / "kept"
    path.write_text('{"a": 1, "b": "x"}\n[1]\n{"a": "y"}\n{"b": null}\n{"a": 3}\n' * 30)
    kept.mkdir()
    table = DataTable.scan(path, types={"a": "whole number"})
    once = parsed_once(table, kept)
    assert_equal(read(once), read(table))
    assert_equal(read(once), read(table))


def written(folder, rows=4000):
    for name in ("a", "b"):
        lines = [f"{row},{row / 8 if row % 50 else 'broken'}" for row in range(rows)]
        (folder / f"{name}.csv").write_text("id,price\n" + "\n".join(lines) + "\n")
    return DataTable.scan(folder, types={"price": "number"})


def test_workers_share_what_one_of_them_parsed(tmp_path):
    (tmp_path / "data").mkdir()
    table, kept = written(tmp_path / "data"), tmp_path / "kept"
    kept.mkdir()
    once, folds = parsed_once(table, kept), (RowCountFold(), RowHashFold())
    expected = table.fold(*folds)
    for workers in (1, 2):
        found = once.fold(*folds, workers=workers)
        assert str(found.results) == str(expected.results)
        assert found.quarantine.counts == expected.quarantine.counts
    # The second pass read nothing of the files.
    assert found.quarantine.reads.num_bytes == 0 < expected.quarantine.reads.num_bytes
    assert len(list(kept.iterdir())) == 2


def test_a_part_is_parsed_again_where_it_changed_or_was_not_read_to_its_end(tmp_path):
    (tmp_path / "data").mkdir()
    table, kept = written(tmp_path / "data"), tmp_path / "kept"
    kept.mkdir()
    once = parsed_once(table.with_limits(ReadLimits(block_bytes=4096)), kept)
    batches = once.read(once.partitions[0], Quarantine())
    next(batches)
    batches.close()
    assert not list(kept.iterdir())
    before, _, _ = read(once)
    path = Path(table.files[0].path)
    path.write_text(path.read_text().replace("7,0.875", "7,9.875"))
    os.utime(path, ns=(1, 1))
    after, _, _ = read(once)
    assert before["price"][6].as_py() == 0.875 and after["price"][6].as_py() == 9.875


def test_a_full_disk_keeps_nothing_and_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    table, kept = written(tmp_path / "data"), tmp_path / "kept"
    kept.mkdir()
    once = parsed_once(table, kept)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", full)
    assert_equal(read(once), read(table))
    assert not list(kept.iterdir())
    monkeypatch.undo()
    assert_equal(read(parsed_once(table, tmp_path / "none")), read(table))
