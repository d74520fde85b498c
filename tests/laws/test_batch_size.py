import math

import numpy as np
import pytest
from benchmarks.laws._least_squares import LeastSquares, averaged_risk
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import norm

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning

BATCHES = 2.0 ** np.arange(4, 13)
CLEAN = 1000 + 6e5 / BATCHES


def noisy(seed=0, size=0.03):
    return CLEAN * np.exp(size * np.random.default_rng(seed).standard_normal(len(BATCHES)))


@pytest.mark.parametrize(
    "law",
    [
        laws.steps_to_target(),
        laws.time_compute(),
        laws.batch_law(),
        laws.batch_law("tokens"),
        laws.batch_of_loss(),
    ],
)
def test_gradients_equal_differences_and_names_resolve(law):
    inputs = {name: np.array([3.0, 50.0, 900.0]) for name in law.inputs}
    theta = law.start_grid()[0] + 0.1
    _, gradient = law.evaluate(theta[None], inputs)
    for index in range(len(theta)):
        step = np.zeros(len(theta))
        step[index] = 1e-6
        difference = (
            law.predict((theta + step)[None], inputs) - law.predict((theta - step)[None], inputs)
        )[0] / 2e-6
        assert gradient[0, index] == pytest.approx(difference, rel=1e-5, abs=1e-6)
    assert laws.law_named(law.name) == law


def test_steps_without_caps_equal_least_squares():
    steps = noisy()
    fit = laws.fit_steps(BATCHES, steps, bootstrap=laws.Bootstrap(count=20))
    expected = laws.fit(
        laws.steps_to_target(),
        {"batch": BATCHES},
        steps,
        delta=math.inf,
        bootstrap=laws.Bootstrap(count=0),
        prior=None,
    )
    assert fit.theta == pytest.approx(expected.theta, abs=1e-5)
    assert fit.noise == pytest.approx(expected.noise, rel=1e-4)
    assert fit.params["a"] == pytest.approx(1000, rel=0.2) and fit.params["alpha"] == pytest.approx(
        1, abs=0.1
    )


@pytest.mark.parametrize("excess", [1.6, 2.5])
def test_censored_likelihood_equals_scipy(excess):
    steps = noisy(3)
    caps = excess * CLEAN[0] * BATCHES[0] / BATCHES
    censored = steps >= caps
    fit = laws.fit_steps(
        BATCHES, np.where(censored, np.nan, steps), caps, bootstrap=laws.Bootstrap(count=0)
    )

    def loss(point):
        center = np.logaddexp(point[0], point[1] - point[2] * np.log(BATCHES))
        sd = math.exp(point[3])
        seen = norm.logpdf(np.log(steps[~censored]), center[~censored], sd).sum()
        return -seen - norm.logsf(np.log(caps[censored]), center[censored], sd).sum()

    options = {"maxiter": 20000, "maxfev": 20000, "xatol": 1e-10, "fatol": 1e-12}
    best = minimize(
        loss, [math.log(1000), math.log(6e5), 1.0, -3.0], method="Nelder-Mead", options=options
    )
    seen = (~censored).sum()
    own = [*fit.theta, math.log(fit.noise) - 0.5 * math.log(seen / (seen - 3))]
    assert censored.sum() >= 2
    assert loss(own) <= best.fun + 1e-6
    assert fit.theta == pytest.approx(best.x[:3], rel=1e-3)
    assert (fit.target[censored] > caps[censored]).all()


def test_censored_runs_count():
    steps = noisy(5)
    caps = 2.2 * CLEAN[0] * BATCHES[0] / BATCHES
    reached = np.where(steps < caps, steps, np.inf)
    with_them = laws.critical_batch(
        laws.fit_steps(BATCHES, reached, caps, bootstrap=laws.Bootstrap(count=30)), reference=16.0
    )
    as_steps = laws.critical_batch(
        laws.fit_steps(BATCHES, np.minimum(steps, caps), bootstrap=laws.Bootstrap(count=0)),
        reference=16.0,
    )
    truth = 1.2 * 16 + 0.2 * 600
    assert abs(math.log(with_them.batch.value / truth)) < abs(
        math.log(as_steps.batch.value / truth)
    )
    assert with_them.batch.low < with_them.batch.value < with_them.batch.high


