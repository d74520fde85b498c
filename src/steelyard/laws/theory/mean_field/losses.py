"""Exact loss curves of large random-feature models.

Dynamical mean-field theory in the frequency domain.

The dynamics is linear with constant coefficients, so every response of the theory depends on the
time elapsed only. Its T x T triangular response matrices are then power series in one variable z,
and the self-consistent equations for them become one scalar equation per z,

    x = s (1 - h(x) / P) (1 - h(x) / N),   h(x) = sum_k lambda_k x / (1 + lambda_k x),

with s(z) = eta z / ((1 - z) (1 - beta z)) for gradient descent with momentum, or s = 1 / ridge for
ridge regression. The T x T covariances become functions of two variables in closed form. A loss is
the coefficient of z^t w^t, taken from a circle for early steps and from a contour fitted to t for
late ones, so that step 10^6 costs as much as step 100. No time grid is coarsened and nothing is
iterated over time.

Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), section 3 and appendix; contour of
Weideman 2006 (Optimizing Talbot's contours for the inversion of the Laplace transform, equation 1.5
and table 1).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.mean_field.dynamics import Complex, Dynamics, largest_curvature

__all__ = ["Losses", "circle", "error_covariance", "fluctuations", "mean_field", "ridge_losses"]

_FIRST_LATE = 33
"""From this step on a contour fitted to the step is used; before, one circle serves all steps."""
_NODES = 24
_CIRCLE_NODES_PER_STEP = 5
_ROUND_OFF = 1e-15
_PAIRS_AT_ONCE = 200_000


class Losses(NamedTuple):
    """Losses without label noise.

    Of one student, and of the mean of endless many that share only some of their chance.

    Attributes:
        test: [t].
        train: on the noisy labels, [t].
        shared_samples: test loss of endless many students on the same samples, each with its own
            random features, [t].
        shared_features: test loss of endless many students with the same random features, each on
            its own samples, [t].
        bias: test loss of endless many students that share neither, [t].
    """

    test: Array
    train: Array
    shared_samples: Array
    shared_features: Array
    bias: Array


class _Pairs(NamedTuple):
    """What the closed form needs at pairs of nodes, [..., n, m] each.

    Attributes:
        product: x x'.
        f1: sum of lambda K K'.
        f2: sum of lambda^2 K K'.
        g1: sum of lambda w^2 K K'.
        g2: sum of lambda^2 w^2 K K'.
        h_product: h h'.
        memory: r r' with r = 1 - h / P, how much of the initial error the train error keeps.
        source: 1 / ((1 - z) (1 - z')) of a constant, 1 for ridge regression.
    """

    product: Complex
    f1: Complex
    f2: Complex
    g1: Complex
    g2: Complex
    h_product: Complex
    memory: Complex
    source: Complex | float


_Function = Callable[[Dynamics, _Pairs], tuple[Complex, ...]]


def mean_field(dynamics: Dynamics, steps: NDArray[np.int64]) -> Losses:
    """Return the losses after given numbers of full-batch steps, exact in the limit of large sizes.

    Args:
        dynamics: the student; its learning rate must be below `learning_rate_limit`.
        steps: not negative, [t].

    Returns:
        The losses, [t] each.

    Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), section 3.
    """
    return Losses(*_coefficients(dynamics, steps, _losses))


def fluctuations(dynamics: Dynamics, steps: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return what one unit of minibatch noise adds to the losses some steps after it.

    A step on B of P examples has noise of (1 / B - 1 / P) times its train loss in these units.

    Args:
        dynamics: the student.
        steps: elapsed since the noise, not negative, [t].

    Returns:
        Additions to test and train loss, [t] each; 0 where no step has elapsed.
    """
    test, train = _coefficients(dynamics, steps, _responses)
    return test, train


def ridge_losses(dynamics: Dynamics, ridge: Array) -> tuple[Array, Array]:
    """Return test and train loss of ridge regression on the student's features, without the noise of test labels.

    Args:
        dynamics: the student; learning rate and momentum play no part.
        ridge: positive penalties, in units of the variance of a feature, [r].

    Returns:
        Test and train loss, [r] each.
    """
    x = dynamics.follow(
        (1 / np.maximum(ridge, _least_ridge(dynamics)))[:, None].astype(np.complex128)
    )
    test, train = _losses(dynamics, _pairs(dynamics, x, x, 1.0))[:2]
    return test.real[:, 0, 0], train.real[:, 0, 0]


def _least_ridge(dynamics: Dynamics) -> float:
    """Return the penalty below which less makes no difference: 1e-10 of the variance of the last mode that can be learned."""
    learned = np.searchsorted(
        np.cumsum(dynamics.spectrum.count), min(dynamics.width, dynamics.samples)
    )
    return (
        1e-10 * float(dynamics.spectrum.variance[learned])
        if learned < len(dynamics.spectrum.count)
        else 0.0
    )


def error_covariance(dynamics: Dynamics, last: int) -> Array:
    """Return how the errors on new examples after t and after t' steps go together.

    The test losses are its diagonal.

    Args:
        dynamics: the student.
        last: largest step, at most a few hundred.

    Returns:
        C0(t, t') for t, t' = 0 .. last, [last + 1, last + 1].

    Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), section 3.
    """
    z, x, radius = circle(dynamics, last)
    n, rows = len(z), len(z) // 2 + 1
    source = np.asarray(1 / ((1 - z[:rows, None]) * (1 - z)), dtype=np.complex128)
    values = _losses(dynamics, _pairs(dynamics, x[None, :rows], x[None], source))[0][0]
    weight = np.r_[1.0, np.full(rows - 2, 2.0), 1.0]
    steps = np.arange(last + 1)
    turns = np.exp(-2j * np.pi * np.outer(steps, np.arange(n)) / n)
    total = (turns[:, :rows] * weight) @ values @ turns.T
    return total.real / (float(n) ** 2 * radius ** (steps[:, None] + steps))


def _losses(dynamics: Dynamics, pairs: _Pairs) -> tuple[Complex, ...]:
    """Return the fields of `Losses` as functions of two variables."""
    learned, spread = _gains(dynamics, pairs)
    noise = dynamics.label_noise * pairs.source
    bias = pairs.source * pairs.g1
    features = bias + pairs.source * pairs.product * pairs.f1 * pairs.g2 / dynamics.width / learned
    test = (features + noise * spread) / (1 - spread)
    only = pairs.product * pairs.f2 / dynamics.samples
    return test, pairs.memory * (test + noise), (bias + noise * only) / (1 - only), features, bias


def _responses(dynamics: Dynamics, pairs: _Pairs) -> tuple[Complex, ...]:
    """Return the additions of `fluctuations` as functions of two variables."""
    learned, spread = _gains(dynamics, pairs)
    test = (pairs.product * pairs.f2 + pairs.product * pairs.f1**2 / dynamics.width / learned) / (
        1 - spread
    )
    return test, pairs.memory * test + pairs.h_product / dynamics.samples


def _gains(dynamics: Dynamics, pairs: _Pairs) -> tuple[Complex, Complex]:
    """Return 1 - the share of feature noise that feeds itself, and the share of the samples' noise that does."""
    learned = 1 - pairs.product * pairs.f2 / dynamics.width
    spread = (
        pairs.product * pairs.f2 + pairs.product * pairs.f1**2 / dynamics.width / learned
    ) / dynamics.samples
    return learned, spread


def _pairs(dynamics: Dynamics, rows: Complex, columns: Complex, source: Complex | float) -> _Pairs:
    """Sum over modes at all pairs of rows [paths, n] and columns [paths, m]."""
    from steelyard.laws.theory.mean_field.resolvent import pair_sums

    spectrum = dynamics.spectrum
    sums, left, right = pair_sums(rows, columns, spectrum.variance, spectrum.power, spectrum.count)
    h, h_other = (rows * left)[:, :, None], (columns * right)[:, None, :]
    memory = (1 - h / dynamics.samples) * (1 - h_other / dynamics.samples)
    return _Pairs(
        rows[:, :, None] * columns[:, None, :],
        sums[0],
        sums[1],
        sums[2],
        sums[3],
        h * h_other,
        memory,
        source,
    )


def _coefficients(
    dynamics: Dynamics, steps: NDArray[np.int64], function: _Function
) -> tuple[Array, ...]:
    """Take the coefficients of z^t z'^t, [t] each."""
    is_late = steps >= _first_late(dynamics)
    result: Any = None
    for chosen, take in ((is_late, _on_contours), (~is_late, _on_circle)):
        if chosen.any():
            values = take(dynamics, steps[chosen], function)
            result = np.empty((len(values), len(steps))) if result is None else result
            result[:, chosen] = values
    return tuple(result)


def _first_late(dynamics: Dynamics) -> int:
    """Return the step from which on the fitted contour is exact; momentum's oscillations must have died away."""
    if not dynamics.momentum:
        return _FIRST_LATE
    return max(_FIRST_LATE, int(np.ceil(2 * np.log(_ROUND_OFF) / np.log(dynamics.momentum))))


def circle(dynamics: Dynamics, last: int) -> tuple[Complex, Complex, float]:
    """Return nodes on a circle that serve steps up to `last`.

    Args:
        dynamics: the student.
        last: largest step.

    Returns:
        z and x, [n] each with n even, the second half the conjugate of the first; and the radius.
    """
    n = 2 * (_CIRCLE_NODES_PER_STEP * last // 2 + 8)
    radius = _ROUND_OFF ** (1 / n)
    z = radius * np.exp(2j * np.pi * np.arange(n // 2 + 1) / n)
    x = dynamics.follow(dynamics.drive(1 - z)[None])[0]
    z, x = (np.concatenate([values, values[-2:0:-1].conj()]) for values in (z, x))
    return z, x, radius


def _on_circle(dynamics: Dynamics, steps: NDArray[np.int64], function: _Function) -> Array:
    """Take coefficients from a circle: sum over pairs of nodes along anti-diagonals, then one Fourier transform."""
    z, x, radius = circle(dynamics, int(steps.max()))
    n = len(z)
    total: Any = None
    block = max(_PAIRS_AT_ONCE // n, 1)
    for begin in range(0, n // 2 + 1, block):
        rows = np.arange(begin, min(begin + block, n // 2 + 1))
        source = np.asarray(1 / ((1 - z[rows])[:, None] * (1 - z)), dtype=np.complex128)
        values = np.stack(function(dynamics, _pairs(dynamics, x[None, rows], x[None], source)))
        weight = np.where((rows == 0) | (rows == n // 2), 1.0, 2.0)[:, None]
        place = (rows[:, None] + np.arange(n)) % n
        values = (values.reshape(-1, *place.shape) * weight).reshape(len(values), -1)
        sums = [
            np.bincount(place.ravel(), part, n)
            for value in values
            for part in (value.real, value.imag)
        ]
        total = np.array(sums) if total is None else total + np.array(sums)
    angles = 2 * np.pi * (np.outer(steps, np.arange(n)) % n) / n
    real, imag = total[::2], total[1::2]
    return (real @ np.cos(angles).T + imag @ np.sin(angles).T) / (
        float(n) ** 2 * radius ** (2 * steps)
    )


def _on_contours(dynamics: Dynamics, steps: NDArray[np.int64], function: _Function) -> Array:
    """Take each coefficient from a contour fitted to its step; a second one where gradient descent overshoots."""
    theta = (2 * np.arange(_NODES // 2) + 1) * np.pi / _NODES
    scale = (_NODES / steps)[:, None]
    p = scale * (0.5017 * theta / np.tan(0.6407 * theta) - 0.6122 + 0.2645j * theta)
    slope = scale * (
        0.5017 / np.tan(0.6407 * theta)
        - 0.5017 * 0.6407 * theta / np.sin(0.6407 * theta) ** 2
        + 0.2645j
    )
    weight = -1j / _NODES * np.exp(p * steps[:, None]) * slope
    gap = -np.expm1(-p)
    x = dynamics.follow(dynamics.drive(gap))
    overshoot = (1 + np.sqrt(dynamics.momentum)) ** 2
    if dynamics.learning_rate * largest_curvature(dynamics) > overshoot:
        x = np.concatenate([x, dynamics.follow(dynamics.drive(2 - gap))], axis=1)
        gap, weight = (
            np.concatenate([gap, 2 - gap], axis=1),
            np.concatenate([weight, (-1.0) ** steps[:, None] * weight], axis=1),
        )
    results = []
    block = max(_PAIRS_AT_ONCE // (2 * gap.shape[1] ** 2), 1)
    for begin in range(0, len(steps), block):
        part = slice(begin, begin + block)
        columns, others = (
            np.concatenate([values[part], values[part].conj()], axis=1) for values in (x, gap)
        )
        source = np.asarray(1 / (gap[part][:, :, None] * others[:, None, :]), dtype=np.complex128)
        values = function(dynamics, _pairs(dynamics, x[part], columns, source))
        both = (
            weight[part][:, :, None]
            * np.concatenate([weight[part], weight[part].conj()], axis=1)[:, None, :]
        )
        results.append([2 * (both * value).sum(axis=(1, 2)).real for value in values])
    return np.concatenate(results, axis=1)
