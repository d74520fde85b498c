"""The mean-field theory against iterated T x T matrices, closed formulas and simulated training."""

import numpy as np
import pytest
from benchmarks.laws._error_covariance import error_covariance

from steelyard.laws.theory.mean_field.losses import (
    Dynamics,
    fluctuations,
    learning_rate_limit,
    mean_field,
    ridge_losses,
)
from steelyard.laws.theory.random_features import RandomFeatureModel
from steelyard.laws.theory.spectrum import Spectrum

RANK = np.arange(1, 31.0)
SPECTRUM = Spectrum(RANK**-1.5, RANK**-2.0)


def student(width=np.inf, samples=np.inf, learning_rate=0.4, **more):
    return Dynamics(
        spectrum=more.pop("spectrum", SPECTRUM),
        width=width,
        samples=samples,
        learning_rate=learning_rate,
        **more,
    )


def iterated(dynamics, steps, noise=0.0):
    """Solve the theory the slow way, by causal T x T matrices; `noise` is that of minibatches."""
    variance, power = dynamics.spectrum.variance, dynamics.spectrum.power
    size = steps + 1
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    kernel = [sum(dynamics.momentum**power for power in range(d)) for d in range(size)]
    shift = dynamics.learning_rate * np.array(
        [[kernel[d] if d > 0 else 0.0 for d in row] for row in lag]
    )
    one, same = np.ones((size, size)), np.eye(size)
    column = variance[:, None, None]
    r1 = r3 = same
    for _ in range(30):
        inverse = np.linalg.inv(same + column * (shift @ r3 @ r1))
        total = (column * inverse).sum(axis=0) @ shift
        r1, r3 = (
            np.linalg.inv(same + total @ r3 / dynamics.samples),
            np.linalg.inv(same + r1 @ total / dynamics.width),
        )
    inverse = np.linalg.inv(same + column * (shift @ r3 @ r1))
    turned = inverse.transpose(0, 2, 1)
    push = shift @ r3
    back = same - column * (r1 @ inverse @ push)
    c1 = c2 = c3 = np.zeros((size, size))
    for _ in range(50):
        base = (power / variance)[:, None, None] * one + shift @ c3 @ shift.T / dynamics.width
        seen = c1 / dynamics.samples + noise * (r1 @ np.diag(np.diag(c2)) @ r1.T)
        c0 = (column * (inverse @ (base + column * (push @ seen @ push.T)) @ turned)).sum(axis=0)
        c1 = r1 @ (c0 + dynamics.label_noise * one) @ r1.T
        source = (
            np.diag(np.diag(c2))
            * noise
            * (dynamics.samples if np.isfinite(dynamics.samples) else 0.0)
        )
        c2 = c1 + (r1 - same) @ source @ (r1 - same).T
        c3 = (
            r3
            @ (
                column * back @ seen @ back.transpose(0, 2, 1)
                + column**2 * (r1 @ inverse @ base @ turned @ r1.T)
            ).sum(axis=0)
            @ r3.T
        )
        c3 = c3 if np.isfinite(dynamics.width) else np.zeros_like(c3)
    return c0, c2


@pytest.mark.parametrize(("width", "samples"), [(12, np.inf), (np.inf, 15), (12, 30), (30, 12)])
def test_losses_equal_iterated_matrices(width, samples):
    dynamics = student(width, samples, learning_rate=0.3, label_noise=0.1)
    losses = mean_field(dynamics, np.arange(37))
    test, train = iterated(dynamics, 36)
    np.testing.assert_allclose(losses.test, np.diag(test), rtol=1e-8)
    np.testing.assert_allclose(losses.train, np.diag(train), rtol=1e-8)
    np.testing.assert_allclose(error_covariance(dynamics, 36), test, rtol=1e-7)


def test_momentum_equals_iterated_matrices():
    dynamics = student(20, 25, learning_rate=0.1, momentum=0.7)
    test, _ = iterated(dynamics, 36)
    np.testing.assert_allclose(mean_field(dynamics, np.arange(37)).test, np.diag(test), rtol=1e-8)


@pytest.mark.parametrize(("width", "samples"), [(25, np.inf), (25, 30), (np.inf, 30)])
def test_minibatches_equal_iterated_matrices(width, samples):
    model = RandomFeatureModel(learning_rate=0.2, label_noise=0.05, spectrum=SPECTRUM)
    curve = model.loss(np.arange(37), width, samples, batch=10)
    test, train = iterated(
        student(width, samples, learning_rate=0.2, label_noise=0.05), 36, noise=1 / 10 - 1 / samples
    )
    np.testing.assert_allclose(curve.test, np.diag(test), rtol=1e-7)
    np.testing.assert_allclose(curve.train, np.diag(train), rtol=1e-7)


def test_endless_student_follows_the_diagonal_formula():
    steps = np.array([0, 1, 2, 5, 31, 32, 33, 34, 100, 1001, 10**6])
    for rate in (0.4, 1.6, 1.95):
        exact = (SPECTRUM.power * (1 - rate * SPECTRUM.variance) ** (2 * steps[:, None])).sum(
            axis=1
        )
        np.testing.assert_allclose(
            mean_field(student(learning_rate=rate), steps).test, exact, rtol=0, atol=1e-10
        )


