import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import laws
from steelyard.errors import FitError

LAWS = [
    laws.chinchilla(),
    laws.chinchilla(tied=True),
    laws.kaplan(),
    laws.power_law("tokens"),
    laws.power_law("tokens", floor=False),
    laws.Law(
        name="raised",
        term=laws.terms.Raised(
            laws.terms.Sum(
                (
                    laws.terms.Power("A", "alpha", "parameters"),
                    laws.terms.Power("B", "alpha", "tokens"),
                )
            ),
            "gamma",
        ),
        parameters=(
            laws.Parameter(name="A", transform="log", low=-9, high=30, starts=(3.0,)),
            laws.Parameter(name="B", transform="log", low=-9, high=30, starts=(3.0,)),
            laws.Parameter(name="alpha", transform="identity", low=0.1, high=2, starts=(0.3,)),
            laws.Parameter(name="gamma", transform="identity", low=0.1, high=2, starts=(0.5,)),
        ),
    ),
    laws.Law(
        name="capped_mix",
        term=laws.terms.Power(
            "A",
            "alpha",
            laws.terms.Minimum(
                (
                    laws.terms.Product(
                        (
                            laws.terms.Constant("B"),
                            laws.terms.Raised(laws.terms.Input("tokens"), "gamma"),
                        )
                    ),
                    laws.terms.Input("parameters"),
                )
            ),
        ),
        parameters=(
            laws.Parameter(name="A", transform="log", low=-9, high=30, starts=(3.0,)),
            laws.Parameter(name="alpha", transform="identity", low=0.1, high=2, starts=(0.3,)),
            laws.Parameter(name="B", transform="log", low=-9, high=30, starts=(2.0,)),
            laws.Parameter(name="gamma", transform="identity", low=0.1, high=2, starts=(0.5,)),
        ),
    ),
]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LAWS), st.integers(0, 10_000))
def test_gradient_equals_finite_differences(law, seed):
    generator = np.random.default_rng(seed)
    grid = law.start_grid()
    theta = grid[generator.integers(0, len(grid), 3)] * generator.uniform(
        0.8, 1.2, (3, grid.shape[1])
    )
    inputs = {
        "parameters": 10 ** generator.uniform(4, 11, 7),
        "tokens": 10 ** generator.uniform(5, 13, 7),
    }
    log, gradient = law.evaluate(theta, inputs)
    assert log.shape == (3, 7) and gradient.shape == (3, grid.shape[1], 7)
    assert np.array_equal(log, law.predict(theta, inputs))
    for index in range(grid.shape[1]):
        step = np.zeros(grid.shape[1])
        step[index] = 1e-6
        slope = (law.predict(theta + step, inputs) - law.predict(theta - step, inputs)) / 2e-6
        np.testing.assert_allclose(gradient[:, index], slope, rtol=1e-5, atol=1e-6)


def test_chinchilla_equals_its_formula():
    law = laws.chinchilla()
    params = laws.published["hoffmann2022"].params
    theta = law.coordinates(params)
    assert law.values(theta) == pytest.approx([params[name] for name in law.names])
    loss = np.exp(
        law.predict(theta[None], {"parameters": np.array([70e9]), "tokens": np.array([1.4e12])})
    )[0, 0]
    assert loss == pytest.approx(1.6934 + 406.4 / 70e9**0.3392 + 410.7 / 1.4e12**0.2849, rel=1e-12)


def test_the_default_grid_has_72_starts():
    assert laws.chinchilla().start_grid().shape == (72, 5)


def test_far_away_inputs_neither_overflow_nor_underflow():
    inputs = {"parameters": np.array([1.0, 1e300]), "tokens": np.array([1e300, 1.0])}
    for law in LAWS:
        log, gradient = law.evaluate(law.start_grid(), inputs)
        assert np.isfinite(log).all() and np.isfinite(gradient).all()


def test_declarations_that_do_not_match_are_refused():
    power = laws.terms.Power("A", "alpha", "tokens")
    amount = laws.Parameter(name="A", transform="log", low=0, high=5, starts=(1.0,))
    with pytest.raises(FitError, match="declares parameters"):
        laws.Law(name="half", term=power, parameters=(amount,))
    with pytest.raises(FitError, match="starts"):
        laws.Parameter(name="A", transform="log", low=0, high=5, starts=(6.0,))
    with pytest.raises(FitError, match="sd"):
        laws.Prior(0.0, 0.0)
    with pytest.raises(FitError, match="coefficients positive"):
        laws.chinchilla().coordinates({"A": -1, "B": 1, "E": 1, "alpha": 1, "beta": 1})
