"""The catalog and calibrate commands: what they print, as text and as JSON, and how they refuse."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.made_rates import made_calibration, made_rates

from steelyard.catalog import load_calibration, store_calibration
from steelyard.catalog.stored import calibration_path
from steelyard.cli.calibrate import calibrate
from steelyard.cli.catalog import list_records, show
from steelyard.errors import CatalogError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def measured(monkeypatch):
    record = replace(made_calibration(), noise=0.31)
    monkeypatch.setattr("steelyard.catalog.calibrate.calibrate", lambda **_: record)
    monkeypatch.setattr("steelyard.serve.engine_rates.measure_engine", lambda *_, **__: None)
    return record


def test_counts_of_every_kind(capsys):
    list_records(json=True)
    counts = json.loads(capsys.readouterr().out)
    assert (
        counts["accelerators"] >= 30
        and counts["clusters"] >= 12
        and counts["architectures"] >= 25
        and counts["sites"] >= 8
    )
    list_records()
    assert "architectures" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("accelerators", ["H100-SXM5-80GB", "989 TFLOP/s", "3.35 TB/s", "450 GB/s"]),
        ("clusters", ["LEONARDO-Booster", "A100-custom-64GB", "3456"]),
        ("sites", ["bologna", "331"]),
        ("architectures", ["gpt2", "124,439,808"]),
    ],
)
def test_lists(capsys, kind, words):
    list_records(kind)
    text = capsys.readouterr().out
    assert all(word in text for word in words)
    list_records(kind, json=True)
    assert all(
        record["source"] and record["confidence"] for record in json.loads(capsys.readouterr().out)
    )


def test_show_prints_units_source_and_parameters(capsys):
    show("h100 sxm5 80gb")
    text = capsys.readouterr().out
    assert all(word in text for word in ("80 GB", "700 W", "whitepaper", "high"))
    show("mixtral-8x7b")
    assert "46,702,792,704" in capsys.readouterr().out
    show("gpt2", json=True)
    (record,) = json.loads(capsys.readouterr().out)
    assert (
        record["kind"] == "decoder"
        and record["record"] == "architectures"
        and record["parameters"]["total"] == 124_439_808
    )


def test_show_lists_near_names_of_every_kind():
    with pytest.raises(CatalogError, match="no record named 'leonardo'") as caught:
        show("leonardo")
    assert "LEONARDO-Booster" in caught.value.hint


def test_show_tells_what_is_wrong_with_a_user_record(tmp_path):
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "mine.toml").write_text(
        '[sites.home]\ncountry = "X"\npue = 0.5\nprice_usd_per_kwh = 0.1\ncarbon_g_per_kwh = 1\n'
    )
    with pytest.raises(CatalogError, match=r"mine\.toml.*pue"):
        show("home")


def test_calibrate_stores_and_says_how_noisy_it_was(measured, capsys):
    calibrate(quick=True)
    text = capsys.readouterr().out
    assert "50 GFLOP/s" in text and "31 %" in text and "busy" in text and "not measured" in text
    assert _kept() == measured
    calibrate(quick=True, json=True)
    assert json.loads(capsys.readouterr().out)["description"] == "a machine"
    show("this-machine")
    assert "measured" in capsys.readouterr().out


def _kept():
    """Read the calibration without the share that others took while nothing was measured."""
    return replace(load_calibration(), contention=0.0)


def test_rates_of_the_engine_are_kept_and_shown(measured, monkeypatch, capsys):
    rates = made_rates(duration_s=3.0)
    monkeypatch.setattr("steelyard.serve.engine_rates.measure_engine", lambda *_, **__: rates)
    calibrate(quick=True)
    text = capsys.readouterr().out
    assert "engine, int4" in text and "600 GFLOP/s" in text
    found = load_calibration()
    assert found.engine == rates and found.duration_s == measured.duration_s + 3.0


def test_calibrations_of_before_there_were_rates_are_read(measured):
    store_calibration(measured)
    path = calibration_path()
    old = json.loads(path.read_text())
    del old["engine"]
    path.write_text(json.dumps(old))
    assert load_calibration() == measured


def test_a_full_calibration_measures_the_idle_processes_too(measured, monkeypatch, capsys):
    idle = {"engine_process_bytes": 4e8, "trainer_process_bytes": 3e8}
    monkeypatch.setattr("steelyard.cli.calibrate.idle_bytes", lambda: idle)
    calibrate()
    text = capsys.readouterr().out
    assert "idle engine" in text and "400 MB" in text and "300 MB" in text
    assert _kept() == replace(measured, **idle)
    calibrate(quick=True)
    assert "idle" not in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    heavy = "('torch', 'polars', 'altair', 'numba', 'rich.table')"
    imports = "import sys, steelyard.cli.catalog, steelyard.cli.calibrate, steelyard.catalog"
    code = f"{imports}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
