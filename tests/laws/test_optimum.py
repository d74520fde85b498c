import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.decisions.optima.learning_rate import LEARNING_RATE_PENALTY

RATES = np.geomspace(1e-4, 1.6e-2, 9)
BEST = 1.3e-3


def valley(x, best=BEST, curvature=0.02, floor=2.5):
    return floor + curvature * np.log(np.asarray(x) / best) ** 2


def test_exact_quadratic_is_found_exactly():
    found = laws.optimum(RATES, valley(RATES))
    assert found.value == pytest.approx(BEST, rel=1e-9)
    assert found.least == pytest.approx(2.5, rel=1e-12)
    assert found.curvature == pytest.approx(0.02, rel=1e-9)
    assert (
        found.num_points == 5
        and found.edge == "none"
        and found.skew == 0
        and found.stable_to == math.inf
    )
    assert found.low == pytest.approx(BEST, rel=1e-5) and found.high == pytest.approx(
        BEST, rel=1e-5
    )


def test_identity_transform():
    x = np.linspace(-2, 3, 8)
    found = laws.optimum(x, 1 + 0.1 * (x - 0.4) ** 2, transform="identity")
    assert found.value == pytest.approx(0.4) and found.curvature == pytest.approx(0.1)


def test_far_points_do_not_bend_the_optimum():
    steep = valley(RATES) * np.where(RATES > 1e-2, 1.2, 1.0)
    assert laws.optimum(RATES, steep).value == pytest.approx(BEST, rel=1e-6)
    everything = np.polyfit(np.log(RATES), steep, 2)
    assert abs(-everything[1] / 2 / everything[0] - math.log(BEST)) > 0.1


def test_interval_equals_the_textbook_delta_method():
    from scipy.stats import t

    generator = np.random.default_rng(0)
    loss = valley(RATES) + 1e-3 * generator.standard_normal(9)
    best = int(loss.argmin())
    x, y = np.log(RATES[best - 2 : best + 3]), loss[best - 2 : best + 3]
    design = np.vander(x - x.mean(), 3, increasing=True)
    c = np.linalg.solve(design.T @ design, design.T @ y)
    covariance = ((y - design @ c) ** 2).sum() / 2 * np.linalg.inv(design.T @ design)
    slope = np.array([0, -1 / (2 * c[2]), c[1] / (2 * c[2] ** 2)])
    sd = math.sqrt(slope @ covariance @ slope)
    center = x.mean() - c[1] / (2 * c[2])
    found = laws.optimum(RATES, loss, level=0.8)
    assert math.log(found.value) == pytest.approx(center, abs=1e-9)
    assert found.sd == pytest.approx(sd, rel=1e-6)
    assert math.log(found.high) == pytest.approx(center + t.ppf(0.9, 2) * sd, abs=1e-7)


@pytest.mark.parametrize("interval", ["delta", "bootstrap"])
def test_coverage_of_synthetic_quadratics(interval):
    inside = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        best = math.log(BEST) + generator.uniform(-1, 1)
        loss = valley(RATES, math.exp(best)) + 2e-3 * generator.standard_normal(9)
        found = laws.optimum(RATES, loss, level=0.9, interval=interval, at_edge="keep", seed=seed)
        inside.append(math.log(found.low) <= best <= math.log(found.high))
    assert 0.8 < np.mean(inside) < 0.99


def test_cubic_is_taken_when_it_predicts_better():
    z = np.log(RATES / BEST)
    loss = 2.5 + 0.02 * z**2 + 0.006 * z**3
    cubic, quadratic = laws.optimum(RATES, loss, local=7), laws.optimum(RATES, loss)
    assert cubic.skew == pytest.approx(0.006, rel=1e-6)
    assert cubic.value == pytest.approx(BEST, rel=1e-6)
    assert abs(math.log(quadratic.value / BEST)) > 0.01 and quadratic.skew == 0
    assert laws.optimum(RATES, valley(RATES) + 1e-4 * np.cos(40 * z), local=7).num_points == 7


