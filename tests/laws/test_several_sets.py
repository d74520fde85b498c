"""Noise of the run and of the set, found apart where they were put."""

import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import FitError
from steelyard.laws.decisions.several_sets import fit_sets, split_noise
from steelyard.laws.fitting.bootstrap import Bootstrap

LAW = laws.chinchilla(tied=True)
FEW, NO_DRAWS = Bootstrap(count=60), Bootstrap(count=0)


def _runs(seed, *, run=0.006, own=(0.002, 0.004, 0.008), count=80):
    """Draw runs measured on three sets."""
    generator = np.random.default_rng(seed)
    points = {
        "parameters": 10 ** generator.uniform(7, 9, count),
        "tokens": 10 ** generator.uniform(9, 11, count),
    }
    loss = 1.8 + 400 / points["parameters"] ** 0.34 + 400 / points["tokens"] ** 0.34
    shared = run * generator.standard_normal(count)
    for index, sd in enumerate(own):
        points[f"loss_{index}"] = (
            (1 + 0.1 * index) * loss * np.exp(shared + sd * generator.standard_normal(count))
        )
    return points


def test_noise_of_run_and_sets_is_found_apart():
    found = [
        fit_sets(LAW, _runs(seed), ["loss_0", "loss_1", "loss_2"], bootstrap=NO_DRAWS)
        for seed in range(4)
    ]
    assert np.mean([item.noise.run for item in found]) == pytest.approx(0.006, rel=0.3)
    for index, sd in enumerate((0.002, 0.004, 0.008)):
        own = np.mean([item.noise.by_set[f"loss_{index}"] for item in found])
        assert own == pytest.approx(sd, rel=0.5)
    assert "noise of the run" in str(found[0].noise)


def test_the_mean_of_sets_is_as_sure_as_what_they_do_not_share():
    at = {"parameters": 3e8, "tokens": 3e10}
    names = ["loss_0", "loss_1", "loss_2"]
    found = fit_sets(LAW, _runs(0), names, bootstrap=FEW)
    true = float(np.mean([(1 + 0.1 * index) for index in range(3)])) * (
        1.8 + 400 / 3e8**0.34 + 400 / 3e10**0.34
    )
    said = found.mean(at)
    assert said.low < true < said.high
    alone = found.fits["loss_2"].predict(at).first
    assert (said.high - said.low) / said.value < (alone.high - alone.low) / alone.value
    only = found.mean(at, weights={"loss_0": 1, "loss_1": 0, "loss_2": 0}).value
    assert only == pytest.approx(found.fits["loss_0"].predict(at).value[0])
    with pytest.raises(FitError, match="weights of loss_0"):
        found.mean(at, weights={"loss_0": 1})
    with pytest.raises(FitError, match="two or more"):
        fit_sets(LAW, _runs(0), ["loss_0"])
    with pytest.raises(FitError, match="loss_9"):
        fit_sets(LAW, _runs(0), ["loss_0", "loss_9"])


def test_samples_of_a_run():
    shares = []
    for seed in range(6):
        points = _runs(seed, own=(0.0,), count=40)
        generator = np.random.default_rng(100 + seed)
        long = {name: np.repeat(points[name], 4) for name in ("parameters", "tokens")}
        loss = np.repeat(points["loss_0"], 4) * np.exp(0.003 * generator.standard_normal(160))
        fitted = laws.fit(LAW, long, loss, bootstrap=Bootstrap(count=0))
        parts, share = split_noise(fitted, np.repeat(np.arange(40), 4))
        assert parts.by_set["sample"] == pytest.approx(0.003, rel=0.25)
        assert share.low <= share.value <= share.high
        shares.append(parts.run)
    assert np.mean(shares) == pytest.approx(0.006, rel=0.15)
    with pytest.raises(FitError, match="160 labels of 160 runs"):
        split_noise(fitted, np.arange(160))
