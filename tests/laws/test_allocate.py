from dataclasses import replace

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.decisions.allocate import optimal_log_parameters

BUDGET = 5.76e23


@pytest.mark.parametrize("name", ["hoffmann2022", "besiroglu2024", "muennighoff2023_c4"])
def test_closed_form_equals_the_search(name):
    law, theta = laws.published[name].law, laws.published[name].fit().theta[None]
    closed = optimal_log_parameters(law, theta, BUDGET)
    searched = optimal_log_parameters(replace(law, name="unnamed"), theta, BUDGET)
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
    inputs = {"parameters": 10 ** generator.uniform(7, 10, 100), "tokens": 10 ** generator.uniform(9, 11.5, 100)}
    truth = laws.published["besiroglu2024"]
    loss = np.exp(truth.fit().law.predict(truth.fit().theta[None], inputs)[0] + 0.003 * generator.standard_normal(100))
    best = laws.allocate(laws.fit(laws.chinchilla(), inputs, loss, bootstraps=100), 1e23)
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
        laws.allocate(laws.fit(laws.power_law("samples"), {"samples": size}, 3 / size**0.5 + 1, bootstraps=0), 1e20)


def test_every_published_law_names_its_source_and_makes_a_fit():
    for name, item in laws.published.items():
        assert item.name == name and "arXiv" in item.source
        fit = item.fit()
        assert fit.params == pytest.approx(item.params, rel=1e-12)
        assert fit.interval(fit.law.names[0]) == (fit.params[fit.law.names[0]],) * 2
        assert laws.Fit.from_json(fit.to_json()).to_json() == fit.to_json()
        assert np.isnan(fit.condition_number) and fit.flat_directions == ()