def test_bootstrap_of_a_flat_valley_is_endless_where_delta_is_not():
    loss = 2.5 + np.array([0.004, 0.001, 0.003, 0.0, 0.002, 0.0035, 0.001, 0.004, 0.006])
    found = laws.optimum(RATES, loss, interval="bootstrap", level=0.95)
    delta = laws.optimum(RATES, loss, level=0.95)
    assert found.value == delta.value and found.low <= found.value <= found.high
    assert found.low == 0 and delta.low > 0


def test_diverged_runs_are_kept_for_the_stability_edge():
    loss = valley(RATES)
    loss[7:] = np.inf, np.nan
    found = laws.optimum(RATES, loss)
    assert found.num_diverged == 2 and found.stable_to == pytest.approx(RATES[6])
    assert found.value == pytest.approx(BEST, rel=1e-6)
    high = np.where(RATES > 8e-3, 7.0, valley(RATES))
    assert laws.optimum(RATES, high).num_diverged == 2
    assert laws.optimum(RATES, high, divergence_ratio=math.inf).num_diverged == 0


def test_seeds_are_merged_without_the_diverged_ones():
    x = np.repeat(RATES, 3)
    loss = valley(x) + np.tile([0.01, 0.0, -0.01], 9)
    spoiled = loss.copy()
    spoiled[3 * 5] = np.inf
    mean, least = laws.optimum(x, loss), laws.optimum(x, loss, seeds="min")
    assert mean.value == pytest.approx(BEST, rel=1e-6) and mean.least == pytest.approx(2.5)
    assert least.least == pytest.approx(2.49)
    found = laws.optimum(x, spoiled)
    assert found.num_diverged == 1 and found.stable_to == pytest.approx(RATES[4])


def test_weights_follow_known_noise():
    loss = valley(RATES)
    loss[6] += 0.01
    even = laws.optimum(RATES, loss)
    trusted = laws.optimum(RATES, loss, sd=np.where(np.arange(9) == 6, 0.1, 1e-3))
    assert abs(math.log(trusted.value / BEST)) < 0.01 * abs(math.log(even.value / BEST))


@pytest.mark.parametrize(
    ("best", "edge", "further"), [(1e-5, "low", RATES[0]), (1.0, "high", RATES[-1])]
)
def test_an_optimum_at_the_edge_is_refused_or_kept_open(best, edge, further):
    loss = valley(RATES, best)
    with pytest.raises(FitError, match=f"{edge} edge of the grid") as caught:
        laws.optimum(RATES, loss)
    found = laws.optimum(RATES, loss, at_edge="keep")
    assert found.edge == edge and found.sd == math.inf
    step = RATES[1] / RATES[0]
    sign = 1 if edge == "high" else -1
    assert found.further == pytest.approx((further * step**sign, further * step ** (2 * sign)))
    assert f"{found.further[0]:.4g}" in caught.value.hint
    assert found.high == math.inf if edge == "high" else found.low == 0


def test_an_edge_at_divergence_asks_for_values_between():
    loss = np.where(RATES > 4e-3, np.inf, valley(RATES, 1.0))
    found = laws.optimum(RATES, loss, at_edge="keep")
    stable, wall = RATES[RATES <= 4e-3].max(), RATES[RATES > 4e-3].min()
    assert found.edge == "high" and all(stable < value < wall for value in found.further)


@pytest.mark.parametrize(
    ("x", "loss", "options", "message"),
    [
        (RATES[:3], valley(RATES[:3]), {}, "only 3 settings converged"),
        (RATES, np.full(9, np.inf), {}, "only 0 settings"),
        (-RATES, valley(RATES), {}, "settings must be positive and finite; rows 1 .-0.0001."),
        (RATES, valley(RATES[:5]), {}, "9 settings and 5 losses"),
        (RATES, valley(RATES), {"local": 3}, "at least 4"),
        (RATES, valley(RATES), {"level": 1.0}, "in 0..1"),
        (RATES, valley(RATES), {"sd": 0.0}, "sd must be positive"),
        (RATES, np.where(np.arange(9) == 2, -np.inf, 2.0), {}, "above -inf; rows 3"),
        (RATES[:6], [3, 2.6, 2.9, 2.59, 2.6, 2.61], {"local": 4}, "do not curve upwards"),
    ],
)
def test_bad_sweeps_are_refused(x, loss, options, message):
    with pytest.raises(FitError, match=message):
        laws.optimum(x, loss, **options)


