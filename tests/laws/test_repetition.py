import csv
import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.decisions.repeated import allocate_repeated
from steelyard.laws.forms.repetition import (
    data_constrained,
    effective_tokens,
    overfitting_penalty,
    repetition_constants,
    value_of_next_epoch,
)

ROOT = Path(__file__).parents[2]
RUNS = (
    Path(os.environ.get("STEELYARD_SHARED", ROOT.parent / "shared"))
    / "data"
    / "datablations-losses"
    / "runs.csv"
)

# Muennighoff et al. 2023 (arXiv 2305.16264), the notebook of its repository
C4 = {
    "A": math.exp(6.255414),
    "B": math.exp(7.3049974),
    "E": math.exp(0.6254804),
    "alpha": 0.3526596,
}
PAIR = {"R_D": 15.387756, "R_N": 5.309743}

generator = np.random.default_rng(0)
POINTS = {
    "parameters": 10 ** generator.uniform(7, 10, 120),
    "unique_tokens": 10 ** generator.uniform(8, 10.5, 120),
}
POINTS["tokens"] = POINTS["unique_tokens"] * 10 ** generator.uniform(-0.3, 2.3, 120)


def by_hand(n, d, u, r_d=PAIR["R_D"], r_n=PAIR["R_N"], geometric=False):
    """Write the law run by run, as the paper prints it; the geometric worth pass by pass."""
    a, b, e, alpha = C4["A"], C4["B"], C4["E"], C4["alpha"]
    losses = []
    for size, tokens, unique in zip(n, d, u, strict=True):
        unique = min(unique, tokens)
        g = (a / b) ** (1 / (2 * alpha))
        c = (unique * g) ** 2
        optimal = g * c**0.5
        base = min(size, optimal)

        def worth(amount, first, constant):
            extra = amount / first - 1
            if not geometric:
                return first * (1 + constant * (1 - math.exp(-extra / constant)))
            kept = constant / (1 + constant)
            return first * (1 + constant * (1 - kept**extra))

        losses.append(
            e + a / worth(size, base, r_n) ** alpha + b / worth(tokens, unique, r_d) ** alpha
        )
    return np.array(losses)


def published(decay="exponential"):
    law = data_constrained(decay, base="muennighoff2023_c4")
    return laws.Fit(
        law=law, theta=law.coordinates(PAIR), samples=np.zeros((0, 2)), provenance="published"
    )


@pytest.fixture(scope="module")
def fitted():
    noise = 0.01 * np.random.default_rng(1).standard_normal(120)
    loss = by_hand(POINTS["parameters"], POINTS["tokens"], POINTS["unique_tokens"]) * np.exp(noise)
    return laws.fit(data_constrained(base=C4), POINTS, loss, bootstrap=laws.Bootstrap(count=60))


@pytest.mark.parametrize("decay", ["exponential", "geometric"])
def test_prediction_is_the_printed_formula(decay):
    hand = by_hand(
        POINTS["parameters"],
        POINTS["tokens"],
        POINTS["unique_tokens"],
        geometric=decay == "geometric",
    )
    assert published(decay).predict(POINTS).value == pytest.approx(hand, rel=1e-12)


def test_geometric_worth_is_a_sum_over_passes():
    kept = PAIR["R_D"] / (1 + PAIR["R_D"])
    summed = sum(kept**k for k in range(7))
    assert effective_tokens(published("geometric"), 1e9, 7).value == pytest.approx(
        1e9 * summed, rel=1e-12
    )


@pytest.mark.parametrize(
    "law",
    [
        data_constrained(),
        data_constrained("geometric", "tied"),
        data_constrained(base=C4),
        overfitting_penalty(),
        overfitting_penalty(True),
    ],
    ids=lambda law: law.name,
)
def test_gradient_equals_finite_differences(law):
    grid = law.start_grid()
    theta = grid[np.random.default_rng(2).integers(0, len(grid), 3)] * 1.05
    gradient = law.evaluate(theta, POINTS)[1]
    for index in range(theta.shape[1]):
        step = np.zeros(theta.shape[1])
        step[index] = 1e-6
        numeric = (law.predict(theta + step, POINTS) - law.predict(theta - step, POINTS)) / 2e-6
        np.testing.assert_allclose(gradient[:, index], numeric, rtol=1e-5, atol=1e-7)


