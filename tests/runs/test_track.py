"""How the forms of a law did before: a store replayed in time order gives what stood each time."""

import json

import numpy as np
import pytest

from steelyard.cli.main import main
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore
from steelyard.runs.track import FormPast, replay_forms

FORMS = ("chinchilla", "kaplan", "largest run")


def keep(store, number, errors, quantity="eval.loss"):
    """Write down what forms said about a run that was measured at a time."""
    ledger = Ledger(store)
    measured = Measurement(quantity=quantity, value=3.0, time_s=100.0 + number)
    for name, error in errors.items():
        said = Forecast.about(
            quantity, 3.0 * (1 + error), relative=0.02, provenance="fitted", source="s"
        )
        ledger.record(f"laws.{name}", [Check(said, measured)], f"run{number}")


def history(count=9):
    random = np.random.default_rng(0)
    # The last form joins late: it was not there in the first runs.
    return [
        dict(zip(FORMS[: 2 + (number > 3)], random.normal(0, 0.02, 3).tolist(), strict=False))
        for number in range(count)
    ]


def counted(runs):
    """Count anew, the slow way."""
    past = {}
    for name in FORMS:
        own = [errors for errors in runs if name in errors]
        if own:
            won = sum(abs(errors[name]) == min(map(abs, errors.values())) for errors in own)
            held = sum(abs(errors[name]) <= 0.02 * (1 + errors[name]) for errors in own)
            past[name] = FormPast(len(own), held, len(own), won)
    return past


def test_a_store_replayed_gives_the_counts_that_stood_at_each_time(tmp_path):
    store, runs = RunStore(tmp_path), history()
    stood = []
    for number, errors in enumerate(runs):
        stood.append(replay_forms(tmp_path)[-1].past)
        keep(store, number, errors)
    found = replay_forms(tmp_path)
    assert [entry.run_id for entry in found] == [*(f"run{n}" for n in range(9)), ""]
    assert [entry.past for entry in found[:-1]] == stood
    assert [entry.past for entry in found] == [counted(runs[:n]) for n in range(10)]


def test_runs_count_in_the_order_they_were_measured_in(tmp_path):
    runs = history()
    store = RunStore(tmp_path)
    for number in (4, 0, 8, 2, 1, 3, 7, 6, 5):
        keep(store, number, runs[number])
    assert [entry.past for entry in replay_forms(tmp_path)] == [
        counted(runs[:n]) for n in range(10)
    ]


def test_the_mean_of_the_forms_and_other_quantities_take_no_part(tmp_path):
    store = RunStore(tmp_path)
    keep(store, 0, {"chinchilla": 0.01, "forecast": 0.0})
    keep(store, 1, {"kaplan": 0.0}, quantity="train.step_time")
    [_, now] = replay_forms(tmp_path)
    # Alone, a form is not nearest of anything.
    assert now.past == {"chinchilla": FormPast(runs=1, held=1)}
    assert str(now.past["chinchilla"]) == "held 1 of 1"


def test_a_store_that_is_not_there_has_no_past(tmp_path):
    [now] = replay_forms(tmp_path / "none")
    assert now.run_id == "" and not now.past and not (tmp_path / "none").exists()


def test_compare_and_forecast_show_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    keep(RunStore(tmp_path / "runs"), 0, {"power_law:samples": 0.01, "rectified:samples": 0.05})
    samples = np.geomspace(1e3, 1e7, 12)
    loss = (0.4 + 8.0 / samples**0.3) * np.exp(0.01 * np.sin(np.arange(12)))
    rows = [f"{x},{y}" for x, y in zip(samples, loss, strict=True)]
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(["samples,loss", *rows]) + "\n")

    def ask(*words):
        with pytest.raises(SystemExit) as ended:
            main(["laws", *words])
        assert not ended.value.code
        return " ".join(capsys.readouterr().out.split())

    forms = ("--law", "power_law:samples,rectified:samples")
    for words in (
        ("compare", str(file), *forms),
        ("forecast", str(file), *forms, "--at", "samples=1e8"),
    ):
        said = ask(*words)
        assert "nearest in 1 of 1, held 1 of 1" in said and "nearest in 0 of 1, held 0 of 1" in said
        past = json.loads(ask(*words, "--json"))["past"]
        assert past["power_law:samples"] == {"runs": 1, "held": 1, "contests": 1, "wins": 1}
