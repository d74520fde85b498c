from dataclasses import replace

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.decisions.cost_law import CostLaw
from steelyard.laws.decisions.training_budget import optimal_log_parameters
from steelyard.laws.fitting.terms import Product

BUDGET = 5.76e23


@pytest.mark.parametrize("name", ["hoffmann2022", "besiroglu2024", "muennighoff2023_c4"])
def test_closed_form_equals_the_search(name):
    law, theta = laws.published[name].law, laws.published[name].fit().theta[None]
    closed = optimal_log_parameters(law, theta, BUDGET)
    searched = optimal_log_parameters(replace(law, term=Product((law.term,))), theta, BUDGET)
    assert closed == pytest.approx(searched, abs=1e-5)


def test_kaplan_exponent_of_model_size_follows_its_form():
    fit = laws.published["kaplan2020"].fit()
    sizes = [laws.allocate(fit, flops).parameters.value for flops in (1e20, 1e22)]
    ratio = 0.076 / 0.103
    assert np.log(sizes[1] / sizes[0]) / np.log(100) == pytest.approx(1 / (1 + ratio), abs=1e-4)


def test_refitted_chinchilla_gives_about_twenty_tokens_per_parameter():
    best = laws.allocate(laws.published["besiroglu2024"].fit(), BUDGET)
    assert 6 * best.parameters.value * best.tokens.value == pytest.approx(BUDGET, rel=1e-9)
    assert best.tokens.value / best.parameters.value == pytest.approx(20, rel=0.15)
    assert best.provenance == "published" and best.loss.low == best.loss.value == best.loss.high


def test_a_fitted_allocation_has_intervals_around_its_values():
    generator = np.random.default_rng(0)
    inputs = {
        "parameters": 10 ** generator.uniform(7, 10, 100),
        "tokens": 10 ** generator.uniform(9, 11.5, 100),
    }
    truth = laws.published["besiroglu2024"]
    loss = np.exp(
        truth.fit().law.predict(truth.fit().theta[None], inputs)[0]
        + 0.003 * generator.standard_normal(100)
    )
    best = laws.allocate(
        laws.fit(laws.chinchilla(), inputs, loss, bootstrap=laws.Bootstrap(count=100)), 1e23
    )
    exact = laws.allocate(truth.fit(), 1e23)
    for name in ("parameters", "tokens", "loss"):
        estimate = getattr(best, name)
        assert estimate.low < estimate.value < estimate.high
        assert estimate.value == pytest.approx(getattr(exact, name).value, rel=0.2)
    assert best.distance > 0 and best.provenance == "fitted"


def test_refuses_what_cannot_be_allocated():
    with pytest.raises(FitError, match="budget"):
        laws.allocate(laws.published["besiroglu2024"].fit(), 0)
    size = np.geomspace(1, 100, 9)
    with pytest.raises(FitError, match="needs parameters and tokens"):
        laws.allocate(
            laws.fit(
                laws.power_law("samples"),
                {"samples": size},
                3 / size**0.5 + 1,
                bootstrap=laws.Bootstrap(count=0),
            ),
            1e20,
        )


def brute_force(fit, flops, limits):
    sizes = np.geomspace(1e6, 1e13, 200_001)
    tokens = np.minimum((flops / sizes - 2 * limits.inference_tokens) / 6, limits.max_tokens)
    keep = (tokens > 1) & (sizes <= limits.max_parameters)
    loss = fit.law.predict(fit.theta[None], {"parameters": sizes[keep], "tokens": tokens[keep]})[0]
    return sizes[keep][loss.argmin()], float(np.exp(loss.min()))


@pytest.mark.parametrize(
    "limits",
    [
        laws.Limits(inference_tokens=1e13),
        laws.Limits(max_parameters=7e9),
        laws.Limits(max_tokens=1e11),
        laws.Limits(max_parameters=1e9, max_tokens=1e11),
        laws.Limits(max_parameters=3e10, inference_tokens=3e12),
    ],
)
@pytest.mark.parametrize("name", ["besiroglu2024", "kaplan2020"])
def test_limits_are_kept_at_the_least_loss(name, limits):
    fit = laws.published[name].fit()
    best = laws.allocate(fit, BUDGET, limits=limits)
    size, loss = brute_force(fit, BUDGET, limits)
    assert best.loss.value <= loss * (1 + 1e-9)
    if "max_tokens" not in best.binding:
        assert best.parameters.value == pytest.approx(size, rel=1e-3)
    assert best.parameters.value <= limits.max_parameters * (
        1 + 1e-9
    ) and best.tokens.value <= limits.max_tokens * (1 + 1e-9)
    spent = best.training_flops + 2 * limits.inference_tokens * best.parameters.value
    assert spent <= BUDGET * (1 + 1e-9) and (
        best.binding == ("max_parameters", "max_tokens") or spent > 0.999 * BUDGET
    )