def test_without_repeats_and_excess_it_is_the_base_law():
    tokens = np.array([1e9, 1e10])
    few = {
        "parameters": np.array([1e7, 3e7]),
        "tokens": tokens,
        "unique_tokens": tokens * [1.0, 5.0],
    }
    base = laws.published["muennighoff2023_c4"].fit().predict(few).value
    assert published().predict(few).value == pytest.approx(base, rel=1e-12)
    penalty = overfitting_penalty(base=C4)
    theta = penalty.coordinates({"P": 1.0, "delta": 0.05, "kappa": 1.0})
    assert np.exp(penalty.predict(theta[None], few))[0] == pytest.approx(base, rel=1e-12)


def test_large_constants_give_the_base_law_back():
    theta = published().law.coordinates({"R_D": 1e6, "R_N": 1e6})
    base = laws.published["muennighoff2023_c4"].fit().predict(POINTS).value
    assert np.exp(published().law.predict(theta[None], POINTS))[0] == pytest.approx(base, rel=1e-4)


def test_penalty_is_the_printed_formula():
    law = overfitting_penalty(base=C4)
    loss = np.exp(
        law.predict(law.coordinates({"P": 0.02, "delta": 0.8, "kappa": 0.5})[None], POINTS)
    )[0]
    n, d, u = (POINTS[name] for name in ("parameters", "tokens", "unique_tokens"))
    base = C4["E"] + C4["A"] / n ** C4["alpha"] + C4["B"] / d ** C4["alpha"]
    repeats = np.maximum(d / u - 1, 0)
    assert loss == pytest.approx(base + 0.02 * repeats**0.8 * (n / u) ** 0.5, rel=1e-10)


def test_extreme_inputs_stay_finite():
    wide = {
        "parameters": np.array([1.0, 1e30]),
        "tokens": np.array([1e30, 1.0]),
        "unique_tokens": np.array([1.0, 1e30]),
    }
    for law in (data_constrained(), data_constrained("geometric"), overfitting_penalty()):
        log, gradient = law.evaluate(law.start_grid(), wide)
        assert np.isfinite(log).all() and np.isfinite(gradient).all()


def test_fit_recovers_the_constants(fitted):
    assert fitted.params["R_D"] == pytest.approx(PAIR["R_D"], rel=0.15)
    for name, truth in PAIR.items():
        low, high = fitted.interval(name, 0.95)
        assert low < truth < high
    assert not repetition_constants(fitted).is_flat
    assert laws.Fit.from_json(fitted.to_json()).params == fitted.params


def test_worth_of_epochs_falls_from_one(fitted):
    worths = [value_of_next_epoch(fitted, epochs).value for epochs in (0, 1, 4, 15, 44)]
    assert worths[0] == 1 and all(later < earlier for earlier, later in itertools.pairwise(worths))
    four = effective_tokens(fitted, 1e9, 4)
    assert four.low <= four.value <= four.high <= 4e9
    assert effective_tokens(fitted, 1e9, 0.5).value == 5e8
    assert effective_tokens(published(), 1e9, 1e4).value == pytest.approx(1e9 * (1 + PAIR["R_D"]))


def test_few_repeats_leave_the_constants_flat_and_say_so():
    short = POINTS | {
        "tokens": POINTS["unique_tokens"] * 10 ** np.random.default_rng(3).uniform(0, 0.5, 120)
    }
    loss = by_hand(short["parameters"], short["tokens"], short["unique_tokens"])
    noisy = loss * np.exp(0.02 * np.random.default_rng(4).standard_normal(120))
    found = repetition_constants(
        laws.fit(data_constrained(base=C4), short, noisy, bootstrap=laws.Bootstrap(count=0))
    )
    assert found.is_flat and found.repeats.is_flat and "flat" in str(found)


