import math

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.forms.routed import (
    cutoff,
    effective_parameters,
    level_curve,
    routed,
    routed_coefficients,
    routed_points,
)

# Clark et al. 2022 (arXiv 2202.01169), table 3; base 10
S_BASE = {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104, "E_start": 1.85, "E_max": 314.0}
SIZES = np.repeat(10 ** np.linspace(7.2, 9.1, 6), 8)
EXPERTS = np.tile([1.0, 2, 4, 8, 16, 64, 256, 512], 6)


def by_hand(n, e, p):
    """Return log10 of the loss as the paper writes it."""
    spread = 1 / (1 / (e - 1 + (1 / p["E_start"] - 1 / p["E_max"]) ** -1) + 1 / p["E_max"])
    return (
        p["a"] * np.log10(n)
        + p["b"] * np.log10(spread)
        + p["c"] * np.log10(n) * np.log10(spread)
        + p["d"]
    )


def published(law=None, **changes):
    law = law or routed()
    return laws.Fit(
        law=law,
        theta=law.coordinates(S_BASE | changes),
        samples=np.zeros((0, 6)),
        provenance="published",
    )


@pytest.fixture(scope="module")
def fitted():
    noise = 0.003 * np.random.default_rng(0).standard_normal(len(SIZES))
    loss = 10 ** by_hand(SIZES, EXPERTS, S_BASE) * np.exp(noise)
    return laws.fit(
        routed(),
        {"parameters": SIZES, "experts": EXPERTS},
        loss,
        delta=math.inf,
        bootstrap=laws.Bootstrap(count=100),
    )


def test_prediction_is_the_printed_formula():
    said = published().predict({"parameters": SIZES, "experts": EXPERTS}).value
    assert np.log10(said) == pytest.approx(by_hand(SIZES, EXPERTS, S_BASE), abs=1e-12)


@pytest.mark.parametrize(
    "arguments", [(), ("utilization",), ("experts", "unsaturated"), ("utilization", False)]
)
def test_gradient_is_the_numeric_one(arguments):
    law = routed(*arguments)
    inputs = dict(zip(law.inputs, (SIZES, EXPERTS), strict=True))
    theta = np.array([[-0.08, -0.11, 0.01, 1.1, 0.7, 5.5], [-0.02, -0.3, -0.02, 0.4, 0.0, 3.3]])[
        :, : len(law.names)
    ]
    gradient = law.evaluate(theta, inputs)[1]
    for index in range(len(law.names)):
        step = np.zeros(len(law.names))
        step[index] = 1e-6
        numeric = (law.predict(theta + step, inputs) - law.predict(theta - step, inputs)) / 2e-6
        assert gradient[:, index] == pytest.approx(numeric, rel=1e-6, abs=1e-7)


def test_saturation_runs_from_start_to_max():
    fit = published()
    many = fit.law.predict(
        fit.theta[None], {"parameters": np.array([1e8]), "experts": np.array([1e15])}
    )[0]
    dense = S_BASE["a"] + S_BASE["c"] * math.log10(314)
    assert many[0] / math.log(10) == pytest.approx(
        dense * 8 - 0.108 * math.log10(314) + 1.104, abs=1e-9
    )


def test_fit_recovers_the_published_coefficients(fitted):
    assert fitted.params["a"] == pytest.approx(-0.082, abs=0.003)
    for name in ("b", "c"):
        low, high = fitted.interval(name, 0.99)
        assert low <= S_BASE[name] <= high
    plain = laws.fit(
        routed(saturation=False),
        fitted.inputs,
        fitted.target,
        delta=math.inf,
        bootstrap=laws.Bootstrap(count=0),
    )
    assert np.sqrt(np.mean(fitted.residuals**2)) < 0.9 * np.sqrt(np.mean(plain.residuals**2))


def test_json_round_trip_knows_the_form(fitted):
    again = laws.Fit.from_json(fitted.to_json(), law=routed())
    assert again.params == fitted.params and again.law.name == "routed:experts"


