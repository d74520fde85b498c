import sqlite3

import pytest

from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs import Ledger, RunStore
from steelyard.runs.wording import check_words, summary_words


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


def at_pace(measured: float, slowdown: float) -> Check:
    said = Forecast(
        quantity="train.step_time",
        value=1.0,
        low=0.9,
        high=1.1,
        provenance="fitted",
        source="s",
        pace_s=2e-3,
    )
    return Check(
        said,
        Measurement(quantity="train.step_time", value=measured, pace_s=2e-3 * slowdown),
    )


def test_a_check_remembers_at_which_speed_it_was_measured(tmp_path) -> None:
    ledger = Ledger(RunStore(tmp_path))
    ledger.record("cost", [at_pace(1.4, 1.4)], "run-a")
    ((_, item),) = ledger.checks()
    assert item.slowdown == pytest.approx(1.4)
    assert item.relative_error == pytest.approx(-0.4 / 1.4)
    assert item.error_at_equal_speed == pytest.approx(0.0)
    assert not item.covered and item.covered_at_equal_speed


def test_a_store_of_an_earlier_version_is_read(tmp_path) -> None:
    store = RunStore(tmp_path)
    with store.create("train", {}, seed=0) as run:
        run.forecast(pair(1.1, 1.0).forecast)
        run.measure(pair(1.1, 1.0).measurement)
    Ledger(store).record("law", [pair(1.1, 1.0)], run.id)
    # What stands in the files is what the version before the speed of machines wrote.
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        for table, column in (
            ("forecasts", "pace_s"),
            ("measurements", "pace_s"),
            ("checks", "pace_s"),
            ("checks", "measured_pace_s"),
        ):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    reopened = RunStore(tmp_path)
    (item,) = reopened.check(run.id)
    assert (item.slowdown, item.forecast.pace_s) == (1.0, 0.0)
    Ledger(reopened).record("cost", [at_pace(1.4, 1.4)], run.id)
    assert [found.slowdown for _, found in Ledger(reopened).checks()] == pytest.approx([1.0, 1.4])


def test_the_verdict_says_that_the_machine_changed() -> None:
    same, slower = at_pace(1.2, 1.02), at_pace(1.4, 1.4)
    assert check_words(same)[3:] == ("−16.7 %", "outside")
    assert check_words(slower)[3:] == (
        "−28.6 % (±0.0 % at equal speed)",
        "outside: machine 1.40x slower",
    )
    assert "at equal speed 1 of these 1 lie inside" in summary_words([same, slower])
    assert "speed" not in summary_words([same])
