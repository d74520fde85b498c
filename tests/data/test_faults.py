"""Full disks, flipped bits, second writers and names that lead elsewhere, for every store."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import fields

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from tests.data import verb_lines as verbs  # noqa: E402
from tests.killing import files_of  # noqa: E402

from steelyard import files  # noqa: E402
from steelyard.data.communities import CommunityIndex, IndexSettings  # noqa: E402
from steelyard.data.governance import AuditLog, PrivacyLedger  # noqa: E402
from steelyard.data.graph import ArrayEdges  # noqa: E402
from steelyard.data.learning import BoostConfig, FitOptions, TableModel, fit_table  # noqa: E402
from steelyard.data.logs import LogArchive, compress  # noqa: E402
from steelyard.data.manifest import Manifest, read_manifest  # noqa: E402
from steelyard.data.mapped_rows import new_map  # noqa: E402
from steelyard.data.mining import mine, mine_table, quest_baskets  # noqa: E402
from steelyard.data.pack import Pack, write_pack  # noqa: E402
from steelyard.data.table import DataTable, ProfileFold  # noqa: E402
from steelyard.data.table.sketch_file import TableSketch  # noqa: E402
from steelyard.data.tasks.cache import CACHE, read_info  # noqa: E402
from steelyard.errors import CapacityError, DataError, StoreError  # noqa: E402

LOG = "".join(
    f"2026-01-{1 + row % 28:02d} INFO job {row * row % 9973} took {row % 7} s\n"
    for row in range(2000)
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = verbs.make_data(tmp_path_factory.mktemp("data"))
    (folder / "jobs.log").write_text(LOG)
    return folder


def archive(data, here):
    return ["data", "logs", "compress", str(data / "jobs.log"), "--out", str(here / "jobs.pack")]


PAY = """
import sys
from pathlib import Path
from steelyard.data.governance import PrivacyLedger
ledger = PrivacyLedger(Path(sys.argv[1]) / "ledger")
if not (ledger.folder / "privacy.json").exists():
    ledger.begin(100.0)
ledger.spend(0.5, what="a long question " * 100)
"""
AUDIT = """
import sys
from pathlib import Path
from steelyard.data.governance import AuditLog
AuditLog(Path(sys.argv[1]) / "audit.jsonl").append("read", {"what": "x" * 600})
"""


def pay(data, here):
    return ["-c", PAY, str(here)]


def audit(data, here):
    return ["-c", AUDIT, str(here)]


@pytest.mark.parametrize(
    "verb",
    [verbs.profile, verbs.clean, verbs.convert, verbs.parts, verbs.mine, verbs.index, verbs.fit,
     verbs.transform, archive, pay, audit],
    ids=lambda verb: verb.__name__,
)  # fmt: skip
def test_a_full_disk_leaves_what_stood_there(lines, data, tmp_path, verb):
    assert lines.run(verb(data, tmp_path), tmp_path).code == 0
    before = files_of(tmp_path)
    full = lines.run(verb(data, tmp_path), tmp_path, most_bytes=1000)
    if full.code == 0:
        # What is whole and the same already is not written again.
        assert verb is verbs.index
        return
    assert full.code in (1, 2)
    assert "disk full" in full.told or "cannot write" in full.told
    after = files_of(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after if name.endswith(".part")]
    assert lines.run(verb(data, tmp_path), tmp_path).code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs a small file system in memory")
def test_pages_without_room_are_refused_before_they_are_written(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mounted, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        # A sparse file of that length is made, and the process that writes it dies of SIGBUS.
        with pytest.raises(CapacityError, match=r"disk full while writing .*rows"):
            new_map(tmp_path / "rows", np.float32, (500, 1000))
        rows = new_map(tmp_path / "rows", np.float32, (50, 1000))
        rows[:] = 1
        assert rows.sum() == 50_000
        del rows
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def flipped(path, rng):
    """Change one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[int(rng.integers(0, len(raw)))] ^= 1 << int(rng.integers(0, 8))
    path.write_bytes(raw)


def made_sketch(folder, data):
    table = DataTable.scan(data / "sales")
    TableSketch.of(table, table.fold(ProfileFold())).write(folder / "a")
    return lambda: repr(TableSketch.open(folder / "a"))


def made_archive(folder, data):
    compress(data / "jobs.log", folder / "a")
    return lambda: [line for _, line in LogArchive(folder / "a").grep()]


def made_model(folder, data):
    options = FitOptions(target="kept", leave_out=["id"], boosting=BoostConfig(rounds=3, threads=1))
    table = DataTable.scan(data / "sales")
    fit_table(table, options, folder / "work").model.save(folder / "a")
    return lambda: [batch.to_pydict() for batch in TableModel.open(folder / "a").predict(table)]


