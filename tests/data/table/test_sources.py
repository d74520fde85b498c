"""Tables behind addresses: ranges over http, fsspec and S3, listings that stay where they are."""

import http.server
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from steelyard.data.formats import write_steelpack
from steelyard.data.table import DataTable
from steelyard.data.table.counts import ReadCounts
from steelyard.data.table.sources import _is_inside, _matches, is_remote, list_found, open_source
from steelyard.errors import DataError

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves files of one folder by ranges, and keeps what was asked."""

    def do_GET(self):
        served = self.server
        served.asked.append(self.headers.get("Range"))
        path = served.folder / Path(self.path.partition("?")[0]).name
        if served.faults:
            served.faults.pop()
            return self.send_error(503)
        if not path.is_file():
            return self.send_error(404)
        whole = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if served.whole or not wanted:
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            return self.wfile.write(whole[:100])
        first, last = int(wanted[1]), min(int(wanted[2]), len(whole) - 1)
        part = whole[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[: len(part) // 2] if served.cut else part)

    def log_message(self, *args):
        pass


@pytest.fixture
def served(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    server.folder, server.asked, server.faults = tmp_path / "served", [], []
    server.whole = server.cut = False
    server.folder.mkdir()
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def rows_of(count):
    return pa.table({"id": np.arange(count), "price": np.arange(count) / 8, "note": ["n"] * count})


@pytest.mark.parametrize(
    "name", ["a.csv", "a.csv.gz", "a.jsonl", "a.parquet", "a.arrow", "a.steelpack"]
)
def test_a_file_behind_http_holds_the_same_rows(served, name):
    DataTable.scan(rows_of(3000)).write(served.folder / name)
    here, _ = DataTable.scan(served.folder / name).collect()
    there, quarantine = DataTable.scan(f"{served.address}/{name}?version=1").collect()
    assert there.equals(here)
    assert quarantine.total == 0
    assert quarantine.reads.num_bytes > 0
    assert all(served.asked)


def test_a_column_and_a_row_group_are_read_alone(served):
    from pyarrow import parquet

    path = served.folder / "a.parquet"
    parquet.write_table(rows_of(400_000), path, row_group_size=100_000, compression="none")
    table = DataTable.scan(f"{served.address}/a.parquet").select(["id"])
    few = table.filter(pc.field("id") >= 390_000)
    assert few.skipped_row_groups == 3
    rows, quarantine = few.collect()
    assert len(rows) == 10_000
    assert quarantine.reads.num_bytes < path.stat().st_size / 4


def test_a_column_of_a_remote_steelpack_is_read_alone_and_damage_is_named(served):
    rng = np.random.default_rng(0)
    rows = pa.table({f"c{place}": rng.normal(size=140_000) for place in range(20)})
    path = served.folder / "a.steelpack"
    write_steelpack(rows.to_batches(), path, group_rows=1 << 16)
    table = DataTable.scan(f"{served.address}/a.steelpack")
    assert len(table.partitions) == 3
    few, quarantine = table.select(["c7"]).collect()
    assert few.equals(rows.select(["c7"]))
    assert quarantine.reads.num_bytes < path.stat().st_size / 5
    asked = len(served.asked)
    whole, quarantine = table.collect()
    assert whole.equals(rows)
    assert quarantine.reads.num_bytes < 1.2 * path.stat().st_size
    # Row groups come whole: their end, and themselves.
    assert len(served.asked) - asked < 20
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"row group 1.*damaged.*0 to 0 are whole"):
        table.collect()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match="cut short"):
        DataTable.scan(f"{served.address}/a.steelpack").collect()


def test_a_server_that_cannot_is_tried_again_and_one_that_will_not_is_not(served):
    DataTable.scan(rows_of(10)).write(served.folder / "a.csv")
    served.faults = [1, 1]
    rows, _ = DataTable.scan(f"{served.address}/a.csv").collect()
    assert len(rows) == 10
    asked = len(served.asked)
    with pytest.raises(DataError, match="404"):
        DataTable.scan(f"{served.address}/none.csv")
    assert len(served.asked) == asked + 1


def test_a_server_without_ranges_is_refused_and_a_broken_answer_named(served):
    DataTable.scan(rows_of(500)).write(served.folder / "a.csv")
    served.cut = True
    with pytest.raises(DataError, match=r"broke off|cannot read"):
        DataTable.scan(f"{served.address}/a.csv")
    served.cut, served.whole = False, True
    with pytest.raises(DataError, match="no ranges"):
        DataTable.scan(f"{served.address}/a.csv")
    with pytest.raises(DataError, match="lists no files"):
        DataTable.scan(f"{served.address}/*.csv")


def test_nobody_answers(tmp_path):
    with pytest.raises(DataError, match="cannot read http"):
        DataTable.scan("http://127.0.0.1:9/a.csv")
    with pytest.raises(DataError, match="cannot open"):
        DataTable.scan("nothing://a.csv")


@pytest.fixture
def memory():
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_addresses_of_fsspec_are_listed_by_pattern_and_folder(memory):
    for name in ("sales/a.csv", "sales/b.csv", "sales/deep/c.csv", "other/d.csv", "sales/x.txt"):
        memory.pipe(f"/lake/{name}", b"id,price\n1,2.5\n2,3.5\n")
    one = DataTable.scan("memory://lake/sales/*.csv")
    assert [item.path for item in one.files] == [
        "memory://lake/sales/a.csv",
        "memory://lake/sales/b.csv",
    ]
    assert len(one.collect()[0]) == 4
    assert len(DataTable.scan("memory://lake/sales").files) == 3
    assert len(DataTable.scan("memory://lake/**/*.csv").files) == 4
    with pytest.raises(DataError, match="no file at"):
        DataTable.scan("memory://lake/none")


def test_a_journal_of_remote_files_goes_stale_with_them(memory, tmp_path):
    from steelyard.data.table import ProfileFold

    memory.pipe("/lake/a.csv", b"id\n1\n2\n")
    table = DataTable.scan("memory://lake/a.csv")
    folded = table.fold(ProfileFold(), journal=tmp_path)
    assert folded.rows == 2


@pytest.mark.parametrize(
    ("path", "base", "inside"),
    [
        ("bucket/lake/a.csv", "bucket/lake", True),
        ("bucket/lake", "bucket/lake/", False),
        ("bucket/lakes/a.csv", "bucket/lake", False),
        ("bucket/lake/../secret.csv", "bucket/lake", False),
        ("/etc/passwd", "bucket/lake", False),
    ],
)
def test_a_listing_does_not_leave_its_folder(path, base, inside):
    assert _is_inside(path, base) == inside


def test_patterns_and_addresses():
    assert _matches("b/x/a.csv", "b/*/a.csv")
    assert not _matches("b/x/y/a.csv", "b/*/a.csv")
    assert _matches("b/x/y/a.csv", "b/**/a.csv")
    assert is_remote("s3://b/a.csv")
    assert not is_remote("C:/a.csv")
    assert not is_remote("./a=b://c.csv")


def test_an_address_of_a_file_here_is_its_path(tmp_path):
    (tmp_path / "a b.csv").write_text("v\n1\n")
    for address in (
        f"file://{tmp_path}",
        f"file://{tmp_path}/a%20b.csv",
        f"file://{tmp_path}/*.csv",
    ):
        assert [found.path for found in list_found(address)] == [str(tmp_path / "a b.csv")]
        assert DataTable.scan(address).collect()[0].to_pylist() == [{"v": 1}]


def test_reads_are_counted(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(1000))
    counts = ReadCounts()
    with open_source(str(tmp_path / "a.bin"), counts) as file:
        file.seek(100)
        assert len(file.read(50)) == 50
        assert len(file.read()) == 850
    assert (counts.num_bytes, counts.requests) == (900, 2)
    assert list_found(str(tmp_path / "none*")) == []


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_a_folder_with_a_loop_is_listed_once(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert len(DataTable.scan(tmp_path).files) == 1
