"""Noise of minibatches: every step adds noise in proportion to the train loss of that step."""

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.mean_field.losses import Dynamics, fluctuations, mean_field

__all__ = ["minibatch_losses"]

_EXACT_STEPS = 512
_NODES_PER_DECADE = 48
"""Losses are power laws at late steps, which a spline through logs follows with few nodes."""


def minibatch_losses(
    dynamics: Dynamics, steps: NDArray[np.int64], batch: float
) -> tuple[Array, Array]:
    """Return test and train loss of stochastic gradient descent.

    The losses without noise and their response to noise are exact on the first 512 steps and on
    log-spaced ones beyond, with a cubic spline in log-log space between; the losses then solve a
    convolution equation in the train loss.

    Args:
        dynamics: the student; samples are inf for a fresh batch in every step.
        steps: not negative, [t].
        batch: examples per step, at most the samples.

    Returns:
        Test and train loss, [t] each.

    Raises:
        ConfigError: the noise feeds itself, so that the run diverges.

    Source: Bordelon, Atanasov, Pehlevan 2024 (arXiv 2402.01092), the section on online SGD.
    """
    last = int(steps.max())
    noise = 1 / batch - 1 / dynamics.samples
    plain = mean_field(dynamics, _nodes(last))
    test, train = (_every_step(values, last) for values in plain[:2])
    if noise <= 0:
        return test[steps], train[steps]
    test_response, train_response = (
        _every_step(values, last) for values in fluctuations(dynamics, _nodes(last))
    )
    gain = noise * float(train_response.sum())
    if gain >= 1:
        raise ConfigError(
            f"batches of {batch:g} at learning rate {dynamics.learning_rate:g} diverge within "
            f"{last} steps: noise feeds itself {gain:.3g}-fold",
            hint="take larger batches or a lower learning rate, in proportion",
        )
    train = _convolution_equation(train, noise * np.r_[0.0, train_response[1:]])
    test = test + noise * _convolve(np.r_[0.0, test_response[1:]], train)
    return test[steps], train[steps]


def _nodes(last: int) -> NDArray[np.int64]:
    """Return the steps that are solved for: all early ones, log-spaced late ones, and the last."""
    early = np.arange(min(last, _EXACT_STEPS) + 1)
    if last <= _EXACT_STEPS:
        return early
    count = int(np.ceil(np.log10(last / _EXACT_STEPS) * _NODES_PER_DECADE)) + 4
    return np.concatenate(
        [early, np.unique(np.round(np.geomspace(_EXACT_STEPS, last, count)).astype(np.int64))[1:]]
    )


def _every_step(values: Array, last: int) -> Array:
    """Fill the steps between the nodes, [last + 1]."""
    nodes = _nodes(last)
    if len(nodes) == last + 1:
        return values
    from scipy.interpolate import CubicSpline

    # The spline begins among the exact steps, so that its end conditions bend nothing beyond them.
    late = np.flatnonzero(nodes >= _EXACT_STEPS // 2)
    floor = np.finfo(np.float64).tiny
    spline = CubicSpline(np.log(nodes[late]), np.log(np.maximum(values[late], floor)))
    return np.concatenate(
        [values[: _EXACT_STEPS + 1], np.exp(spline(np.log(np.arange(_EXACT_STEPS + 1, last + 1))))]
    )


def _convolve(first: Array, second: Array) -> Array:
    """Convolve two series, [n], up to their length."""
    size = 1 << (2 * len(first) - 1).bit_length()  # padded, so that the ends do not wrap around
    product = np.fft.rfft(first, size) * np.fft.rfft(second, size)
    return np.asarray(np.fft.irfft(product, size)[: len(first)], dtype=np.float64)


def _convolution_equation(start: Array, response: Array) -> Array:
    """Solve c = start + response * c for a response that is 0 at no delay, [n]."""
    # Each round doubles the stretch of steps that is solved: (1 + r)(1 + r^2)(1 + r^4)...
    total = start
    power = response
    for _ in range(int(np.ceil(np.log2(len(start) + 1)))):
        total = total + _convolve(power, total)
        power = _convolve(power, power)
    return total
