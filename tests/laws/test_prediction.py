import os
import warnings
from pathlib import Path

import numpy as np
import polars
import pytest

from steelyard import laws
from steelyard.errors import FitError

LAW = laws.chinchilla()
SHARED = Path(
    os.environ.get("STEELYARD_SHARED") or Path(__file__).resolve().parents[2] / "../shared"
)


def truth(sizes, tokens):
    return 1.2 + 30 / sizes**0.25 + 400 / tokens**0.4


def small_study(seed, noise=0.004):
    generator = np.random.default_rng(seed)
    sizes = np.repeat([1e5, 3e5, 6e5, 1.2e6], 4)
    tokens = np.tile([5e5, 1e6, 2e6, 4e6], 4)
    return {"parameters": sizes, "tokens": tokens}, truth(sizes, tokens) * np.exp(
        noise * generator.standard_normal(16)
    )


@pytest.fixture(scope="module")
def fitted():
    return laws.fit(LAW, *small_study(0))


def test_a_small_study_uses_weak_priors_and_stays_in_bounds(fitted):
    assert set(fitted.prior) == {"E", "alpha", "beta"} and fitted.resampling == "noise"
    assert not fitted.at_bounds
    assert len(fitted.samples) == 300


def extrapolations(repeats):
    errors, covered = [], []
    for seed in range(repeats):
        fit = laws.fit(LAW, *small_study(seed), bootstrap=laws.Bootstrap(count=40, seed=seed))
        said = fit.predict({"parameters": 4e6, "tokens": 8e6})
        actual = truth(4e6, 8e6)
        errors.append(abs(said.value[0] / actual - 1))
        covered.append(said.low[0] <= actual <= said.high[0])
    return np.mean(errors), np.mean(covered)


def test_small_studies_extrapolate_within_their_intervals():
    error, covered = extrapolations(12)
    assert error < 0.02
    assert covered >= 0.7


@pytest.mark.slow
def test_intervals_of_small_studies_cover_at_least_as_they_say():
    error, covered = extrapolations(80)
    assert error < 0.015
    assert covered >= 0.8


def test_intervals_widen_with_level_and_with_distance(fitted):
    near, far = ({"parameters": size, "tokens": 4e6} for size in (1e6, 3e7))
    assert fitted.distance(near)[0] == 0 and fitted.distance(far)[0] == pytest.approx(np.log(25))
    narrow, wide = fitted.predict(near, level=0.5), fitted.predict(near, level=0.9)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    beyond = fitted.predict(far, level=0.5)
    assert np.log(beyond.high / beyond.low) > np.log(narrow.high / narrow.low)
    for level in (0.0, 1.0):
        with pytest.raises(FitError, match="level"):
            fitted.predict(near, level=level)
    with pytest.raises(FitError, match="no parameter"):
        fitted.interval("gamma")


def test_json_round_trip_is_exact(fitted):
    text = fitted.to_json()
    again = laws.Fit.from_json(text)
    assert again.to_json() == text
    assert (
        again.law == fitted.law
        and np.array_equal(again.samples, fitted.samples)
        and again.params == fitted.params
    )
    where = {"parameters": [1e7, 2e7], "tokens": 1e7}
    assert np.array_equal(again.predict(where).low, fitted.predict(where).low)
    size = np.geomspace(1, 100, 9)
    line = laws.fit(
        laws.power_law("samples", floor=False),
        {"samples": size},
        3 / size**0.5,
        bootstrap=laws.Bootstrap(count=0),
    )
    assert laws.Fit.from_json(line.to_json()).to_json() == line.to_json()
    for broken in ("{}", "[]", "nonsense", text.replace('"chinchilla"', '"unheard"')):
        with pytest.raises(FitError):
            laws.Fit.from_json(broken)


def test_holdout_predicts_the_largest_points(fitted):
    held = fitted.holdout("parameters", 0.2)
    assert (held.inputs["parameters"] == 1.2e6).all() and len(held.measured) == 4
    assert held.mean_relative_error < 0.03
    assert held.coverage >= 0.5
    with pytest.raises(FitError, match="cannot hold out"):
        fitted.holdout("width")
    with pytest.raises(FitError, match="fraction"):
        fitted.holdout(fraction=1.0)


def test_a_law_that_bends_away_gets_a_larger_drift():
    inputs, loss = small_study(1, noise=0.001)
    bent = loss * (1 + 0.03 * np.log(inputs["parameters"] / 1e5) ** 2)
    drifts = [
        laws.fit(LAW, inputs, target, bootstrap=laws.Bootstrap(count=1)).drift
        for target in (loss, bent)
    ]
    assert drifts[1] > 2 * drifts[0]


def test_flat_directions_are_named():
    sizes, tokens = np.repeat([1e6, 1.1e6, 1.2e6], 8), np.tile(np.geomspace(1e6, 1e9, 8), 3)
    generator = np.random.default_rng(2)
    loss = truth(sizes, tokens) * np.exp(0.003 * generator.standard_normal(24))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = laws.fit(
            LAW,
            {"parameters": sizes, "tokens": tokens},
            loss,
            bootstrap=laws.Bootstrap(count=0),
            prior=None,
        )
    assert "A" in fit.flat_directions[0].components or "E" in fit.flat_directions[0].components
    assert fit.condition_number > 1e4
    assert "moves by" in str(fit.flat_directions[0])


def test_overtrained_runs_extrapolate():
    path = SHARED / "data" / "overtrained-lm" / "runs.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    runs = polars.read_csv(path)
    flops = 6.0 * runs["params"] * runs["tokens"]
    errors, covered = [], []
    for name in ("c4", "rpj", "rw"):
        small, large = (
            runs.filter((runs["train_set"] == name) & side) for side in (flops < 2e19, flops > 1e20)
        )
        columns = [
            {"parameters": part["params"].to_numpy(), "tokens": part["tokens"].to_numpy()}
            for part in (small, large)
        ]
        fit = laws.fit(LAW, columns[0], small["loss_c4_val"].to_numpy())
        said, actual = fit.predict(columns[1]), large["loss_c4_val"].to_numpy()
        errors += list(np.abs(said.value / actual - 1))
        covered += list((said.low <= actual) & (actual <= said.high))
    assert len(errors) == 8
    assert np.mean(errors) <= 0.015
    assert np.mean(covered) >= 0.8