def test_critical_batch_of_the_exact_law():
    fit = laws.fit_steps(BATCHES, CLEAN, bootstrap=laws.Bootstrap(count=0))
    for overhead in (0.1, 0.2, 1.0):
        found = laws.critical_batch(fit, overhead=overhead, reference=16.0)
        assert found.batch.value == pytest.approx((1 + overhead) * 16 + overhead * 600, rel=1e-4)
    assert laws.critical_batch(fit).reference == pytest.approx(16.0)
    bent = laws.fit_steps(BATCHES, 100 + 1e6 / BATCHES**1.3, bootstrap=laws.Bootstrap(count=0))
    fewest = minimize_scalar(
        lambda x: x + math.log(100 + 1e6 * math.exp(-1.3 * x)), bounds=(3, 8), method="bounded"
    ).x
    assert laws.critical_batch(bent).reference == pytest.approx(math.exp(fewest), rel=0.02)


def test_perfect_scaling_has_no_critical_batch():
    fit = laws.fit_steps(BATCHES, 6e7 / BATCHES, bootstrap=laws.Bootstrap(count=0))
    assert laws.critical_batch(fit, reference=16.0).batch.value > 1e6


@pytest.mark.parametrize(
    ("batch", "steps", "caps", "message"),
    [
        (np.full(6, 64.0), CLEAN[:6], math.inf, "batch is 64 in every row"),
        (
            BATCHES,
            np.where(np.arange(9) == 8, np.nan, CLEAN),
            math.inf,
            "did not reach their target must be finite; rows 9 .inf.",
        ),
        (BATCHES, np.full(9, np.inf), 1e3, "0 of 9 runs reached"),
        (BATCHES, CLEAN, -1.0, "caps must be positive"),
        (-BATCHES, CLEAN, math.inf, "batch must be positive"),
        (BATCHES[:4], CLEAN[:4], math.inf, "4 points cannot fit"),
    ],
)
def test_bad_tables_are_refused(batch, steps, caps, message):
    with pytest.raises(FitError, match=message):
        laws.fit_steps(batch, steps, caps)


def test_few_batches_warn():
    with pytest.warns(SteelyardWarning, match="5 points for the 3 parameters"):
        laws.fit_steps(BATCHES[::2], CLEAN[::2], bootstrap=laws.Bootstrap(count=0))


def test_critical_batch_refuses_other_laws():
    with pytest.raises(FitError, match="needs a law of batch"):
        laws.critical_batch(laws.published["kaplan2020"].fit())
    with pytest.raises(FitError, match="positive overhead"):
        laws.critical_batch(
            laws.fit_steps(BATCHES, CLEAN, bootstrap=laws.Bootstrap(count=0)), overhead=0.0
        )


def test_steps_to_reach_interpolates_in_log_step():
    steps, loss = [10, 100, 1000], [3.0, 2.0, 1.0]
    assert laws.steps_to_reach(steps, loss, 1.5) == pytest.approx(10**2.5)
    assert laws.steps_to_reach(steps, loss, 0.5) == math.inf
    assert laws.steps_to_reach(steps, loss, 5.0) == 10
    for bad in (([1, 1], [2, 1]), ([], []), ([0, 1], [2, 1]), ([1, 2], [1])):
        with pytest.raises(FitError):
            laws.steps_to_reach(*bad, 1.0)


def test_published_critical_batch_fits_meet():
    """Both fits of Zhang et al. 2024 agree where their sweeps cross.

    They are in sequences of 512 tokens, by millions of parameters and of tokens.
    """
    chinchilla_path, by_tokens = 93.20 * 302**0.47, 22.91 * 6040**0.47
    assert chinchilla_path == pytest.approx(by_tokens, rel=0.02)
    tokens = np.array([1510, 3020, 6040, 12080.0])
    fit = laws.fit(
        laws.batch_law("tokens"),
        {"tokens": tokens},
        22.91 * tokens**0.47,
        bootstrap=laws.Bootstrap(count=0),
        delta=math.inf,
    )
    assert (fit.params["c"], fit.params["q"]) == pytest.approx((22.91, 0.47), rel=1e-4)
    with pytest.raises(FitError, match="batch law of loss"):
        laws.batch_law("loss")


