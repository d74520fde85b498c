"""The random-feature model.

Against simulated students, its exponents, its answers, and what it refuses.
"""

from dataclasses import replace

import numpy as np
import pytest

from steelyard.errors import ConfigError, SteelyardWarning
from steelyard.laws.theory.random_features import RandomFeatureModel
from steelyard.laws.theory.spectrum import Spectrum

MODEL = RandomFeatureModel(a=2.0, b=1.5, modes=200)


def generators(runs, seed=0):
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(runs)]


@pytest.mark.parametrize(
    ("width", "samples", "batch"),
    [(50, np.inf, None), (50, 100, None), (np.inf, 60, None), (60, 80, 20), (np.inf, np.inf, 20)],
)
def test_simulated_students_have_the_loss_of_theory(width, samples, batch):
    model = replace(MODEL, label_noise=0.1)
    runs = model.simulate(40, width, samples, batch, generators=generators(40))
    curve = model.loss(runs.steps, width, samples, batch)
    near = (np.abs(runs.mean_test - curve.test) < 3 * runs.standard_error) | (
        np.abs(runs.mean_test / curve.test - 1) < 0.05
    )
    assert near.mean() >= 0.9
    np.testing.assert_allclose(runs.train.mean(axis=0), curve.train, rtol=0.12)


def test_simulation_equals_descent_on_all_modes():
    """A student trained in its own weights moves as the plain update of the error on every mode."""
    model = replace(MODEL, modes=30, spectrum=None)
    width, samples, steps = 10, 20, 15
    runs = model.simulate(steps, width, samples, generators=[np.random.default_rng(3)])
    variance, power = model.spectrum.expanded()
    generator = np.random.default_rng(3)
    features = generator.standard_normal((width, 30))
    inputs = generator.standard_normal((samples, 30)) * np.sqrt(variance)
    error = np.sqrt(power / variance)
    for step in range(steps + 1):
        assert runs.test[0, step] == pytest.approx(variance @ error**2, rel=1e-9)
        assert runs.train[0, step] == pytest.approx(np.mean((inputs @ error) ** 2), rel=1e-9)
        error = (
            error
            - model.learning_rate
            * features.T
            @ (features @ (inputs.T @ (inputs @ error)))
            / width
            / samples
        )


def test_same_generators_same_numbers():
    first, second = (MODEL.simulate(5, 10, 20, 5, generators=generators(2)) for _ in range(2))
    np.testing.assert_array_equal(first.test, second.test)


def test_ensembles_never_beat_one_student_as_wide_as_all():
    steps = np.array([3, 30, 100])
    ensemble = MODEL.ensemble_loss(steps, 4, width=25)
    assert (ensemble < MODEL.loss(steps, 25).test).all()
    assert (MODEL.loss(steps, 100).test < ensemble).all()
    np.testing.assert_allclose(
        MODEL.ensemble_loss(steps, 1, 25, 50), MODEL.loss(steps, 25, 50).test
    )


def test_ensemble_of_drawn_students_has_the_loss_of_theory():
    """Three students on the same samples, against the mean of their errors on every mode."""
    variance, power = MODEL.spectrum.expanded()
    losses = []
    for generator in generators(40):
        inputs = generator.standard_normal((50, 200)) * np.sqrt(variance)
        members = []
        for _ in range(3):
            features = generator.standard_normal((40, 200)) / np.sqrt(40)
            error = np.sqrt(power / variance)
            for _ in range(20):
                error = error - 0.4 * features.T @ (features @ (inputs.T @ (inputs @ error))) / 50
            members.append(error)
        losses.append(variance @ np.mean(members, axis=0) ** 2)
    assert np.mean(losses) == pytest.approx(MODEL.ensemble_loss(20, 3, 40, 50)[0], rel=0.06)


def test_exponents_of_the_paper():
    known = RandomFeatureModel(a=1.75, b=1.25).exponents()
    assert known.steps == pytest.approx(0.6)
    assert known.width == known.samples == pytest.approx(0.75)
    assert known.optimal_width == pytest.approx(1 / 2.25)
    assert known.optimal_steps == pytest.approx(1.25 / 2.25)
    assert known.compute == pytest.approx(0.75 / 2.25)
    smooth = RandomFeatureModel(a=5.0, b=1.0).exponents()
    assert (smooth.width, smooth.samples) == (1.0, 2.0)


