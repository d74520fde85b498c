"""The law of dense retrieval: its slopes, and its numbers back from points."""

import numpy as np

from steelyard.laws import fit, law_named

TRUTH = {"A": 2.0e4, "B": 900.0, "alpha": 0.45, "beta": 0.7, "delta": 0.3}


def test_slopes_are_those_of_small_differences() -> None:
    law = law_named("dense_retrieval")
    theta = law.coordinates(TRUTH)[None]
    inputs = {"parameters": np.array([1e5, 1e6, 1e8]), "pairs": np.array([1e3, 1e5, 1e4])}
    log, slopes = law.evaluate(theta, inputs)
    plain = (
        (TRUTH["A"] / inputs["parameters"]) ** (TRUTH["alpha"] / TRUTH["beta"])
        + TRUTH["B"] / inputs["pairs"]
    ) ** TRUTH["beta"] + TRUTH["delta"]
    np.testing.assert_allclose(np.exp(log[0]), plain, rtol=1e-12)
    for place in range(theta.shape[1]):
        step = np.zeros_like(theta)
        step[0, place] = 1e-6
        numeric = (law.predict(theta + step, inputs) - law.predict(theta - step, inputs)) / 2e-6
        np.testing.assert_allclose(slopes[0, place], numeric[0], rtol=1e-5, atol=1e-8)


def test_points_give_the_law_back() -> None:
    sizes, pairs = (
        part.ravel() for part in np.meshgrid(np.geomspace(1e5, 1e8, 6), [1e3, 1e4, 1e6])
    )
    law = law_named("dense_retrieval")
    inputs = {"parameters": sizes, "pairs": pairs}
    nats = np.exp(law.predict(law.coordinates(TRUTH)[None], inputs))[0]
    found = fit(law, inputs, nats, prior=None)
    ahead = found.predict({"parameters": 3e8, "pairs": 1e6}, extrapolate=True).first.value
    wanted = ((TRUTH["A"] / 3e8) ** (TRUTH["alpha"] / TRUTH["beta"]) + TRUTH["B"] / 1e6) ** TRUTH[
        "beta"
    ] + TRUTH["delta"]
    assert abs(ahead / wanted - 1) < 0.01
