import csv
import json

import numpy as np
import pytest

from steelyard.laws.forms.schedules.schedule import multi_power
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

PEAK, WARMUP, STEPS = 1e-3, 40, 600
TRUTH = {"L0": 2.5, "A": 0.4, "alpha": 0.5, "B": 100.0, "C": 0.6, "beta": 0.6, "gamma": 0.65}
RATES = {
    "constant": LearningRates.constant(STEPS, PEAK, WARMUP),
    "cosine": LearningRates.cosine(STEPS, PEAK, WARMUP),
    "two": LearningRates.two_stage(STEPS, PEAK, 3e-4, 300, WARMUP),
}


def losses(rates, steps, truth):
    law = multi_power([rates])
    inputs = {"schedule": np.ones(len(steps)), "step": np.asarray(steps, dtype=float)}
    return np.exp(law.predict(law.coordinates(truth)[None], inputs))[0]


@pytest.fixture
def table(tmp_path):
    steps = np.arange(60, STEPS, 20)
    lines = ["model,schedule,step,lr,loss"]
    for model, names, floor in (("small", RATES, 2.5), ("large", ["cosine"], 2.2)):
        for name in names:
            rates = RATES[name]
            column = losses(rates, steps, {**TRUTH, "L0": floor}) * np.exp(
                2e-4 * np.random.default_rng(len(lines)).standard_normal(len(steps))
            )
            lines += [
                f"{model},{name},{step},{rates.rates[step]!r},{loss!r}"
                for step, loss in zip(steps.tolist(), column.tolist(), strict=True)
            ]
    path = tmp_path / "curves.csv"
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")
    return path


def test_schedule_is_found_written_and_predicted(table, tmp_path, run):
    common = (table, "--model", "small", "--warmup", WARMUP, "--bootstraps", 4)
    out = tmp_path / "best.csv"
    said = json.loads(run("schedule", *common, "--steps", 500, "--out", out, "--json"))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    rates = np.array([float(row["lr"]) for row in rows])
    assert len(rates) == 500 and rates.max() == pytest.approx(PEAK)
    assert (np.diff(rates[WARMUP:]) <= 0).all() and rates[-1] >= 0.099 * PEAK
    assert said["drift_source"] == "holdout" and said["best_rival"] in said["rivals"]
    truth = losses(LearningRates(rates), [499], TRUTH)[0]
    assert said["loss"]["low"] < truth < said["loss"]["high"]
    words = run("schedule", *common, "--steps", 600, "--predict", "cosine")
    assert "by leaving whole curves out" in words and "below the best" not in words


def test_another_size_lends_its_law(table, run):
    words = ("--steps", STEPS, "--warmup", WARMUP, "--bootstraps", 4, "--predict", "linear")
    said = json.loads(
        run("schedule", table, "--model", "large", "--like", "small", *words, "--json")
    )
    cooled = LearningRates.trapezoid(STEPS, PEAK, WARMUP, 0.2, "linear")
    truth = losses(cooled, [STEPS - 1], {**TRUTH, "L0": 2.2})[0]
    assert said["loss"]["low"] < truth < said["loss"]["high"]
    assert said["drift_source"] == "holdout" and said["rates"][-1]["step"] == STEPS - 1


def test_a_study_is_planned(run):
    said = json.loads(run("study", "--sizes", "33M,360M", "--json"))
    assert said["ratio"] == pytest.approx(0.6)
    assert said["sizes"][0]["branches"][0]["start"] == pytest.approx(0.8 * 330e6)
    assert "method" in run("study", "--sizes", "33M", "--method", "cosine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--steps", 500), "holds curves of 2 models"),
        (("--steps", 500, "--model", "huge"), "--model 'huge' has no curve"),
        (("--steps", 500, "--model", "small", "--like", "huge"), "--like 'huge' has no curve"),
        (("--steps", 500, "--model", "small", "--like", "small"), "names the model itself"),
        (("--steps", 500, "--model", "small", "--warmup", 80), "begins at step 60"),
        (("--steps", 1, "--model", "small"), "at least 2"),
    ],
)
def test_bad_input_of_a_schedule_is_named(table, run, words, message):
    assert message in run("schedule", table, *words, code=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedule,step,lr\na,1,1\n", "no column 'loss'"),
        ("schedule,step,lr,loss\na,1,0.1,2\na,2,0.1,x\n", "line 2: loss is '2'"),
        ("schedule,step,lr,loss\na,1,0.1,2\na,2,-0.1,2\n", "line 3: lr is -0.1"),
        ("schedule,step,lr,loss\na,1,0.1,2\na,1,0.1,2\n", "stand once"),
    ],
)
def test_a_bad_table_of_curves_is_named(tmp_path, run, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert message in run("schedule", path, "--steps", 500, code=2)


def test_a_study_for_a_width_needs_its_run(run):
    assert "--width needs --at" in run("study", "--sizes", "33M", "--width", "0.05", code=2)
    words = ("study", "--sizes", "33M", "--width", "0.05", "--published", "besiroglu2024")
    assert "lacks tokens" in run(*words, "--at", "parameters=3B", code=2)
