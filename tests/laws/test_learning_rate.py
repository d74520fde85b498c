import functools
import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.forms.learning_rate import LEARNING_RATE_LAWS

SHARED = Path(os.environ.get("STEELYARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
CELL = ("parameters", "tokens", "batch_tokens")
TRUTH = {
    "C": 200.0,
    "slope_tokens": 0.02,
    "slope_parameters": -0.65,
    "slope_batch_tokens": 0.33,
    "square": -0.14,
    "cube": 0.01,
    "tilt": 0.02,
    "bend": -0.01,
}


def truth(kind, **columns):
    law = laws.learning_rate(kind)
    theta = law.coordinates({name: TRUTH[name] for name in law.names})[None]
    return np.exp(
        law.predict(
            theta,
            {
                name: np.atleast_1d(np.asarray(value, dtype=float))
                for name, value in columns.items()
            },
        )[0]
    )


def sweep(kind="smooth", noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    rows = []
    for size in (1e8, 2e8, 5e8):
        for tokens in (2e9, 8e9, 3e10, 1e11):
            for batch in 2048 * 2.0 ** np.arange(5, 11):
                best = truth(kind, parameters=size, tokens=tokens, batch_tokens=batch)[0]
                rates = best * 2.0 ** np.arange(-4, 5) * math.exp(generator.uniform(-0.3, 0.3))
                loss = 2.5 + 0.02 * np.log(rates / best) ** 2 + noise * generator.standard_normal(9)
                rows += [
                    (size, tokens, batch, rate, value)
                    for rate, value in zip(rates, loss, strict=True)
                ]
    columns = np.array(rows).T
    return dict(zip((*CELL, "learning_rate", "loss"), columns, strict=True))


@functools.cache
def cells(kind="smooth", noise=0.0, seed=0):
    return laws.optima(sweep(kind, noise, seed), "learning_rate", "loss", CELL)


@pytest.mark.parametrize("kind", LEARNING_RATE_LAWS)
def test_gradients_equal_differences(kind):
    law = laws.learning_rate(kind)
    inputs = {
        "tokens": np.array([2e9, 5e10]),
        "parameters": np.array([1e8, 4e8]),
        "batch_tokens": np.array([1e5, 2e6]),
    }
    theta = law.coordinates({name: TRUTH[name] for name in law.names})
    _, gradient = law.evaluate(theta[None], inputs)
    for index in range(len(theta)):
        step = np.zeros(len(theta))
        step[index] = 1e-5
        difference = (
            law.predict((theta + step)[None], inputs) - law.predict((theta - step)[None], inputs)
        )[0] / 2e-5
        assert gradient[0, index] == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_laws_are_nested_and_named():
    for kind in LEARNING_RATE_LAWS:
        law = laws.learning_rate(kind)
        assert laws.law_named(law.name) == law
    assert [len(laws.learning_rate(kind).parameters) for kind in LEARNING_RATE_LAWS] == [
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]
    own = laws.learning_rate("cube", 0.3, 0.6)
    assert laws.law_named(own.name) == own and own.name == "learning_rate:cube:0.3:0.6"
    for arguments in (("cubic",), ("cube", 0.0), ("cube", 0.5, math.inf)):
        with pytest.raises(FitError):
            laws.learning_rate(*arguments)


def test_an_exact_sweep_gives_the_truth_and_equals_numpy():
    points = cells("curved")
    fit = laws.fit_learning_rate(
        points, laws.learning_rate("curved"), bootstrap=laws.Bootstrap(count=0)
    )
    for name, value in TRUTH.items():
        assert fit.params[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    noisy = cells("smooth", 1e-3)
    fit = laws.fit_learning_rate(
        noisy, laws.learning_rate("batch"), bootstrap=laws.Bootstrap(count=0)
    )
    columns, root = noisy.columns, np.sqrt(noisy.weights())
    design = np.stack(
        [
            np.ones(len(noisy)),
            *(np.log(columns[name]) for name in ("tokens", "parameters", "batch_tokens")),
        ],
        axis=1,
    )
    expected = np.linalg.lstsq(
        design * root[:, None], np.log(columns["learning_rate"]) * root, rcond=None
    )[0]
    assert fit.theta == pytest.approx(expected, rel=1e-5)


def test_leaving_horizons_out_prefers_the_true_law():
    points = cells("square", 1e-3)
    ranked = laws.leave_one_horizon_out(
        points, [laws.learning_rate(kind) for kind in ("size", "batch", "square", "smooth")]
    )
    assert ranked[0].law in ("learning_rate:square", "learning_rate:smooth")
    assert ranked[-1].law == "learning_rate:size"
    assert ranked[0].rms < 0.1 and ranked[0].r2 > 0.95
    short = points.where(points.columns["tokens"] < 1e10)
    with pytest.raises(FitError, match="2 training lengths"):
        laws.leave_one_horizon_out(short, [laws.learning_rate("size")])


def test_recommendation_lies_below_the_optimum_and_inside_its_interval():
    fit = laws.fit_learning_rate(cells(noise=1e-3), bootstrap=laws.Bootstrap(count=40))
    advice = laws.recommend_learning_rate(fit, 5e8, 1e11, 1e6)
    best = truth("smooth", parameters=5e8, tokens=1e11, batch_tokens=1e6)[0]
    assert advice.optimum == pytest.approx(best, rel=0.1)
    assert advice.low < advice.value < advice.optimum < advice.high
    assert (
        0.35 <= advice.quantile <= 0.4
        and 0 < advice.expected_penalty < 0.01
        and advice.distance == 0
    )
    capped = laws.recommend_learning_rate(fit, 5e8, 1e11, 1e6, stable_to=advice.low)
    assert (
        capped.is_capped
        and capped.value == advice.low
        and capped.expected_penalty > advice.expected_penalty
    )
    wider = laws.recommend_learning_rate(fit, 2e9, 1e12, 1e6)
    assert wider.distance > 1 and wider.high / wider.low > advice.high / advice.low


def test_recommendation_refuses_what_was_not_swept():
    fit = laws.fit_learning_rate(cells(noise=1e-3), bootstrap=laws.Bootstrap(count=10))
    with pytest.raises(FitError, match="beyond the swept"):
        laws.recommend_learning_rate(fit, 5e8, 1e11, 1e7)
    assert laws.recommend_learning_rate(fit, 5e8, 1e11, 1e7, extrapolate=True).value > 0
    with pytest.raises(FitError, match="two decades"):
        laws.recommend_learning_rate(fit, 5e11, 1e11, 1e6)
    with pytest.raises(FitError, match="not a learning-rate law"):
        laws.recommend_learning_rate(laws.published["kaplan2020"].fit(), 1e9, 1e11, 1e6)


def test_transfer_by_rule_and_by_fit():
    rule = laws.transfer_learning_rate(2e-3, 1e10, 8e10, 1e5)
    assert rule.is_rule_of_thumb and rule.is_valid and rule.beta == 0.32
    assert 2e-3 / rule.value == pytest.approx(8**0.32) == pytest.approx(1.95, abs=0.01)
    with pytest.warns(SteelyardWarning, match="above the best one"):
        assert not laws.transfer_learning_rate(2e-3, 1e10, 8e10, 2e6).is_valid
    fit = laws.fit_learning_rate(cells(), bootstrap=laws.Bootstrap(count=0))
    carried = laws.transfer_learning_rate(2e-3, 1e10, 8e10, 2e6, fitted=fit)
    best = truth("smooth", parameters=[1e9, 1e9], tokens=[1e10, 8e10], batch_tokens=[2e6, 2e6])
    assert carried.value == pytest.approx(2e-3 * best[1] / best[0], rel=1e-4)
    assert carried.beta < 0 and not carried.is_rule_of_thumb
    assert laws.transfer_learning_rate(2e-3, 1e10, 1e10, 2e6, fitted=fit).value == 2e-3
    with pytest.raises(FitError, match="not a learning-rate law"):
        laws.transfer_learning_rate(
            2e-3, 1e10, 8e10, 1e5, fitted=laws.published["kaplan2020"].fit()
        )
    with pytest.raises(FitError, match="positive"):
        laws.recommend_learning_rate(fit, 5e8, 1e11, 1e6, stable_to=0.0)
    with pytest.raises(FitError, match="positive"):
        laws.transfer_learning_rate(2e-3, 0.0, 1e10, 1e5)


def test_one_horizon_or_one_batch_is_refused():
    points = cells()
    with pytest.raises(FitError, match=r"tokens is 2e\+09 in every row"):
        laws.fit_learning_rate(
            points.where(points.columns["tokens"] == 2e9), laws.learning_rate("size")
        )
    with pytest.raises(FitError, match="constant or follows tokens"):
        laws.fit_learning_rate(points.where(points.columns["batch_tokens"] == 2048 * 64))
    one = laws.fit_learning_rate(
        points.where(points.columns["batch_tokens"] == 2048 * 64),
        laws.learning_rate("size"),
        bootstrap=laws.Bootstrap(count=0),
    )
    assert one.params["slope_parameters"] == pytest.approx(-0.65, abs=0.01)


def test_a_fit_survives_json():
    fit = laws.fit_learning_rate(
        cells(noise=1e-3), laws.learning_rate("smooth", 0.3, 0.6), bootstrap=laws.Bootstrap(count=5)
    )
    again = laws.Fit.from_json(fit.to_json())
    assert (
        again.law == fit.law
        and np.array_equal(again.samples, fit.samples)
        and again.delta == math.inf
    )


@pytest.mark.skipif(not (SHARED / "data" / "lr-batch-sweep").is_dir(), reason="shared data absent")
def test_published_sweep_changes_sign_with_the_batch():
    table = pl.read_csv(SHARED / "data" / "lr-batch-sweep" / "dense.csv")
    columns = {
        "learning_rate": table["lr"],
        "loss": table["smooth_loss"],
        "parameters": table["params"],
        "tokens": table["tokens"],
    }
    points = laws.optima(
        {**columns, "batch_tokens": table["batch_seqs"] * 2048}, "learning_rate", "loss", CELL
    )
    slopes = {}
    for sequences in (64, 512):
        rows = points.columns["batch_tokens"] == sequences * 2048
        slopes[sequences] = laws.fit_learning_rate(
            points.where(rows), laws.learning_rate("size"), bootstrap=laws.Bootstrap(count=0)
        ).params["slope_tokens"]
    assert slopes[64] < -0.2 and slopes[512] > 0.1
    errors = {
        item.law: item.rms
        for item in laws.leave_one_horizon_out(
            points, [laws.learning_rate(), laws.learning_rate("size")]
        )
    }
    assert errors["learning_rate:smooth"] <= 0.20 and errors["learning_rate:size"] > 0.4
