"""Starts for curves that are linear in height and floor, given exponent and transition."""

import math

import numpy as np

from steelyard.laws.fitting.terms import Array

__all__ = ["NO_TRANSITION", "curve_starts"]

NO_TRANSITION = np.array([-150.0])
"""Log size of a transition before every size: a plain power law."""

_EXPONENTS = np.geomspace(0.05, 2.0, 16)
_KEPT = 2


def curve_starts(sizes: Array, values: Array, log_transitions: Array, log_none: float) -> Array:
    """Find height / (transition^beta + size^beta) + floor near the points.

    Every exponent from .05 to 2 is tried with every transition; height and floor follow from least
    squares of the relative errors.

    Args:
        sizes: the input, [n], positive.
        values: the target, [n], positive.
        log_transitions: natural logs of the transitions to try, [T].
        log_none: the log of the smallest height, floor and transition^beta.

    Returns:
        The two best: log height, log of transition^beta, beta, log floor, [2, 4].
    """
    exponents, transitions = np.meshgrid(_EXPONENTS, log_transitions, indexing="ij")
    beta, known = exponents.reshape(-1, 1), (exponents * transitions).reshape(-1, 1).clip(log_none)
    total = np.logaddexp(known, beta * np.log(sizes))
    top = total.min(axis=1, keepdims=True)
    shape, level = np.exp(top - total) / values, np.broadcast_to(1 / values, total.shape)
    height, floor = _line(shape, level, math.exp(log_none))
    misfit = ((height[:, None] * shape + floor[:, None] * level - 1) ** 2).sum(axis=1)
    best = np.argsort(misfit, kind="stable")[:_KEPT]
    return np.stack([np.log(height) + top[:, 0], known[:, 0], beta[:, 0], np.log(floor)], axis=1)[
        best
    ]


def _line(shape: Array, level: Array, smallest: float) -> tuple[Array, Array]:
    """Solve height * shape + floor * level = 1 by bounded least squares, [S] each."""
    ss, sl, ll = (
        (shape * shape).sum(axis=1),
        (shape * level).sum(axis=1),
        (level * level).sum(axis=1),
    )
    s1, l1 = shape.sum(axis=1), level.sum(axis=1)
    floor = np.maximum((l1 * ss - s1 * sl) / np.maximum(ss * ll - sl * sl, 1e-12), smallest)
    return np.maximum((s1 - floor * sl) / ss, smallest), floor