def test_critical_batch_at_a_loss():
    assert laws.critical_batch_at_loss([1.0, 2.0]) == pytest.approx([2e8, 2e8 / 2 ** (1 / 0.21)])
    loss = np.linspace(2, 5, 8)
    fit = laws.fit(
        laws.batch_of_loss(),
        {"loss": loss},
        laws.critical_batch_at_loss(loss),
        bootstrap=laws.Bootstrap(count=0),
        delta=math.inf,
    )
    assert fit.params["B_star"] == pytest.approx(2e8, rel=1e-3) and 1 / fit.params[
        "exponent"
    ] == pytest.approx(0.21, rel=1e-3)
    with pytest.raises(FitError):
        laws.critical_batch_at_loss([1.0, 0.0])


def test_tradeoff_is_the_hyperbola():
    steps = 500 * (1 + 300 / BATCHES)
    curve = laws.tradeoff(steps, steps * BATCHES, bootstrap=laws.Bootstrap(count=20))
    assert (curve.steps_min.value, curve.batch_critical.value) == pytest.approx(
        (500, 300), rel=1e-5
    )
    assert curve.examples_min.value == pytest.approx(150_000, rel=1e-5)
    assert (steps / curve.steps_min.value - 1) * (
        steps * BATCHES / curve.examples_min.value - 1
    ) == pytest.approx(np.ones(9), rel=1e-3)
    assert (
        curve.r2 == pytest.approx(1.0)
        and curve.steps(300) == pytest.approx(1000)
        and curve.examples(300) == pytest.approx(300_000)
    )


def test_tradeoff_covers_roughly():
    inside = []
    for seed in range(12):
        steps = (
            500
            * (1 + 300 / BATCHES)
            * np.exp(0.05 * np.random.default_rng(seed).standard_normal(9))
        )
        found = laws.tradeoff(
            steps, steps * BATCHES, level=0.9, bootstrap=laws.Bootstrap(count=50, seed=seed)
        ).batch_critical
        inside.append(found.low <= 300 <= found.high)
    assert np.mean(inside) > 0.6


def test_cost_optimal_batch_is_the_cheapest():
    steps = 500 * (1 + 300 / BATCHES)
    curve = laws.tradeoff(steps, steps * BATCHES, bootstrap=laws.Bootstrap(count=0))
    best = laws.cost_optimal_batch(curve, cost_per_step=2.0, cost_per_example=0.01)
    grid = np.geomspace(1, 1e5, 20001)
    cost = 2.0 * curve.steps(grid) + 0.01 * curve.examples(grid)
    assert best.batch == pytest.approx(grid[cost.argmin()], rel=1e-3)
    assert best.cost == pytest.approx(cost.min(), rel=1e-6)
    assert laws.batch_for_exchange_rate([100.0, 400.0], 100.0) == pytest.approx([100, 200])
    with pytest.raises(FitError):
        laws.cost_optimal_batch(curve, cost_per_step=0.0, cost_per_example=1.0)
    with pytest.raises(FitError):
        laws.batch_for_exchange_rate(-1.0, 1.0)


def test_bad_tradeoff_tables_are_refused():
    steps = 500 * (1 + 300 / BATCHES)
    with pytest.raises(FitError, match="in every row"):
        laws.tradeoff(steps, steps * 64)
    with pytest.raises(FitError, match="positive and finite"):
        laws.tradeoff(np.where(steps > 5000, np.nan, steps), steps * BATCHES)
    with pytest.raises(FitError, match="one of each"):
        laws.tradeoff(steps, steps[:3])


def test_a_censored_fit_survives_json():
    fit = laws.fit_steps(BATCHES, noisy(), 3 * CLEAN, bootstrap=laws.Bootstrap(count=5))
    assert laws.Fit.from_json(fit.to_json()).law == fit.law