def table():
    rows = [(n, d, x) for n in (1e6, 4e6) for d in (1e8, 4e8) for x in RATES]
    size, tokens, rate = map(np.array, zip(*rows, strict=True))
    return {
        "parameters": size,
        "tokens": tokens,
        "rate": rate,
        "loss": valley(rate, BEST * (size / 1e6) ** -0.5),
    }


def test_optima_of_cells():
    points = table()
    points["loss"][(points["parameters"] == 4e6) & (points["tokens"] == 1e8)] = valley(RATES, 10.0)
    found = laws.optima(points, "rate", "loss", ("parameters", "tokens"))
    assert len(found) == 3 and len(found.refused) == 1
    assert (
        found.refused[0][0] == {"parameters": 4e6, "tokens": 1e8} and "edge" in found.refused[0][1]
    )
    columns = found.columns
    assert columns["rate"] == pytest.approx(BEST * (columns["parameters"] / 1e6) ** -0.5, rel=1e-6)
    assert found.weights() == pytest.approx(np.ones(3), rel=1e-3)
    assert len(found.where(columns["tokens"] == 4e8)) == 2
    schedules = {**points, "schedule": np.where(points["rate"] > 1e-2, "cosine", "linear")}
    with pytest.raises(
        FitError,
        match=r"schedule is mixed in the cell parameters 1e\+06, tokens 1e\+08: cosine, linear",
    ):
        laws.optima(schedules, "rate", "loss", ("parameters", "tokens"), same=("schedule",))
    with pytest.raises(FitError, match="no column batch"):
        laws.optima(points, "rate", "loss", ("batch",))
    with pytest.raises(FitError, match="none of the 4 cells"):
        laws.optima(
            {**table(), "loss": np.arange(36.0)[::-1] + 100},
            "rate",
            "loss",
            ("parameters", "tokens"),
        )


def test_recommended_quantile_minimizes_the_expected_penalty():
    penalty, sd = laws.rates.Penalty(0.7, 1.9), 0.4
    grid = np.linspace(-6, 6, 40001)
    density = norm.pdf(grid)

    def expected(place):
        return float(np.trapezoid(density * penalty.at(np.exp(sd * (place - grid))), grid))

    best = minimize_scalar(expected, bounds=(-2, 1), method="bounded")
    assert penalty.shift == pytest.approx(best.x, abs=1e-3)
    assert penalty.expected(sd) == pytest.approx(best.fun, rel=1e-4)
    assert penalty.expected(sd, 0.5) == pytest.approx(expected(0.5), rel=1e-4)
    assert laws.rates.Penalty(1.0, 1.0).quantile == pytest.approx(0.5)
    assert penalty.quantile == pytest.approx(norm.cdf(best.x), abs=1e-3)


def test_published_penalty_recommends_a_low_quantile():
    assert LEARNING_RATE_PENALTY.at([0.5, 1.0, 2.0]) == pytest.approx([0.0034, 0, 0.0080])
    assert 0.35 <= LEARNING_RATE_PENALTY.quantile <= 0.40


def test_penalty_is_measured_on_both_sides():
    ratio = np.array([0.3, 0.4, 0.5, 1.0, 1.4, 2.0, 2.2, 8.0])
    truth = laws.rates.Penalty(0.01, 0.02)
    found = laws.rates.fit_penalty(ratio, truth.at(ratio) + (ratio > 4))
    assert (found.below, found.above) == pytest.approx((0.01, 0.02))
    with pytest.raises(FitError, match="both sides"):
        laws.rates.fit_penalty(ratio[:4], truth.at(ratio[:4]))
    with pytest.raises(FitError, match="positive and finite"):
        laws.rates.Penalty(0.0, 1.0)
