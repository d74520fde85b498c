import os
from pathlib import Path

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.forms.chinchilla import downstream_error, overtraining, predict_error
from steelyard.laws.tables.table import RunTable

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    Path(os.environ.get("STEELYARD_SHARED", ROOT.parent / "shared"))
    / "data/overtrained-lm/runs.csv"
)
TRUTH = {"a": 150.0, "b": 250.0, "E": 1.6, "h": 0.125}


def runs(noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    size, ratio = np.repeat(np.geomspace(1e7, 4e8, 6), 6), np.tile(5.0 * 2.0 ** np.arange(6), 6)
    inputs = {"parameters": size, "tokens": size * ratio}
    law = overtraining()
    loss = np.exp(
        law.predict(law.coordinates(TRUTH)[None], inputs)[0] + noise * generator.standard_normal(36)
    )
    return inputs, loss


def gradient_error(law, theta, inputs):
    step = 1e-6 * np.eye(theta.shape[1])
    _, gradient = law.evaluate(theta, inputs)
    slow = np.stack(
        [
            (law.predict(theta + row, inputs) - law.predict(theta - row, inputs)) / 2e-6
            for row in step
        ],
        axis=1,
    )
    return np.abs(gradient - slow).max()


def test_the_loss_is_the_published_formula():
    inputs, loss = runs()
    compute, ratio = (
        6 * inputs["parameters"] * inputs["tokens"],
        inputs["tokens"] / inputs["parameters"],
    )
    h = TRUTH["h"]
    np.testing.assert_allclose(
        loss,
        TRUTH["E"] + (TRUTH["a"] * ratio**h + TRUTH["b"] * ratio**-h) * compute**-h,
        rtol=1e-12,
    )


def test_gradients_equal_differences():
    law = overtraining()
    assert gradient_error(law, law.start_grid()[::7], runs()[0]) < 1e-8
    law = downstream_error()
    assert gradient_error(law, law.start_grid(), {"loss": np.linspace(2.0, 6.0, 9)}) < 1e-6
    columns = {
        name: np.broadcast_to(law.start_grid()[:2, index : index + 1], (2, 9))
        for index, name in enumerate(law.names)
    }
    assert law.term.evaluate(columns, {"loss": np.linspace(2.0, 6.0, 9)})[0].shape == (2, 9)


def test_a_fit_recovers_the_law_and_equals_the_tied_one():
    inputs, loss = runs(noise=0.002)
    fitted = laws.fit(overtraining(), inputs, loss, bootstrap=laws.Bootstrap(count=0))
    assert fitted.params["h"] == pytest.approx(0.125, abs=0.01)
    tied = laws.fit(laws.chinchilla(tied=True), inputs, loss, bootstrap=laws.Bootstrap(count=0))
    assert fitted.objective == pytest.approx(tied.objective, rel=1e-6)
    assert tied.params["alpha"] == pytest.approx(2 * fitted.params["h"], rel=1e-3)
    assert tied.params["A"] == pytest.approx(
        fitted.params["a"] * 6 ** -fitted.params["h"], rel=1e-2
    )


def test_error_follows_loss_and_is_predicted_through_it():
    inputs, loss = runs(noise=0.001)
    truth = {"eps": 0.76, "k": 1.4, "g": 1.0}
    error = truth["eps"] - truth["k"] * np.exp(-truth["g"] * loss)
    law = downstream_error()
    np.testing.assert_allclose(
        np.exp(law.predict(law.coordinates(truth)[None], {"loss": loss})[0]), error, rtol=1e-12
    )
    of_error = laws.fit(
        law,
        {"loss": loss},
        error * np.exp(0.001 * np.random.default_rng(0).standard_normal(36)),
        bootstrap=laws.Bootstrap(count=60),
    )
    assert of_error.params["eps"] == pytest.approx(0.76, abs=0.01) and of_error.params[
        "g"
    ] == pytest.approx(1.0, abs=0.1)
    of_loss = laws.fit(overtraining(), inputs, loss, bootstrap=laws.Bootstrap(count=60))
    said = predict_error(of_loss, of_error, {"parameters": 1e9, "tokens": 1e11})
    true_loss = np.exp(
        of_loss.law.predict(
            of_loss.law.coordinates(TRUTH)[None],
            {"parameters": np.array([1e9]), "tokens": np.array([1e11])},
        )[0]
    )
    assert said.low[0] <= truth["eps"] - truth["k"] * np.exp(-true_loss[0]) <= said.high[0]
    assert said.low[0] < said.value[0] < said.high[0] < truth["eps"]
    with pytest.raises(FitError, match="not the loss"):
        predict_error(of_loss, of_loss, inputs)


@pytest.mark.skipif(not RUNS.exists(), reason="shared data overtrained-lm is not on this machine")
def test_published_refits_are_reproduced():
    table = RunTable.read(RUNS, parameters="params", loss="loss_c4_val", counts="total")
    # shared README: refits of Gadre et al. 2024's points on the C4 validation loss.
    for name, floor, exponent in (("c4", 1.40, 0.117), ("rpj", 1.68, 0.125), ("rw", 1.76, 0.128)):
        fitted = laws.fit(
            overtraining(), table.where(train_set=name), "loss", bootstrap=laws.Bootstrap(count=0)
        )
        assert fitted.params["E"] == pytest.approx(floor, abs=0.1) and fitted.params[
            "h"
        ] == pytest.approx(exponent, abs=0.007)
    part = table.where(train_set="c4")
    of_error = laws.fit(
        downstream_error(), part, 1 - part["mean_acc_46"], bootstrap=laws.Bootstrap(count=0)
    )
    assert (
        of_error.params["eps"] == pytest.approx(0.76, abs=0.02)
        and 0.85 <= of_error.params["g"] <= 1.1
    )