def test_a_recipe_follows_the_run_in_order():
    generator = np.random.default_rng(1)
    tokens = 10 ** generator.uniform(9, 11, 40)
    batch = laws.fit(
        laws.power_law("tokens", floor=False).fix(alpha=-0.5),
        {"tokens": tokens},
        3.0 * tokens**0.5,
        bootstrap=laws.Bootstrap(count=20),
    )
    rate = laws.fit(
        laws.power_law("batch", floor=False),
        {"batch": 3.0 * tokens**0.5},
        10 / (3.0 * tokens**0.5) ** 0.2,
        bootstrap=laws.Bootstrap(count=20),
    )
    best = laws.allocate(
        laws.published["besiroglu2024"].fit(), 1e21, recipe={"batch": batch, "learning_rate": rate}
    )
    assert best.recipe["batch"].value == pytest.approx(3.0 * best.tokens.value**0.5, rel=1e-6)
    assert best.recipe["learning_rate"].value == pytest.approx(
        10 / best.recipe["batch"].value ** 0.2, rel=1e-6
    )
    with pytest.raises(FitError, match="missing: batch"):
        laws.allocate(laws.published["besiroglu2024"].fit(), 1e21, recipe={"learning_rate": rate})


def test_impossible_limits_are_refused():
    fit = laws.published["besiroglu2024"].fit()
    with pytest.raises(FitError, match="limits must be positive"):
        laws.Limits(max_tokens=0)
    with pytest.raises(FitError, match="served tokens alone"):
        laws.allocate(fit, 1e12, limits=laws.Limits(inference_tokens=1e13))


def test_a_cost_law_is_fitted_to_recorded_compute():
    generator = np.random.default_rng(0)
    size, tokens = 10 ** generator.uniform(8, 10, 40), 10 ** generator.uniform(9, 12, 40)
    flops = 20 * size**0.95 * tokens**1.01 * np.exp(0.02 * generator.standard_normal(40))
    table = {"parameters": size, "tokens": tokens, "flops": flops}
    cost = CostLaw.fit(table)
    assert (cost.a, cost.b) == pytest.approx((0.95, 1.01), abs=0.01)
    assert cost.scatter == pytest.approx(0.02, rel=0.3)
    assert cost.tokens(size, cost.flops(size, tokens)) == pytest.approx(tokens)
    # Where size and tokens were not varied apart only the factor is fitted.
    ray = {"parameters": size, "tokens": 20 * size, "flops": 8 * 20 * size**2}
    product = CostLaw.fit(ray)
    assert product.is_product and product.k == pytest.approx(8.0)
    with pytest.raises(FitError, match="no training"):
        CostLaw.fit({**table, "flops": size**2.5})
    with pytest.raises(FitError, match="no flops"):
        CostLaw.fit({"parameters": size, "tokens": tokens})
    with pytest.raises(FitError, match="positive and finite"):
        CostLaw(k=0.0)


def test_an_allocation_by_a_cost_law_spends_the_budget_and_is_best():
    fit = laws.published["besiroglu2024"].fit()
    cost = CostLaw(20.0, 0.95, 1.01)
    best = laws.allocate(fit, BUDGET, cost=cost)
    size, tokens = best.parameters.value, best.tokens.value
    assert cost.flops(size, tokens) == pytest.approx(BUDGET, rel=1e-9)
    assert best.training_flops == pytest.approx(BUDGET, rel=1e-9)
    for factor in (0.8, 1.25):
        other = {"parameters": factor * size, "tokens": cost.tokens(factor * size, BUDGET)}
        assert fit.predict(other).value[0] > best.loss.value
    # The same cost, searched and in closed form.
    near = CostLaw(6.0, 1.0 + 1e-12, 1.0)
    searched, closed = laws.allocate(fit, BUDGET, cost=near), laws.allocate(fit, BUDGET)
    assert searched.parameters.value == pytest.approx(closed.parameters.value, rel=1e-6)
    limits = laws.Limits(max_tokens=1e11, inference_tokens=1e12)
    held = laws.allocate(fit, BUDGET, cost=cost, limits=limits)
    spent = cost.flops(held.parameters.value, held.tokens.value)
    spent += 2 * held.parameters.value * 1e12
    assert held.tokens.value <= 1e11 * (1 + 1e-9) and spent <= BUDGET * (1 + 1e-6)
