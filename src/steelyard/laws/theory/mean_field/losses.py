"""Exact loss curves of large random-feature models: mean-field theory in the frequency domain.

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
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.spectrum import Spectrum

__all__ = [
    "Complex",
    "Dynamics",
    "Losses",
    "circle",
    "closed_form",
    "fluctuations",
    "learning_rate_limit",
    "mean_field",
    "node_pairs",
    "ridge_losses",
]

_FIRST_LATE = 33
"""From this step on a contour fitted to the step is used; before, one circle serves all steps."""
_NODES = 24
"""Nodes of a contour; each one is worth more than half a digit, and 24 reach float64."""
_CIRCLE_NODES_PER_STEP = 5
"""More nodes bring the radius nearer to 1, where round-off grows less: with five, by 1e6."""
_ROUND_OFF = 1e-15
_PAIRS_AT_ONCE = 200_000
"""Pairs of nodes that are held at once, so that memory stays small."""


Complex = NDArray[np.complex128]

_SHARES = np.concatenate([np.geomspace(1e-6, 0.5, 200), 1 - np.geomspace(0.5, 1e-9, 200)])
"""Places on the way from 0 to the first pole of h, dense at both ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamics:
    """Who learns, from how much, and how.

    Attributes:
        spectrum: spectrum of the task.
        width: features of the student N, positive; inf for the features themselves.
        samples: different examples P, positive; inf for fresh ones in every step.
        learning_rate: eta.
        momentum: beta, 0 for none.
        label_noise: variance of the noise on the training labels.
    """

    spectrum: Spectrum
    width: float
    samples: float
    learning_rate: float
    momentum: float = 0.0
    label_noise: float = 0.0

    def drive(self, gap: Complex) -> Complex:
        """Return s(z), how far past unit gradients have moved the weights, from the gap 1 - z."""
        return self.learning_rate * (1 - gap) / (gap * (1 - self.momentum * (1 - gap)))

    def follow(self, drives: Complex) -> Complex:
        """Solve the scalar equation along paths of s, [paths, nodes]."""
        from steelyard.laws.theory.mean_field.resolvent import follow

        if np.isinf(self.width) and np.isinf(self.samples):
            return drives
        return follow(
            drives, self.spectrum.variance, self.spectrum.count, 1 / self.samples, 1 / self.width
        )


def learning_rate_limit(dynamics: Dynamics) -> float:
    """Return the learning rate from which on gradient descent diverges.

    It is 2 (1 + momentum) / largest curvature. The curvature of a finite student on finite data
    reaches above lambda_1: its edge is where 1 / s turns back as x goes down the negative axis.

    Args:
        dynamics: the student.

    Returns:
        The limit of eta.
    """
    return 2 * (1 + dynamics.momentum) / largest_curvature(dynamics)


def largest_curvature(dynamics: Dynamics) -> float:
    """Return the upper edge of the spectrum of gradient descent's matrix.

    Args:
        dynamics: the student.

    Returns:
        The edge; lambda_1 of an endless student on endless data.
    """
    variance = dynamics.spectrum.variance
    count = dynamics.spectrum.count
    x = -_SHARES / variance.max()
    h = (count * variance * x[:, None] / (1 + variance * x[:, None])).sum(axis=1)
    return float((-(1 - h / dynamics.samples) * (1 - h / dynamics.width) / x).min())


