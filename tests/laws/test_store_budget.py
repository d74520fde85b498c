"""A budget split among model, tokens and store, against a search of scipy's."""

import numpy as np
import pytest
from scipy.optimize import minimize

from steelyard.errors import FitError
from steelyard.laws import Fit, chinchilla, law_named
from steelyard.laws.data import allocate_store

LAW = law_named("powers:parameters:tokens:store_tokens")
VALUES = {
    "A_parameters": 400.0,
    "alpha_parameters": 0.34,
    "A_tokens": 410.0,
    "alpha_tokens": 0.28,
    "A_store_tokens": 3.0,
    "alpha_store_tokens": 0.1,
    "E": 1.2,
}
FIT = Fit(law=LAW, theta=LAW.coordinates(VALUES), samples=np.zeros((0, len(VALUES))))


def _loss(log_size: float, log_store: float, flops: float, price: float) -> float:
    size, store = np.exp(log_size), np.exp(log_store)
    tokens = (flops - price * store) / (6 * size)
    if tokens <= 0:
        return 1e9
    a, b, c = (
        VALUES[f"A_{name}"] / value ** VALUES[f"alpha_{name}"]
        for name, value in zip(
            ("parameters", "tokens", "store_tokens"), (size, tokens, store), strict=True
        )
    )
    return VALUES["E"] + a + b + c


@pytest.mark.parametrize("flops", [1e18, 1e21, 1e24])
def test_the_split_is_that_of_a_general_search(flops: float) -> None:
    found = allocate_store(FIT, flops, encoder_parameters=1.77e8)
    price = 2 * 1.77e8
    start = [np.log(flops) / 2 - 1, np.log(flops / price / 50)]
    least = minimize(lambda x: _loss(x[0], x[1], flops, price), start, method="Nelder-Mead").fun
    assert found.loss.value == pytest.approx(least, rel=1e-5)
    spent = 6 * found.parameters.value * found.tokens.value + price * found.store_tokens.value
    assert spent == pytest.approx(flops)
    assert found.store_share.value == pytest.approx(price * found.store_tokens.value / flops)
    assert found.loss.value < found.loss_without.value


def test_a_store_is_no_larger_than_the_text_at_hand() -> None:
    found = allocate_store(FIT, 1e24, encoder_parameters=1e7, max_store_tokens=1e9)
    assert found.store_tokens.value == pytest.approx(1e9)


def test_other_laws_and_budgets_are_refused() -> None:
    other = Fit(law=chinchilla(), theta=np.zeros(5), samples=np.zeros((0, 5)))
    with pytest.raises(FitError, match="a law of parameters, tokens"):
        allocate_store(other, 1e20, encoder_parameters=1e7)
    with pytest.raises(FitError, match="whose encoder takes"):
        allocate_store(FIT, 10.0, encoder_parameters=1e7)
