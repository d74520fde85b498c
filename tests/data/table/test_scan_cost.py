"""What a pass is forecast to read and take, beside what it reads, and sums done by hand."""

import gzip
import json

import numpy as np
import pytest

from steelyard import catalog
from steelyard.catalog.scan_rates import load_scan_rates
from steelyard.cli.main import main
from steelyard.cost.scan import ColumnWork, FileWork, forecast_scan, tier_price
from steelyard.data.table import DataTable, ProfileFold, RowCountFold
from steelyard.data.table.fitting import cast_to
from steelyard.data.table.kinds import KINDS
from steelyard.data.table.work import scan_work
from steelyard.errors import CalibrationError
from steelyard.quantity import Check, Measurement

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402


def rows_of(count, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(count),
            "price": rng.lognormal(3, 1, count).round(2),
            "shop": np.array(["north", "south"])[rng.integers(0, 2, count)],
            "note": [f"note {value}" for value in rng.integers(0, 10**9, count).tolist()],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tables")
    whole = DataTable.scan(rows_of(30_000))
    for name in ("a.csv", "a.csv.gz", "a.jsonl", "a.parquet", "a.arrow"):
        whole.write(made / name)
    return made


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.parquet", "a.arrow"])
def test_bytes_are_forecast_within_two_percent_of_those_read(folder, rates, name):
    table = DataTable.scan(folder / name)
    works = scan_work(table)
    said = {item.quantity: item for item in forecast_scan(works, rates)}
    folded = table.fold(ProfileFold())
    reads = folded.quarantine.reads
    assert said["scan.bytes_read"].value == pytest.approx(reads.num_bytes, rel=0.02)
    assert sum(work.requests for work in works) == pytest.approx(reads.requests, rel=0.5, abs=3)
    assert sum(work.rows for work in works) == pytest.approx(30_000, rel=0.1)


def test_columns_that_are_not_read_cost_no_bytes_of_parquet(tmp_path, rates):
    path = tmp_path / "a.parquet"
    parquet.write_table(rows_of(200_000), path, row_group_size=50_000, compression="none")
    table = DataTable.scan(path).select(["price"])
    folded = table.fold(ProfileFold())
    said = forecast_scan(scan_work(table), rates)[0]
    assert said.value == pytest.approx(folded.quarantine.reads.num_bytes, rel=0.02)
    assert said.value < 0.5 * path.stat().st_size


def test_a_forecast_is_the_sum_of_its_parts(rates):
    work = FileWork(
        format="csv",
        is_packed=True,
        parts=2,
        num_bytes=1e6,
        requests=4.0,
        text_bytes=4e6,
        rows=1e5,
        batches=4.0,
        columns=(
            ColumnWork(kind="number", doubtful=0.5),
            ColumnWork(kind="text", text_bytes=10.0, variety=0.25),
        ),
    )
    read_s = 2e-4 + 4e6 * 1e-9 + 4e6 * 2e-8 + 8 * 5e-5 + 2e5 * 3e-8 + 0.5e5 * 1e-7
    fold_s = 1e6 * 1e-9 + 8 * 1e-4 + 4 * 1e-3 + 2e5 * 2e-8 + 1.25e5 * 4e-8
    found = {item.quantity: item for item in forecast_scan([work], rates)}
    assert found["scan.duration"].value == pytest.approx(read_s + fold_s)
    assert found["scan.cost"].value == 0.0
    s3 = catalog.storage_tier("s3-standard")
    there = {item.quantity: item for item in forecast_scan([work], rates, tier=s3, leaves=True)}
    assert there["scan.duration"].value == pytest.approx(read_s + fold_s + 4 * 0.15 + 1e6 / 87e6)
    assert there["scan.cost"].value == pytest.approx(4 * 4e-7 + 1e-3 * 0.09)
    half = {item.quantity: item for item in forecast_scan([work], rates, core_share=0.5)}
    assert half["scan.duration"].value == pytest.approx(2 * found["scan.duration"].value)
    assert half["scan.peak_memory"] == found["scan.peak_memory"]
    two = {item.quantity: item for item in forecast_scan([work], rates, workers=2)}
    assert two["scan.duration"].value == pytest.approx(1.0 + (read_s + fold_s) / 2)
    price = tier_price([work], 1e9, s3)
    assert (price.usd_per_month, price.scan_usd) == pytest.approx((0.023, 1.6e-6))


def test_an_interval_follows_earlier_errors(rates):
    work = FileWork(
        format="parquet", parts=1, num_bytes=1e6, requests=1.0, text_bytes=1e6, rows=1e5,
        batches=2.0, columns=(ColumnWork(kind="number"),),
    )  # fmt: skip
    said = forecast_scan([work], rates)[1]
    wrong = Check(said, Measurement(quantity="scan.duration", value=said.value * 2))
    right = Check(said, Measurement(quantity="scan.duration", value=said.value * 1.01))
    wide = forecast_scan([work], rates, past=[wrong] * 10)[1]
    narrow = forecast_scan([work], rates, past=[right] * 10)[1]
    assert wide.high / wide.value == pytest.approx(2.0)
    assert narrow.high / narrow.value == pytest.approx(1.01)
    assert wide.value == narrow.value == said.value


def test_rates_that_are_measured_tell_a_wide_table_from_a_narrow_one(monkeypatch):
    from steelyard.data.table import rates

    # Small tables: what is tested is that every rate comes out, not how near it is.
    monkeypatch.setattr(rates, "_FORMATS", {"csv": 600, "parquet": 800})
    monkeypatch.setattr(rates, "_FOLD_ROWS", 800)
    monkeypatch.setattr(rates, "_REPEATS", 1)
    monkeypatch.setattr(rates, "_WIDE", 20)
    monkeypatch.setattr(rates, "_process_s", lambda: 0.5)
    told = []
    found = rates.measure_scan_rates(lambda text, share: told.append(share))
    assert told == sorted(told)
    assert set(found.read) == {"csv", "parquet"}
    for rate in (*found.read.values(), found.fold):
        assert set(rate.value_s) == set(KINDS)
        assert min(rate.value_s.values()) >= 0
    assert found.fold.column_part_s > 0
    assert 1e3 < found.column_bytes < 1e7


def test_rates_that_are_damaged_are_told_of(home):
    (home / "scan-rates.json").write_text('{"read": 3}')
    with pytest.raises(CalibrationError, match="unusable"):
        load_scan_rates()


def said(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return stopped.value.code, capsys.readouterr()


def test_a_dry_run_stops_after_the_forecast_and_a_run_checks_it(folder, capsys, home):
    words = ["data", "table", "profile", str(folder / "a.csv")]
    code, printed = said([*words, "--dry-run", "--storage", "s3-standard", "--json"], capsys)
    assert code == 0
    dry = json.loads(printed.out)
    cost = next(item for item in dry["forecasts"] if item["quantity"] == "scan.cost")
    assert cost["value"] > 0
    assert "columns" not in dry
    assert not (home / "runs").exists()
    code, printed = said(words, capsys)
    assert code == 0
    assert "Forecast and measured" in printed.out
    assert "s3-infrequent-access" in printed.out
    from steelyard.runs.ledger import Ledger
    from steelyard.runs.store import RunStore

    kept = Ledger(RunStore.existing()).checks("cost.scan")
    names = {item.forecast.quantity for _, item in kept}
    assert names == {"scan.bytes_read", "scan.duration", "scan.peak_memory"}
    said([*words, "--no-keep"], capsys)
    assert len(Ledger(RunStore.existing()).checks("cost.scan")) == len(kept)
    code, printed = said([*words, "--storage", "tape"], capsys)
    assert code == 2
    assert "no storage named 'tape'" in printed.err


def test_rows_of_a_compressed_file_follow_from_how_it_packs(tmp_path):
    path = tmp_path / "a.csv.gz"
    lines = "\n".join(f"{place},{place % 7}" for place in range(400_000))
    path.write_bytes(gzip.compress(("a,b\n" + lines + "\n").encode()))
    work = scan_work(DataTable.scan(path))[0]
    assert work.is_packed
    assert work.rows == pytest.approx(400_000, rel=0.15)


def test_columns_of_a_wide_table_are_looked_up_once(tmp_path):
    count = 400
    table = pa.table({f"c{place}": [1, 2, 3] for place in range(count)})
    path = tmp_path / "wide.parquet"
    parquet.write_table(table, path)
    lists = []

    class Counted:
        """A schema that counts how often its names are listed."""

        def __init__(self, schema):
            self.schema = schema

        @property
        def names(self):
            lists.append(1)
            return self.schema.names

    class Batch:
        """A batch of it."""

        def __init__(self, batch):
            self.batch, self.schema = batch, Counted(batch.schema)

        def __len__(self):
            return len(self.batch)

        def __getitem__(self, name):
            return self.batch[name]

    (batch,) = table.to_batches()
    assert cast_to(Batch(batch), table.schema, "wide") == batch
    assert len(lists) == 1
    assert DataTable.scan(path).fold(RowCountFold()).rows == 3