def made_ledger(folder, data):
    ledger = PrivacyLedger(folder)
    ledger.begin(1.0)
    ledger.spend(0.25, what="how many")
    (folder / "a").symlink_to(folder / "privacy.json")
    return lambda: (ledger.entries, ledger.budget)


def made_audit(folder, data):
    log = AuditLog(folder / "a")
    for row in range(3):
        log.append("read", {"rows": row})
    return log.entries


@pytest.mark.parametrize(
    "make",
    [made_sketch, made_archive, made_model, made_ledger, made_audit],
    ids=lambda make: make.__name__,
)
def test_a_flipped_bit_is_told_or_means_nothing(data, tmp_path, make):
    read = make(tmp_path, data)
    path, wanted, rng = (tmp_path / "a").resolve(), read(), np.random.default_rng(0)
    whole, told = path.read_bytes(), 0
    for _ in range(40):
        flipped(path, rng)
        try:
            assert read() == wanted
        except DataError as error:
            told += 1
            assert path.name in str(error) or "a" in str(error)
        path.write_bytes(whole)
    assert told > 20


EDGES = ArrayEdges(*np.random.default_rng(0).integers(0, 50, (2, 3000)))
TWO = pa.table({"x": np.arange(200) % 7, "y": ["a", "b"] * 100})


@pytest.mark.parametrize(
    "work",
    [
        lambda folder: CommunityIndex.build(EDGES, folder, IndexSettings(num_hashes=20, bands=10)),
        lambda folder: mine(quest_baskets(50, seed=1), 0.1, journal=folder),
        lambda folder: mine_table(DataTable.scan(pa.table({"items": [[1, 2]] * 9})), 0.5,
                                  how="son", journal=folder / "son"),
        lambda folder: fit_table(DataTable.scan(TWO), FitOptions(target="y"), folder),
        lambda folder: PrivacyLedger(folder).begin(1.0),
        lambda folder: AuditLog(folder / "audit.jsonl").append("read", {}),
        lambda folder: DataTable.scan(TWO).fold(ProfileFold(), journal=folder),
    ],
    ids=["index", "mine", "mine_parts", "fit", "ledger", "audit", "journal"],
)  # fmt: skip
def test_a_second_writer_is_refused_by_the_name_of_the_folder(tmp_path, monkeypatch, work):
    # Some wait for a while, as the first may be about to end: on a clock that does not.
    seconds = iter(range(1000))
    monkeypatch.setattr(files.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    folders = [tmp_path, *(tmp_path / name for name in ("son",))]
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(files.exclusive(folder))
        with pytest.raises(StoreError, match=f"another process is working in {tmp_path}"):
            work(tmp_path)


def test_names_of_sections_are_no_paths(tmp_path):
    names = ["../out", "/etc/out", "a/../../out", "C:\\out", "meta"]
    write_pack(tmp_path / "deep" / "a.pack", {name: np.arange(3) for name in names})
    before = files_of(tmp_path)
    assert sorted(Pack.open(tmp_path / "deep" / "a.pack").sections()) == sorted(names)
    with pytest.raises(DataError, match="archive of a log"):
        LogArchive(tmp_path / "deep" / "a.pack").unpack(tmp_path / "deep" / "log")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["../out.bin", "/etc/hostname", "deep/../../out.bin"])
def test_shards_of_a_manifest_stand_beside_it(tmp_path, name):
    shard = {"name": name, "tokens": 1, "sha256": "0"}
    manifest = {item.name: "" for item in fields(Manifest)} | {
        "files_skipped": {}, "documents_dropped": {}, "sources": [], "train": [shard],
        "heldout": [], "order": "keyed"
    }  # fmt: skip
    numbers = ("files_read", "documents", "text_bytes", "heldout_documents", "heldout_bytes",
               "vocab_size", "end_token", "seed")  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | dict.fromkeys(numbers, 1)))
    with pytest.raises(DataError, match=re.escape(f"{name!r} is no plain")):
        read_manifest(tmp_path)
    shard = {"name": name, "key": "k", "sha256": "0", "kinds": {}, "statistics": {}}
    shard |= dict.fromkeys(("records", "examples", "dropped"), 1)
    cache = {"key": "k", "preparation_key": "p", "task": "t", "shards": [shard]}
    (tmp_path / CACHE).write_text(json.dumps(cache))
    with pytest.raises(DataError, match=re.escape(f"{name!r} is no plain")):
        read_info(tmp_path)