def test_effective_parameters_put_all_models_on_the_dense_line(fitted):
    dense = effective_parameters(fitted, SIZES, EXPERTS)
    line = fitted.predict({"parameters": dense.value, "experts": np.ones(len(SIZES))}).value
    law = fitted.predict(fitted.inputs).value
    assert np.log(line) == pytest.approx(np.log(law), abs=1e-9)
    assert dense.value[EXPERTS == 1] == pytest.approx(SIZES[EXPERTS == 1], rel=1e-9)
    assert (dense.low <= dense.value).all() and (dense.value <= dense.high).all()


def test_level_curve_reaches_its_loss():
    fit = published()
    experts = np.array([1.0, 16, 128])
    sizes = level_curve(fit, 2.4, experts)
    assert fit.predict({"parameters": sizes.value, "experts": experts}).value == pytest.approx(
        np.full(3, 2.4), rel=1e-9
    )
    assert (np.diff(sizes.value) < 0).all()
    with pytest.raises(FitError, match="cannot be reached"):
        level_curve(fit, -1.0, experts)


def test_cutoff_is_where_experts_stop_paying(fitted):
    size = cutoff(published()).value
    assert size == pytest.approx(
        10**12.0, rel=1e-9
    )  # 10^(.108/.009) with the printed digits; the paper's own fit says 937e9
    losses = published().predict({"parameters": np.full(3, size), "experts": [1.0, 8, 512]}).value
    assert losses == pytest.approx(np.full(3, losses[0]), rel=1e-9)
    found = cutoff(fitted, 0.9)
    assert found.low < 1e12 < found.high and found.high / found.low > 3
    assert cutoff(published(c=-0.001)).value == math.inf


def test_natural_coefficients_are_converted_and_the_base_must_be_said():
    natural = {**S_BASE, "c": 0.009 / math.log(10), "d": 1.104 * math.log(10)}
    assert routed_coefficients(**natural, log_base=math.e) == pytest.approx(S_BASE, rel=1e-12)
    assert routed_coefficients(**S_BASE, log_base=10) == S_BASE
    with pytest.raises(TypeError, match="log_base"):
        routed_coefficients(**S_BASE)
    with pytest.raises(FitError, match="base 1"):
        routed_coefficients(**S_BASE, log_base=1)
    with pytest.raises(FitError, match="E_start"):
        routed_coefficients(**(S_BASE | {"E_start": 500.0}), log_base=10)


def test_one_number_of_experts_cannot_be_fitted():
    with pytest.raises(FitError, match="experts is 8 in every row"):
        laws.fit(routed(), {"parameters": SIZES, "experts": np.full(48, 8.0)}, SIZES**-0.05)


@pytest.mark.parametrize(
    ("experts", "chosen", "words"),
    [
        ([0, 2, 4], 1, "experts are .*; rows 1 .0."),
        ([1, 2.5, 4], 1, "experts are .*; rows 2"),
        ([1, 2, 4], 8, "experts_per_token .*; rows 2 .8., 3"),
        ([1, 2, 4], [1, 0, 1], "experts_per_token .*; rows 2"),
    ],
)
def test_impossible_routing_is_refused_by_row(experts, chosen, words):
    with pytest.raises(FitError, match=words):
        routed_points([1e7, 1e8, 1e9], experts, experts_per_token=chosen)


def test_points_of_the_utilization_form():
    points = routed_points(
        [1e8, 1e8],
        [1, 8],
        experts_per_token=[1, 2],
        total_parameters=[1e8, 4e8],
        flop_ratio=[1, 1.25],
    )
    assert points["forward_parameters"].tolist() == [1e8, 1.25e8]
    assert points["utilization"].tolist() == [1.0, 3.2]
    with pytest.raises(FitError, match=r"total_parameters .*; rows 1"):
        routed_points([1e8], [8], total_parameters=[0])
    with pytest.raises(FitError, match="flop_ratio"):
        routed_points([1e8], [8], flop_ratio=-1)


def test_other_laws_are_refused():
    with pytest.raises(FitError, match="not a routed law"):
        cutoff(laws.published["besiroglu2024"].fit())
    with pytest.raises(FitError, match="a routed law by"):
        routed("layers")
