import pytest

from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs import Ledger, RunStore


def pair(forecast: float, measured: float, name: str = "eval.loss") -> Check:
    return Check(
        Forecast.about(name, forecast, relative=0.1, provenance="fitted", source="s"),
        Measurement(quantity=name, value=measured),
    )


def test_summary_is_per_forecaster_and_quantity(tmp_path) -> None:
    ledger = Ledger(RunStore(tmp_path))
    assert ledger.summary() == []
    ledger.record("law", [pair(1.1, 1.0), pair(2.0, 1.0, "train.step_time")], "run-a")
    ledger.record("law", [pair(0.95, 1.0)], "run-b")
    ledger.record("law", [pair(1.3, 1.0)], "run-c")
    ledger.record("guess", [pair(1.0, 1.0)], "run-a")
    rows = {(row.forecaster, row.quantity): row for row in ledger.summary()}
    assert list(rows) == [("guess", "eval.loss"), ("law", "eval.loss"), ("law", "train.step_time")]
    row = rows["law", "eval.loss"]
    assert row.count == 3
    assert row.bias == pytest.approx((0.1 - 0.05 + 0.3) / 3)
    assert row.median_error == pytest.approx(0.1)
    assert row.coverage == pytest.approx(2 / 3)


def test_the_same_run_replaces_and_no_run_adds(tmp_path) -> None:
    ledger = Ledger(RunStore(tmp_path))
    for measured in (1.0, 2.0):
        ledger.record("law", [pair(2.0, measured)], "run-a")
    assert [(row.count, row.bias) for row in ledger.summary()] == [(1, 0.0)]
    ledger.record("law", [pair(2.0, 1.0)])
    ledger.record("law", [pair(2.0, 1.0)])
    assert [row.count for row in ledger.summary()] == [3]
    assert ledger.checks("law")[0][1] == Check(
        ledger.checks()[0][1].forecast, ledger.checks()[0][1].measurement
    )
    assert ledger.checks("nobody") == []


def test_a_forecaster_keeps_its_record_under_a_new_name(tmp_path) -> None:
    ledger = Ledger(RunStore(tmp_path))
    ledger.record("sim.serving", [pair(1.1, 1.0, "serve.tpot")], "run-a")
    ledger.record("serve.simulate", [pair(1.2, 1.0, "serve.tpot")], "run-b")
    (row,) = ledger.summary()
    assert (row.forecaster, row.count) == ("serve.simulate", 2)
    assert len(ledger.checks("serve.simulate")) == 2