def test_momentum_follows_the_heavy_ball_recursion_at_all_steps():
    """Early steps come from the circle, late ones from contours around both signs of z.

    The largest rate overshoots.
    """
    wanted = np.array([1, 40, 99, 101, 250, 1000])
    for rate, momentum in ((0.3, 0.5), (2.9, 0.5), (0.05, 0.9)):
        error, moved, losses = np.sqrt(SPECTRUM.power), np.zeros(30), []
        for _ in range(1001):
            losses.append(error @ error)
            moved = momentum * moved + SPECTRUM.variance * error
            error = error - rate * moved
        found = mean_field(student(learning_rate=rate, momentum=momentum), wanted).test
        np.testing.assert_allclose(found, np.array(losses)[wanted], rtol=1e-6, atol=1e-9)


def test_early_and_late_steps_join():
    """The circle and the fitted contour give the same function of the step."""
    dynamics = student(15, 20, learning_rate=0.3)
    together = mean_field(dynamics, np.array([32, 33, 34])).test
    slow = student(15, 20, learning_rate=0.3, momentum=1e-3)
    np.testing.assert_allclose(
        together[1] / together[0],
        mean_field(slow, np.array([33])).test / mean_field(slow, np.array([32])).test,
        rtol=1e-5,
    )


def test_published_check_values():
    """Values at M = 300, b = 1.5, a = 2, eta = .4, computed from iterated 60 x 60 matrices."""
    model = RandomFeatureModel(a=2.0, b=1.5, modes=300)
    np.testing.assert_allclose(model.loss([10, 59], width=40).test, [0.273369, 0.135482], rtol=1e-3)
    both = model.loss(59, width=40, samples=120)
    np.testing.assert_allclose([both.test[0], both.train[0]], [0.152564, 0.116042], rtol=1e-3)
    few = model.loss(59, width=120, samples=40)
    np.testing.assert_allclose([few.test[0], few.train[0]], [0.132660, 0.049878], rtol=1e-3)


def test_before_training_test_and_train_loss_are_the_total_power():
    losses = mean_field(student(10, 20, learning_rate=0.3), np.array([0]))
    for values in losses:
        assert values[0] == pytest.approx(SPECTRUM.total_power, rel=1e-9)


def test_ridge_with_endless_samples_and_features_keeps_bias_only():
    ridge = np.array([1e-3, 1.0])
    test, train = ridge_losses(student(), ridge)
    exact = (SPECTRUM.power * (ridge[:, None] / (ridge[:, None] + SPECTRUM.variance)) ** 2).sum(
        axis=1
    )
    np.testing.assert_allclose(test, exact, rtol=1e-12)
    np.testing.assert_allclose(train, exact, rtol=1e-12)


def test_ridge_agrees_with_drawn_samples():
    generator, ridge, samples = np.random.default_rng(0), 0.01, 400
    weights = np.sqrt(SPECTRUM.power / SPECTRUM.variance)
    losses = []
    for _ in range(30):
        features = generator.standard_normal((samples, 30)) * np.sqrt(SPECTRUM.variance)
        labels = features @ weights + np.sqrt(0.2) * generator.standard_normal(samples)
        fitted = np.linalg.solve(
            features.T @ features / samples + ridge * np.eye(30), features.T @ labels / samples
        )
        losses.append(SPECTRUM.variance @ (weights - fitted) ** 2)
    theory = ridge_losses(student(samples=samples, label_noise=0.2), np.array([ridge]))[0][0]
    assert np.mean(losses) == pytest.approx(theory, rel=0.05)


def test_limit_bounds_the_curvature_of_drawn_students():
    assert learning_rate_limit(student()) == pytest.approx(2.0, rel=1e-5)
    generator = np.random.default_rng(1)
    edges = []
    for _ in range(20):
        features = generator.standard_normal((60, 30)) / np.sqrt(60)
        inputs = generator.standard_normal((90, 30)) * np.sqrt(SPECTRUM.variance)
        edges.append(np.linalg.eigvals(features.T @ features @ inputs.T @ inputs / 90).real.max())
    largest = 2 / learning_rate_limit(student(60, 90))
    assert np.quantile(edges, 0.9) < largest < 1.5 * np.mean(edges)


def test_limit_is_the_edge_of_many_equal_modes():
    """Marchenko and Pastur's edge (1 + sqrt(M / P))^2."""
    flat = Spectrum(np.ones(1), np.ones(1), np.array([100.0]))
    assert learning_rate_limit(student(samples=400, spectrum=flat)) == pytest.approx(
        2 / 1.5**2, rel=1e-3
    )


def test_noise_adds_nothing_before_a_step():
    test, train = fluctuations(student(15, 20, learning_rate=0.3), np.arange(4))
    assert test[0] == pytest.approx(0, abs=1e-9)
    assert train[0] == pytest.approx(0, abs=1e-9)
    assert (test[1:] > 0).all()