def test_late_width_loss_equals_drawn_projections():
    """At the end of training a student leaves what random directions do not span."""
    model = RandomFeatureModel(a=4.5, b=1.25, modes=300)
    variance, power = model.spectrum.expanded()
    for width in (15, 30):
        left = []
        for generator in generators(10):
            basis, _ = np.linalg.qr(
                np.sqrt(variance)[:, None] * generator.standard_normal((len(variance), width))
            )
            left.append(power.sum() - np.sum((basis.T @ np.sqrt(power)) ** 2))
        assert np.mean(left) == pytest.approx(model.ridge_loss(1e-20, width=width)[0][0], rel=0.1)


def test_compute_optimal_beats_its_neighbors():
    best = MODEL.compute_optimal(1e4)
    assert best.width * best.steps == pytest.approx(1e4)
    for factor in (0.7, 1.4):
        steps = round(best.steps * factor)
        assert MODEL.loss(steps, 1e4 / steps).test[0] >= best.loss * (1 - 1e-9)


def test_bottleneck_names_what_is_short():
    assert MODEL.bottleneck(3, 500, 500).binding == "steps"
    assert MODEL.bottleneck(3000, 10, 5000).binding == "width"
    assert MODEL.bottleneck(3000, 5000, 10).binding == "samples"
    assert MODEL.bottleneck(30).width == 0.0


def test_bins_of_modes_give_the_loss_of_single_modes():
    rank = np.arange(1, 20001.0)
    single = RandomFeatureModel(spectrum=Spectrum(rank**-1.5, rank**-2.0))
    binned = RandomFeatureModel(a=2.0, b=1.5, modes=20000)
    assert len(binned.spectrum.count) < 200
    steps = np.array([5, 50, 3000])
    np.testing.assert_allclose(
        binned.loss(steps, 40, 60).test, single.loss(steps, 40, 60).test, rtol=2e-4
    )


def test_long_minibatch_runs_are_smooth_where_nodes_thin_out():
    steps = np.array([500, 512, 513, 600, 2000])
    plain, noisy = (
        replace(MODEL, modes=10**6, spectrum=None).loss(steps, batch=batch).test
        for batch in (None, 1e9)
    )
    np.testing.assert_allclose(noisy, plain, rtol=1e-5)


def test_few_modes_are_reported():
    with pytest.warns(SteelyardWarning, match="modes are few"):
        curve = replace(MODEL, modes=20, spectrum=None).loss([10**4])
    assert curve.truncation[0] > 0.9
    assert MODEL.loss([1]).truncation[0] < 0.01


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: RandomFeatureModel(a=1.0), "above 1"),
        (lambda: RandomFeatureModel(b=-1.0), "capacity"),
        (lambda: RandomFeatureModel(modes=0), "0 modes"),
        (lambda: RandomFeatureModel(momentum=0.99), "momentum"),
        (lambda: RandomFeatureModel(learning_rate=-1), "learning_rate"),
        (lambda: Spectrum(np.array([1.0, -0.1]), np.ones(2)), "mode 2 is -0.1"),
        (lambda: Spectrum(np.ones(2), np.zeros(2)), "no power"),
        (lambda: MODEL.loss(5, width=0), "width 0"),
        (lambda: MODEL.loss(5, samples=-3), "samples -3"),
        (lambda: MODEL.loss(-1), "whole numbers"),
        (lambda: MODEL.loss(1.5), "whole numbers"),
        (lambda: MODEL.loss(5, samples=10, batch=20), "batch"),
        (lambda: replace(MODEL, learning_rate=2.1).loss(5), "the limit is 2"),
        (lambda: replace(MODEL, learning_rate=1.9).loss(5, width=10), "limit"),
        (lambda: replace(MODEL, learning_rate=1.5).loss(100, batch=1), "diverge"),
        (lambda: MODEL.ridge_loss(0.0), "ridge"),
        (lambda: MODEL.ensemble_loss(5, 0), "0 students"),
        (lambda: MODEL.compute_optimal(1), "budget"),
        (lambda: MODEL.bottleneck(1), "2 steps"),
        (lambda: MODEL.simulate(5, 10, generators=[]), "one generator per run"),
        (lambda: MODEL.simulate(5, 10.5, generators=generators(1)), "whole number of width"),
        (
            lambda: RandomFeatureModel(modes=10**8).simulate(5, 10, generators=generators(1)),
            "too many to simulate",
        ),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