def test_allocation_beats_every_other_size():
    chosen = allocate_repeated(published(), 9.3e21, 25e9)
    sizes = np.exp(np.linspace(np.log(1e8), np.log(1e11), 4000))
    runs = {"parameters": sizes, "tokens": 9.3e21 / 6 / sizes, "unique_tokens": np.full(4000, 25e9)}
    brute = published().predict(runs).value
    assert chosen.best.loss.value <= brute.min() * (1 + 1e-7)
    assert chosen.best.parameters.value == pytest.approx(sizes[brute.argmin()], rel=0.01)
    assert chosen.best.parameters.value * chosen.best.tokens.value * 6 == pytest.approx(9.3e21)
    # the paper trains 6.34e9 instead of 8.67e9 parameters, 27 % fewer; its law's own optimum is 23
    # % below Chinchilla's
    assert 0.7 < chosen.best.parameters.value / chosen.chinchilla_parameters < 0.8
    assert chosen.regret_chinchilla.value > 0 and chosen.regret_single_epoch.value > 0.1


def test_allocation_with_plenty_of_data_is_chinchillas():
    chosen = allocate_repeated(published(), 9.3e21, 1e13)
    assert chosen.best.parameters.value == pytest.approx(chosen.chinchilla_parameters, rel=1e-3)
    assert chosen.regret_chinchilla.value == pytest.approx(0, abs=1e-8)


def test_allocation_has_intervals(fitted):
    chosen = allocate_repeated(fitted, 1e21, 3e9)
    assert chosen.best.parameters.low < chosen.best.parameters.value < chosen.best.parameters.high
    assert (
        chosen.regret_chinchilla.low
        <= chosen.regret_chinchilla.value
        <= chosen.regret_chinchilla.high
    )
    assert chosen.best.provenance == "fitted" and chosen.best.distance == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data_constrained("linear"), "unknown decay"),
        (lambda: data_constrained(base={"A": 1.0}), "needed are A, B, E, alpha"),
        (lambda: data_constrained(base="nobody"), "no published law"),
        (lambda: data_constrained(base=laws.published["kaplan2020"].fit()), "needed are A, B, E"),
        (lambda: effective_tokens(published(), 0, 4), "positive"),
        (lambda: effective_tokens(laws.published["muennighoff2023_c4"].fit(), 1e9, 4), "no R_D"),
        (lambda: value_of_next_epoch(published(), -1), "0 or more"),
        (lambda: repetition_constants(published()), "no fitted points"),
        (lambda: allocate_repeated(published(), 9.3e21, 0), "unique_tokens"),
        (lambda: allocate_repeated(published(), math.nan, 1e9), "budget"),
        (
            lambda: allocate_repeated(laws.published["muennighoff2023_c4"].fit(), 1e21, 1e9),
            "unique_tokens",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(FitError, match=message):
        call()


def test_tables_that_cannot_tell_are_refused():
    loss = np.linspace(3, 4, 120)
    with pytest.raises(FitError, match="unique_tokens is 1e\\+09 in every row"):
        laws.fit(data_constrained(base=C4), POINTS | {"unique_tokens": np.full(120, 1e9)}, loss)
    with pytest.raises(FitError, match="rows 1"):
        laws.fit(data_constrained(base=C4), POINTS | {"unique_tokens": np.zeros(120)}, loss)


@pytest.mark.skipif(
    not RUNS.exists(), reason="the shared data set datablations-losses is not on this machine"
)
def test_published_numbers_of_182_runs():
    with RUNS.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["in_paper_fit"] == "1"]
    columns = {"parameters": "params", "tokens": "tokens", "unique_tokens": "unique_tokens"}
    points = {name: np.array([float(row[key]) for row in rows]) for name, key in columns.items()}
    loss = np.array([float(row["val_loss"]) for row in rows])

    def r_squared(fit):
        return 1 - np.sum((loss - fit.predict(points).value) ** 2) / np.sum(
            (loss - loss.mean()) ** 2
        )

    assert len(rows) == 182
    assert r_squared(published()) == pytest.approx(0.7722, abs=1e-3)
    assert r_squared(laws.published["muennighoff2023_c4"].fit()) == pytest.approx(0.4452, abs=1e-3)
    own = laws.fit(
        data_constrained(base="muennighoff2023_c4"), points, loss, bootstrap=laws.Bootstrap(count=0)
    )
    assert own.objective <= 0.0158259
