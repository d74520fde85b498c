"""Tests of tables have a home of their own, with rates that no test has to measure."""

import pytest

from steelyard.catalog.scan_rates import FoldRate, ReadRate, ScanRates, store_scan_rates
from steelyard.data.table.kinds import KINDS


def made_rates(**changed):
    """Rates near those of a common machine, but whole numbers of nanoseconds."""
    read = ReadRate(
        part_s=1e-4,
        byte_s=1e-9,
        unzip_byte_s=2e-8,
        column_batch_s=5e-5,
        value_s=dict.fromkeys(KINDS, 3e-8),
        doubtful_value_s=1e-7,
    )
    fold = FoldRate(
        byte_s=1e-9,
        column_batch_s=1e-4,
        column_part_s=1e-3,
        value_s=dict.fromkeys(KINDS, 2e-8),
        varied_value_s=dict.fromkeys(KINDS, 4e-8),
    )
    values = {
        "read": dict.fromkeys(("csv", "json lines", "parquet", "arrow"), read),
        "fold": fold,
        "process_s": 1.0,
        "column_bytes": 200_000.0,
        "time_s": 0.0,
        "duration_s": 5.0,
    }
    return ScanRates(**(values | changed))


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("STEELYARD_HOME", str(folder))
    store_scan_rates(made_rates())
    return folder


@pytest.fixture
def rates():
    return made_rates()
