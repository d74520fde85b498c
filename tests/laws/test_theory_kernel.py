"""Learning curves forecast from features and labels.

Against probes on drawn features, and what is refused.
"""

import numpy as np
import pytest

from steelyard.errors import DataError
from steelyard.laws.theory.kernel import from_kernel

ROWS, COLUMNS, NOISE = 1200, 80, 0.1
RANK = np.arange(1, COLUMNS + 1.0)


@pytest.fixture(scope="module")
def task():
    """Features of variance k^-1.4 along hidden directions, a target of power k^-1.8, and noise."""
    generator = np.random.default_rng(0)
    turn, _ = np.linalg.qr(generator.standard_normal((COLUMNS, COLUMNS)))
    hidden = generator.standard_normal((2 * ROWS, COLUMNS))
    targets = hidden @ RANK**-0.9 + np.sqrt(NOISE) * generator.standard_normal(2 * ROWS)
    return 5 + (hidden * RANK**-0.7) @ turn, 3 + targets


def ridge_error(task, size, ridge, generator, repeats=12):
    features, targets = (values - values.mean(axis=0) for values in task)
    errors = []
    for _ in range(repeats):
        chosen = generator.permutation(ROWS)[:size]
        weights = np.linalg.solve(
            features[chosen].T @ features[chosen] / size + ridge * np.eye(COLUMNS),
            features[chosen].T @ targets[chosen] / size,
        )
        errors.append(np.mean((targets[ROWS:] - features[ROWS:] @ weights) ** 2))
    return np.mean(errors)


def test_planted_noise_and_power_are_found(task):
    model = from_kernel(task[0][:ROWS], task[1][:ROWS])
    assert model.label_noise == pytest.approx(NOISE, rel=0.2)
    assert model.spectrum.total_power == pytest.approx((RANK**-1.8).sum(), rel=0.1)
    assert model.spectrum.trace == pytest.approx((RANK**-1.4).sum(), rel=0.05)
    assert model.spectrum.variance.max() == pytest.approx(1.0, rel=0.15)
    assert model.b == pytest.approx(1.4, abs=0.2)


@pytest.mark.parametrize("labels", [ROWS, 150])
def test_forecast_of_ridge_probes_over_labels(task, labels):
    """From all labels, and with 8 times as many as were given."""
    model = from_kernel(task[0][:labels], task[1][:labels], task[0][labels:ROWS])
    generator = np.random.default_rng(1)
    for size in (40, 150, 1200):
        for ridge in (1e-2, 1e-1):
            said = model.ridge_loss(ridge, samples=size)[0][0] + model.label_noise
            assert said == pytest.approx(
                ridge_error(task, size, ridge, generator), rel=0.15 if labels == ROWS else 0.3
            )


def test_forecast_of_gradient_descent(task):
    model = from_kernel(task[0][:ROWS], task[1][:ROWS])
    features, targets = (values - values.mean(axis=0) for values in task)
    generator = np.random.default_rng(2)
    steps, errors = [3, 100], []
    for _ in range(12):
        chosen = generator.permutation(ROWS)[:60]
        weights = np.zeros(COLUMNS)
        for step in range(101):
            if step in steps:
                errors.append(np.mean((targets[ROWS:] - features[ROWS:] @ weights) ** 2))
            weights += (
                model.learning_rate
                * features[chosen].T
                @ (targets[chosen] - features[chosen] @ weights)
                / 60
            )
    measured = np.array(errors).reshape(-1, 2).mean(axis=0)
    np.testing.assert_allclose(
        model.loss(steps, samples=60).test + model.label_noise, measured, rtol=0.1
    )


def test_more_features_than_rows(task):
    """100 rows in 80 + 60 dimensions, of which 60 repeat others, lead to the model without them."""
    features, targets = task[0][:100], task[1][:100]
    twice = np.concatenate([features, features[:, :60]], axis=1)
    wide, rows = (
        from_kernel(twice, targets),
        from_kernel(np.concatenate([features, features], axis=1), targets),
    )
    assert wide.ridge_loss(0.1, samples=50)[0][0] > 0
    plain = from_kernel(features * np.sqrt(2), targets)
    assert rows.ridge_loss(0.1, samples=50)[0] == pytest.approx(
        plain.ridge_loss(0.1, samples=50)[0], rel=1e-4
    )


def test_columns_of_targets_add_up(task):
    features, targets = task[0][:300], task[1][:300]
    both = from_kernel(features, np.column_stack([targets, targets]))
    one = from_kernel(features, targets)
    assert both.ridge_loss(0.1, samples=100)[0] == pytest.approx(
        2 * one.ridge_loss(0.1, samples=100)[0], rel=1e-6
    )


@pytest.mark.parametrize(
    ("features", "targets", "unlabeled", "words"),
    [
        (np.ones((40, 3)), np.arange(40.0), None, "constant"),
        (np.random.default_rng(0).random((40, 3)), np.ones(40), None, "constant"),
        (np.zeros((40, 3)), np.zeros(39), None, "same rows"),
        (np.zeros((10, 3)), np.zeros(10), None, "too few"),
        (np.full((40, 3), np.nan), np.zeros(40), None, "row 1"),
        (np.zeros((40, 3)), np.zeros(40), np.zeros((5, 4)), "3 columns"),
    ],
)
def test_bad_input_is_refused(features, targets, unlabeled, words):
    with pytest.raises(DataError, match=words):
        from_kernel(features, targets, unlabeled)


def test_share_outside_its_range_is_refused(task):
    with pytest.raises(DataError, match="share"):
        from_kernel(task[0][:100], task[1][:100], unlearnable=1.5)
