"""Tables behind s3:// on a store of this machine: python -m benchmarks peers install moto."""

import json
import socket
import subprocess
import time
import urllib.request

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402
from benchmarks import peers  # noqa: E402
from pyarrow import fs, parquet  # noqa: E402

from steelyard.cli.data.table import app  # noqa: E402
from steelyard.data.formats import write_steelpack  # noqa: E402
from steelyard.data.table import DataTable, ProfileFold, RowHashFold  # noqa: E402
from steelyard.errors import BackendError, DataError  # noqa: E402

ROWS = 50_000
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


def rows_of(count):
    return pa.table({"id": np.arange(count), "price": np.arange(count) / 8, "note": ["n"] * count})


class Store:
    """An S3 server with a bucket `lake`."""

    def __init__(self, port):
        self.place = f"127.0.0.1:{port}"
        self.query = f"?endpoint_override={self.place}&scheme=http&region=us-east-1"
        given = {"access_key": "test", "secret_key": "test", "allow_bucket_creation": True}
        self.system = fs.S3FileSystem(
            endpoint_override=self.place, scheme="http", region="us-east-1", **given
        )
        self.system.create_dir("lake")

    def address(self, name):
        return f"s3://{name}{self.query}"

    def put(self, name, raw):
        with self.system.open_output_stream(f"lake/{name}") as file:
            file.write(raw)

    def ask_for_keys(self, after):
        """Let so many more requests pass before keys are looked at."""
        where = f"http://{self.place}/moto-api/reset-auth"
        kind = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(where, after.encode(), kind)).close()


@pytest.fixture(scope="module")
def store():
    """A store in a process of its own."""
    try:
        python = peers.python("moto")
    except BackendError:
        pytest.skip("moto is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdout=quiet, stderr=quiet) as server:
        for _ in range(300):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        made = Store(port)
        where = "lake/sales/a.parquet"
        parquet.write_table(rows_of(ROWS), where, filesystem=made.system, row_group_size=10_000)
        made.put("sales/b.csv", b"id,price\n50000,1.5\n50001,much\n")
        made.put("other/c.csv", b"id\n1\n")
        yield made
        server.kill()


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def test_a_table_is_listed_and_read_by_ranges(store):
    table = DataTable.scan(store.address("lake/sales"))
    assert len(table.files) == 2
    assert any("'note'" in line for line in table.drift)
    rows, quarantine = table.collect()
    assert len(rows) == ROWS + 1
    assert [(bad.row, bad.field) for bad in quarantine.rows] == [(2, "price")]
    assert quarantine.reads.requests > 2
    assert len(DataTable.scan(store.address("lake/*/*.csv")).files) == 2


def test_row_groups_and_columns_that_are_not_wanted_are_not_read(store):
    whole = store.system.get_file_info("lake/sales/a.parquet").size
    table = DataTable.scan(store.address("lake/sales/*.parquet"))
    few = table.select(["id"]).filter(pc.field("id") < 5)
    rows, quarantine = few.collect()
    assert (few.skipped_row_groups, rows["id"].to_pylist()) == (4, [0, 1, 2, 3, 4])
    assert quarantine.reads.num_bytes < whole / 4


def test_folds_are_those_of_the_same_files_here(store, tmp_path):
    parquet.write_table(rows_of(ROWS), tmp_path / "a.parquet", row_group_size=10_000)
    given = [ProfileFold(), RowHashFold()]
    here = DataTable.scan(tmp_path).fold(*given)
    table = DataTable.scan(store.address("lake/sales/a.parquet"))
    there = table.fold(*given, journal=tmp_path / "journal", workers=2)
    assert repr(there.results["profile"].columns) == repr(here.results["profile"].columns)
    assert there.results["row hashes"] == here.results["row hashes"]


def test_a_profile_from_the_command_line(store, capsys, home):
    words = ["profile", store.address("lake/sales"), "--no-keep", "--json"]
    app(words, result_action="return_value", exit_on_error=False)
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["quarantine"]["rows"]) == (ROWS + 1, 1)
    assert told["bytes_read"] > 0


def test_a_column_of_a_steelpack_is_read_alone_and_damage_is_named(store, tmp_path):
    rng = np.random.default_rng(0)
    rows = pa.table({f"c{place}": rng.normal(size=20_000) for place in range(10)})
    path = tmp_path / "a.steelpack"
    write_steelpack(rows.to_batches(), path, group_rows=1 << 13)
    raw = bytearray(path.read_bytes())
    store.put("packs/a.steelpack", bytes(raw))
    few, quarantine = DataTable.scan(store.address("lake/packs")).select(["c7"]).collect()
    assert few.equals(rows.select(["c7"]))
    assert quarantine.reads.num_bytes < len(raw) / 2
    raw[len(raw) // 2] ^= 4
    store.put("packs/a.steelpack", bytes(raw))
    with pytest.raises(DataError, match=r"row group 1: .*lake/packs/a\.steelpack.* is damaged"):
        DataTable.scan(store.address("lake/packs")).collect()


def test_cut_objects_are_left_out_and_told_or_refused(store):
    whole = store.system.open_input_file("lake/sales/a.parquet").read()
    store.put("cut/a.parquet", whole)
    store.put("cut/b.parquet", whole[: len(whole) // 2])
    table = DataTable.scan(store.address("lake/cut"))
    assert list(table.unreadable) == [store.address("lake/cut/b.parquet")]
    assert len(table.collect()[0]) == ROWS
    store.put("cut/a.parquet", whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"s3://lake/cut/a\.parquet"):
        table.collect()
    with pytest.raises(DataError, match=r"a\.parquet"):
        DataTable.scan(store.address("lake/cut"))


def test_places_and_keys_that_are_none(store, monkeypatch):
    with pytest.raises(DataError, match=r"s3://nowhere/sales"):
        DataTable.scan(store.address("nowhere/sales"))
    with pytest.raises(DataError, match=r"s3://lake/none/\*\.csv"):
        DataTable.scan(store.address("lake/none/*.csv"))
    store.ask_for_keys("0")
    try:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
        with pytest.raises(DataError, match="cannot list s3://lake/sales") as caught:
            DataTable.scan(store.address("lake/sales"))
        assert "credentials" in caught.value.hint
    finally:
        store.ask_for_keys("Infinity")
