"""Folds: the same result by any number of workers and after any kill; the profile they make."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.data.pack import Pack
from steelyard.data.table import DataTable, ProfileFold, Quarantine, RowHashFold, folds
from steelyard.data.table.budget import FoldBudget
from steelyard.errors import CapacityError, ConfigError, StoreError
from steelyard.files import exclusive

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in range(7):
        rows = [
            f"{name * 500 + place},{rng.lognormal():.4f},{'abc'[rng.integers(3)]},"
            f"2026-0{1 + place % 9}-11"
            for place in range(500)
        ]
        rows[name] = "broken"
        (made / f"{name}.csv").write_text("id,price,shop,day\n" + "\n".join(rows) + "\n")
    return made


class CountFold:
    name = "count"

    def init(self, schema):
        return np.zeros(1, np.int64)

    def update(self, state, batch):
        state += len(batch)

    def merge(self, state, later):
        state += later

    def finish(self, state):
        return int(state[0])

    def sections(self, state):
        return {"rows": state}

    def of(self, schema, sections):
        return sections["rows"].copy()


class KilledFold(CountFold):
    """Counts, and ends its process before some part."""

    def __init__(self, after):
        self.left = after

    def update(self, state, batch):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().update(state, batch)


def test_one_pass_serves_several_folds_and_counts_every_row(folder):
    found = DataTable.scan(folder).fold(ProfileFold(), CountFold())
    assert found.results["count"] == found.rows == 7 * 499
    assert found.quarantine.total == 7
    assert found.results["profile"].rows == found.rows


def test_workers_change_no_bit(folder):
    table = DataTable.scan(folder)
    alone = table.fold(ProfileFold()).results["profile"]
    assert repr(table.fold(ProfileFold(), workers=2).results["profile"]) == repr(alone)


def test_a_profile_says_what_the_columns_hold(folder):
    table = DataTable.scan(folder)
    profile = table.fold(ProfileFold()).results["profile"]
    rows, _ = table.collect()
    number, price, shop, day = profile.columns
    values = rows["price"].to_numpy()
    assert price.mean == pytest.approx(values.mean())
    assert price.std == pytest.approx(values.std(ddof=1))
    assert (price.least, price.largest) == (values.min(), values.max())
    assert (values <= price.quantiles[2]).mean() == pytest.approx(0.5, abs=0.0165)
    assert number.distinct == pytest.approx(3493, rel=0.05)
    counts = {
        word: int((rows["shop"].to_numpy(zero_copy_only=False) == word).sum()) for word in "abc"
    }
    assert dict(shop.frequent) == counts
    assert day.distinct == pytest.approx(9, abs=0.1)
    assert profile.problems() == []


def test_problems_are_named(tmp_path):
    lines = ["1,,5,", "1,,5,", "1,,5,3"] * 400
    (tmp_path / "a.csv").write_text("same,none,id,half\n" + "\n".join(lines) + "\n")
    told = "; ".join(DataTable.scan(tmp_path).fold(ProfileFold()).results["profile"].problems())
    assert "same: one value throughout" in told
    assert "none: all values are missing" in told
    assert "half: 67% of the values are missing" in told
    assert "of the rows are there twice" in told


def test_a_killed_pass_goes_on_where_it_was(folder, tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[3])\n"
        "from pathlib import Path\n"
        "from test_folding import KilledFold\n"
        "from steelyard.data.table import DataTable\n"
        "DataTable.scan(sys.argv[1]).fold(KilledFold(3), journal=Path(sys.argv[2]))\n"
    )
    journal = tmp_path / "journal"
    here = str(__import__("pathlib").Path(__file__).parent)
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", script, str(folder), str(journal), here], check=False
        )
        assert run.returncode == -signal.SIGKILL
    assert len(list(journal.glob("*.pack"))) == 6
    read = []
    found = DataTable.scan(folder).fold(CountFold(), journal=journal, done=read.append)
    assert found.results["count"] == 7 * 499
    assert found.quarantine.total == 7
    assert len(read) == 7
    assert not list(journal.glob("*.pack"))


class DeadlyFold(CountFold):
    """Counts, and kills the worker that folds some rows, as often as there are marks."""

    def __init__(self, marks):
        self.marks = str(marks)

    def update(self, state, batch):
        marks = sorted(pathlib.Path(self.marks).iterdir())
        if marks and batch.column(0)[0].as_py() >= 1000:
            marks[0].unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        super().update(state, batch)


def test_a_worker_that_is_killed_in_a_fold_is_replaced(folder, tmp_path):
    (tmp_path / "kill").touch()
    table = DataTable.scan(*(folder / f"{name}.csv" for name in (0, 1, 2)))
    given = [DeadlyFold(tmp_path), RowHashFold(), folds.quantiles("price")]
    found = table.fold(*given, workers=2)
    assert not list(tmp_path.iterdir())
    alone = table.fold(*given)
    assert found.results["count"] == alone.results["count"] == 3 * 499
    assert found.results["row hashes"] == alone.results["row hashes"]
    bits = [item.results[given[2].name]["price"].sections() for item in (found, alone)]
    assert all(np.array_equal(bits[0][name], bits[1][name]) for name in bits[0])


def test_a_part_that_kills_every_worker_is_named_with_its_memory(folder, tmp_path):
    for name in range(50):
        (tmp_path / f"kill{name}").touch()
    with pytest.raises(CapacityError, match=r"the part of .*2\.csv from row 1 died.* it held \d"):
        DataTable.scan(folder / "0.csv", folder / "2.csv").fold(DeadlyFold(tmp_path), workers=2)


def test_a_budget_changes_nothing_but_rounding(folder, tmp_path):
    table = DataTable.scan(folder)
    given = [ProfileFold(), CountFold()]
    free, bounded = (table.fold(*given, memory=memory) for memory in (None, "60MB"))
    assert bounded.results["count"] == free.results["count"]
    pairs = zip(bounded.results["profile"].columns, free.results["profile"].columns, strict=True)
    for mine, theirs in pairs:
        assert mine.quantiles == theirs.quantiles
        assert mine.mean == pytest.approx(theirs.mean, nan_ok=True)
    two = table.fold(*given, memory="60MB", workers=2)
    assert repr(two.results["profile"]) == repr(bounded.results["profile"])


def test_a_budget_that_holds_no_part_is_refused_with_one_that_does(folder, tmp_path):
    from pyarrow import parquet

    wide = {f"v{place}": np.arange(20_000) * place for place in range(60)}
    parquet.write_table(pa.table(wide), tmp_path / "wide.parquet")
    for table in (DataTable.scan(folder), DataTable.scan(tmp_path / "wide.parquet")):
        with pytest.raises(CapacityError, match="memory: 1 MB do not hold") as caught:
            table.fold(ProfileFold(), memory="1MB")
        least = caught.value.hint.removeprefix("give ").partition(" or more")[0]
        assert table.fold(ProfileFold(), memory=least).rows in (7 * 499, 20_000)
    assert "60 columns" in str(caught.value)
    with pytest.raises(ConfigError):
        table.fold(CountFold(), memory="much")


def test_batches_stay_within_what_a_budget_allows(folder, tmp_path):
    from pyarrow import parquet

    wide = {f"v{place}": np.random.default_rng(place).random(50_000) for place in range(40)}
    parquet.write_table(pa.table(wide), tmp_path / "wide.parquet")
    table = DataTable.scan(tmp_path)
    given = [CountFold()]
    small, large = (FoldBudget.of(table, given, memory) for memory in (90e6, 900e6))
    assert small.limits.batch_rows < large.limits.batch_rows <= 65_536
    assert small.read_bytes < large.read_bytes
    bounded = table.with_limits(small.limits)
    batches = bounded.read(table.partitions[0], Quarantine())
    assert max(len(batch) for batch in batches) <= small.limits.batch_rows


def test_a_part_that_is_damaged_or_of_other_files_is_read_again(folder, tmp_path):
    journal = tmp_path / "journal"
    table = DataTable.scan(folder)
    from steelyard.data.table.folding import _fold_part
    from steelyard.data.table.journal import FoldJournal

    kept = FoldJournal(journal, table, ["count"])
    kept.write(0, _fold_part(table, [CountFold()], False, table.partitions[0]))
    path = next(journal.glob("*.pack"))
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 1
    path.write_bytes(damaged)
    assert table.fold(CountFold(), journal=journal).results["count"] == 7 * 499
    kept.write(0, {"rows": np.array([10**9])})
    other = DataTable.scan(folder / "0.csv", folder / "1.csv")
    assert other.fold(CountFold(), journal=journal).results["count"] == 2 * 499


def test_a_second_writer_on_a_journal_is_refused(folder, tmp_path):
    with exclusive(tmp_path), pytest.raises(StoreError):
        DataTable.scan(folder).fold(CountFold(), journal=tmp_path)


def test_folds_that_cannot_be_told_apart_are_refused(folder, tmp_path):
    table = DataTable.scan(folder)
    with pytest.raises(ConfigError, match="two folds are named 'count'"):
        table.fold(CountFold(), CountFold())
    with pytest.raises(ConfigError, match="cannot tell whether steps"):
        table.map_batches(lambda batch: batch).fold(CountFold(), journal=tmp_path)


def said(words):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return stopped.value.code


def test_the_verb_prints_columns_and_writes_what_was_set_aside(folder, tmp_path, capsys):
    words = ["data", "table", "profile", str(folder / "*.csv")]
    bad, page = tmp_path / "bad.csv", tmp_path / "profile.html"
    assert said([*words, "--quarantine", str(bad), "--report", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "3,493" in printed
    assert "1 values, not 4" in printed
    assert len(bad.read_text().splitlines()) == 8
    assert page.stat().st_size > 5000
    assert said([*words, "--json", "--journal", str(tmp_path / "journal")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] + found["quarantine"]["rows"] == 3500
    assert [column["name"] for column in found["columns"]] == ["id", "price", "shop", "day"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "needs files"),
        (["none.csv"], "no file at none.csv"),
        (["{folder}", "--types", "id"], "--types has 'id'"),
        (["{folder}", "--types", "ident=text"], "no column 'ident'"),
        (["{folder}", "--workers", "0"], "--workers is 0"),
    ],
)
def test_the_verb_refuses_what_cannot_be(folder, capsys, words, told):
    given = [word.replace("{folder}", str(folder)) for word in words]
    assert said(["data", "table", "profile", *given]) == 2
    assert told in capsys.readouterr().err


def test_a_state_that_is_read_back_is_the_same(folder):
    table, fold = DataTable.scan(folder), ProfileFold()
    from steelyard.data.table import Quarantine

    state = fold.init(table.schema)
    for batch in table.read(table.partitions[0], Quarantine()):
        fold.update(state, batch)
    from steelyard.data.pack import pack_bytes

    again = fold.of(table.schema, Pack(pack_bytes(fold.sections(state))).sections())
    assert repr(fold.finish(again)) == repr(fold.finish(state))


def test_times_beyond_python_s_are_profiled():
    pa = pytest.importorskip("pyarrow")
    rows = {
        "day": pa.array([10**9, 3, 3], pa.int32()).cast(pa.date32()),
        "at": pa.array([1, 2, 2], pa.timestamp("ns")),
    }
    found = DataTable.scan(pa.table(rows)).fold(ProfileFold()).results["profile"]
    assert [item.distinct for item in found.columns] == pytest.approx([2, 2], abs=0.1)