def averaged_risk_by_matrices(values, weights, noise, batch, rate, steps):
    """Moments of Gaussian SGD with full matrices, every pair of iterates averaged."""
    spectrum, eye = np.diag(values), np.eye(len(values))
    second, crosses = np.outer(weights, weights), []
    decay = eye - rate * spectrum
    moments = [second]
    for _ in range(steps):
        kick = (
            spectrum @ second @ spectrum + np.trace(spectrum @ second) * spectrum + noise * spectrum
        )
        second = decay @ second @ decay + rate**2 / batch * kick
        moments.append(second)
    for first in range(steps + 1):
        for later in range(steps + 1):
            gap = abs(first - later)
            crosses.append(np.linalg.matrix_power(decay, gap) @ moments[min(first, later)])
    return float(np.trace(spectrum @ sum(crosses)) / (steps + 1) ** 2)


def test_exact_risk_equals_full_matrices_and_samples():
    problem = LeastSquares(1.5, 2.5)
    values, power = 1.0 / np.array([1, 2, 3.0]) ** 1.5, np.array([1.0, 0.2, 0.1])
    at, risk = np.array([1, 4, 9]), np.empty(3)
    averaged_risk(values, np.ones(3), power / values, 0.7, 2.0, 0.4, at, risk)
    weights = np.sqrt(power / values)
    expected = [averaged_risk_by_matrices(values, weights, 0.7, 2.0, 0.4, steps) for steps in at]
    assert risk == pytest.approx(expected, rel=1e-10)
    assert (np.diff(problem.excess_risk(4, 0.3, [10, 100, 1000])) < 0).all()
    assert np.isinf(problem.excess_risk(1, 3.0, [10, 2000]))[1]


def test_exact_risk_is_the_mean_of_sampled_runs():
    values, power = 1.0 / np.array([1, 2, 3.0]) ** 1.5, np.array([1.0, 0.2, 0.1])
    risk = np.empty(1)
    averaged_risk(values, np.ones(3), power / values, 0.5, 2.0, 0.3, np.array([12]), risk)
    generator, repeats = np.random.default_rng(0), 10_000
    error = np.tile(np.sqrt(power / values), (repeats, 1))
    mean = error.copy()
    for step in range(1, 13):
        x = generator.standard_normal((repeats, 2, 3)) * np.sqrt(values)
        residual = np.einsum("rbd,rd->rb", x, error) - math.sqrt(0.5) * generator.standard_normal(
            (repeats, 2)
        )
        error = error - 0.3 * np.einsum("rb,rbd->rd", residual, x) / 2
        mean += (error - mean) / (step + 1)
    sampled = (mean**2) @ values
    assert sampled.mean() == pytest.approx(risk[0], abs=4 * sampled.std() / math.sqrt(repeats))


@pytest.mark.parametrize(
    ("spectrum", "source", "c"),
    [(1.5, 3, 0.5), (2, 4, 0.5), (2, 8, 0.6), (3, 3, 0.0), (2, 1.5, 0.0)],
)
def test_theory_exponent(spectrum, source, c):
    assert LeastSquares(spectrum, source).critical_exponent == pytest.approx(c)


def test_measured_exponents_follow_the_theory():
    for spectrum, source in ((1.5, 3), (3, 3)):
        problem = LeastSquares(spectrum, source)
        table = problem.steps_table(2.0 ** np.arange(7, 11), 2.0 ** np.arange(0, 8))
        slope = np.polyfit(np.log(table.examples), np.log(table.critical_batches()), 1)[0]
        assert slope == pytest.approx(problem.critical_exponent, abs=0.1)
    assert (table.steps[:, 0] * table.batches[0]) == pytest.approx(table.examples, rel=0.02)
    seen = np.isfinite(table.steps)
    assert (~seen).any() and (table.steps[seen] < table.caps[seen]).all()


def test_bad_problems_are_refused():
    with pytest.raises(FitError, match="must exceed 1"):
        LeastSquares(1.0, 2.0)
    problem = LeastSquares(2.0, 2.0)
    for arguments in ((0.5, 0.1, [1]), (1, -0.1, [1]), (1, 0.1, [2, 1]), (1, 0.1, [])):
        with pytest.raises(FitError):
            problem.excess_risk(*arguments)
    with pytest.raises(FitError, match="at least two rising batches"):
        problem.steps_table([64.0], [1.0])