class Losses(NamedTuple):
    """Losses of one student, and of the mean of endless many that share some of their chance.

    Attributes:
        test: test loss without label noise, [t].
        train: train loss on the noisy labels, [t].
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
    return Losses(*_coefficients(dynamics, steps, closed_form))


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
    """Return test and train loss of ridge regression on the student's features.

    Args:
        dynamics: the student; learning rate and momentum play no part.
        ridge: positive penalties, in units of the variance of a feature, [r].

    Returns:
        Test loss without label noise, and train loss, [r] each.
    """
    x = dynamics.follow(
        (1 / np.maximum(ridge, _least_ridge(dynamics)))[:, None].astype(np.complex128)
    )
    test, train = closed_form(dynamics, node_pairs(dynamics, x, x, 1.0))[:2]
    return test.real[:, 0, 0], train.real[:, 0, 0]


def _least_ridge(dynamics: Dynamics) -> float:
    """Return the penalty below which less makes no difference; a smaller one only loses digits."""
    spectrum = dynamics.spectrum
    smaller = min(dynamics.width, dynamics.samples)
    last = np.searchsorted(np.cumsum(spectrum.count), smaller)  # the last mode that can be learned
    return 1e-10 * float(spectrum.variance[last]) if last < len(spectrum.count) else 0.0


def closed_form(dynamics: Dynamics, pairs: _Pairs) -> tuple[Complex, ...]:
    """Return the fields of `Losses` as functions of two variables, see the head of this module."""
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
    """Return 1 - the share of feature noise that feeds itself, and that share of sample noise."""
    learned = 1 - pairs.product * pairs.f2 / dynamics.width
    spread = (
        pairs.product * pairs.f2 + pairs.product * pairs.f1**2 / dynamics.width / learned
    ) / dynamics.samples
    return learned, spread


def node_pairs(
    dynamics: Dynamics, rows: Complex, columns: Complex, source: Complex | float
) -> _Pairs:
    """Sum over modes at all pairs of nodes.

    Args:
        dynamics: the student.
        rows: x of one node of each pair, [paths, n].
        columns: x' of the other one, [paths, m].
        source: 1 / ((1 - z) (1 - z')), or 1 for ridge regression.

    Returns:
        What the closed form needs, [paths, n, m].
    """
    from steelyard.laws.theory.mean_field.resolvent import pair_sums

    spectrum = dynamics.spectrum
    sums, left, right = pair_sums(rows, columns, spectrum.variance, spectrum.power, spectrum.count)
    h, h_other = (rows * left)[:, :, None], (columns * right)[:, None, :]
    memory = (1 - h / dynamics.samples) * (1 - h_other / dynamics.samples)
    product = rows[:, :, None] * columns[:, None, :]
    return _Pairs._make((product, *sums, h * h_other, memory, source))


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
    """Return the step from which on the fitted contour is exact."""
    if not dynamics.momentum:
        return _FIRST_LATE
    # Momentum's oscillations, which the contour cuts off, must have died away: as sqrt(beta)^t.
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
    # Step t is aliased with t + n in proportion to radius^n, which this puts at round-off; a
    # smaller radius would only make round-off grow more, by radius^-2t.
    radius = _ROUND_OFF ** (1 / n)
    z = radius * np.exp(2j * np.pi * np.arange(n // 2 + 1) / n)
    x = dynamics.follow(dynamics.drive(1 - z)[None])[0]
    z, x = (np.concatenate([values, values[-2:0:-1].conj()]) for values in (z, x))
    return z, x, radius


def _on_circle(dynamics: Dynamics, steps: NDArray[np.int64], function: _Function) -> Array:
    """Take coefficients from a circle: sums along anti-diagonals, then one Fourier transform."""
    z, x, radius = circle(dynamics, int(steps.max()))
    n = len(z)
    total: Any = None
    block = max(_PAIRS_AT_ONCE // n, 1)
    for begin in range(0, n // 2 + 1, block):
        rows = np.arange(begin, min(begin + block, n // 2 + 1))
        source = np.asarray(1 / ((1 - z[rows])[:, None] * (1 - z)), dtype=np.complex128)
        values = np.stack(function(dynamics, node_pairs(dynamics, x[None, rows], x[None], source)))
        # Nodes come in conjugate pairs, so half of the rows stand for all, the real ones for one.
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
    found = total[::2] @ np.cos(angles).T + total[1::2] @ np.sin(angles).T
    return found / (float(n) ** 2 * radius ** (2 * steps))


def _on_contours(dynamics: Dynamics, steps: NDArray[np.int64], function: _Function) -> Array:
    """Take each coefficient from a contour fitted to its step.

    Source: Weideman 2006, equation 1.5 and table 1, for the constants of the contour.
    """
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
    # Above this rate times curvature the weights jump over the minimum in every step, which is a
    # second singularity at z = -1 and takes a second contour.
    overshoot = (1 + np.sqrt(dynamics.momentum)) ** 2
    if dynamics.learning_rate * largest_curvature(dynamics) > overshoot:
        x = np.concatenate([x, dynamics.follow(dynamics.drive(2 - gap))], axis=1)
        gap = np.concatenate([gap, 2 - gap], axis=1)
        weight = np.concatenate([weight, (-1.0) ** steps[:, None] * weight], axis=1)
    results = []
    block = max(_PAIRS_AT_ONCE // (2 * gap.shape[1] ** 2), 1)
    for begin in range(0, len(steps), block):
        part = slice(begin, begin + block)
        columns, others = (
            np.concatenate([values[part], values[part].conj()], axis=1) for values in (x, gap)
        )
        source = np.asarray(1 / (gap[part][:, :, None] * others[:, None, :]), dtype=np.complex128)
        values = function(dynamics, node_pairs(dynamics, x[part], columns, source))
        other = np.concatenate([weight[part], weight[part].conj()], axis=1)
        both = weight[part][:, :, None] * other[:, None, :]
        results.append([2 * (both * value).sum(axis=(1, 2)).real for value in values])
    return np.concatenate(results, axis=1)
