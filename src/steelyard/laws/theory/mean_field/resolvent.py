"""Compiled inner loops of the mean-field theory: the fixed point along a path, sums over modes.

Imported by the functions that need it, because numba takes a second to load.
"""

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit
from steelyard.laws.fitting.terms import Array

__all__ = ["follow", "pair_sums"]

Complex = NDArray[np.complex128]

_LARGEST_STEP = 0.4
"""Step in log s for which the tangent stays close enough that Newton finds the same branch."""
_CLOSE = 0.02
"""Nodes nearer than this, relative, are summed over modes; divided differences would cancel."""


@njit(cache=True)
def _sums(x, variance, count):
    """Return h = sum n lambda x K and its derivative by x, with K = 1 / (1 + lambda x)."""
    h, slope = 0j, 0j
    for k in range(len(variance)):
        real, imag = 1 + variance[k] * x.real, variance[k] * x.imag
        size = real * real + imag * imag
        kernel = complex(real / size, -imag / size)
        part = count[k] * variance[k] * kernel
        h += part * x
        slope += part * kernel
    return h, slope


@njit(cache=True)
def _newton(x, s, variance, count, per_sample, per_width):
    """Solve log s(x) = log s by Newton in log x; return x and d log x / d log s there."""
    rate = 1 + 0j
    for _ in range(30):
        h, slope = _sums(x, variance, count)
        data, features = 1 - h * per_sample, 1 - h * per_width
        rate = 1 / (1 + x * slope * (per_sample / data + per_width / features))
        step = np.log(s * data * features / x) * rate
        x *= np.exp(step)
        if abs(step) < 1e-14:
            break
    return x, rate


@njit(cache=True)
def follow(
    drives: Complex, variance: Array, count: Array, per_sample: float, per_width: float
) -> Complex:
    """Solve x = s (1 - h(x) / P) (1 - h(x) / N) along paths of s, from x = s at small s.

    A path never crosses the cut on the negative axis of s, so following it keeps the physical
    branch.

    Args:
        drives: s, [paths, nodes]; every path is joined to small s of the sign of its first node's
            real part.
        variance: lambda of each bin, [K].
        count: modes in each bin, [K].
        per_sample: 1 / P.
        per_width: 1 / N.

    Returns:
        x, [paths, nodes].
    """
    solved = np.empty_like(drives)
    # At small s the solution is x = s up to a percent, which picks the physical branch.
    small = 0.01 / (np.sum(variance * count) * max(per_sample, per_width))
    for path in range(drives.shape[0]):
        first = drives[path, 0]
        s = complex(min(small, abs(first)) * (1.0 if first.real > 0 else -1.0), 0.0)
        x, rate = _newton(s, s, variance, count, per_sample, per_width)
        for node in range(drives.shape[1]):
            goal = drives[path, node]
            change = np.log(goal / s)
            pieces = int(abs(change) / _LARGEST_STEP) + 1
            origin = s
            for piece in range(1, pieces + 1):
                s = goal if piece == pieces else origin * np.exp(change * piece / pieces)
                x, rate = _newton(
                    x * np.exp(rate * change / pieces), s, variance, count, per_sample, per_width
                )
            solved[path, node] = x
    return solved


@njit(cache=True)
def pair_sums(
    rows: Complex, columns: Complex, variance: Array, power: Array, count: Array
) -> tuple[Complex, Complex, Complex]:
    """Sum over modes at every pair of nodes, K and K' being 1 / (1 + lambda x) at the two.

    Args:
        rows: x, [paths, n].
        columns: x', [paths, m].
        variance: lambda of each bin, [K].
        power: lambda w^2 of each bin, [K].
        count: modes in each bin, [K].

    Returns:
        Sums of lambda K K', lambda^2 K K', lambda w^2 K K' and lambda^2 w^2 K K', [4, paths, n, m];
        and of lambda K at the rows and at the columns, [paths, n] and [paths, m].
    """
    paths, n, m = rows.shape[0], rows.shape[1], columns.shape[1]
    result = np.empty((4, paths, n, m), np.complex128)
    left, left_power = _node_sums(rows, variance, power, count)
    right, right_power = _node_sums(columns, variance, power, count)
    for path in range(paths):
        for i in range(n):
            for j in range(m):
                x, y = rows[path, i], columns[path, j]
                gap = x - y
                # Divided differences need one sum per node in place of one per pair.
                if abs(gap) > _CLOSE * abs(x):
                    a, b = left[path, i], right[path, j]
                    c, d = left_power[path, i], right_power[path, j]
                    result[0, path, i, j] = (x * a - y * b) / gap
                    result[1, path, i, j] = (b - a) / gap
                    result[2, path, i, j] = (x * c - y * d) / gap
                    result[3, path, i, j] = (d - c) / gap
                else:
                    f1, f2, g1, g2 = 0j, 0j, 0j, 0j
                    for k in range(len(variance)):
                        both = count[k] / ((1 + variance[k] * x) * (1 + variance[k] * y))
                        f1 += variance[k] * both
                        f2 += variance[k] * variance[k] * both
                        g1 += power[k] * both
                        g2 += variance[k] * power[k] * both
                    result[0, path, i, j], result[1, path, i, j] = f1, f2
                    result[2, path, i, j], result[3, path, i, j] = g1, g2
    return result, left, right


@njit(cache=True)
def _node_sums(nodes, variance, power, count):
    """Sum n lambda K and n lambda w^2 K over modes, [paths, n] each."""
    plain, weighted = np.empty_like(nodes), np.empty_like(nodes)
    for path in range(nodes.shape[0]):
        for i in range(nodes.shape[1]):
            a, b = 0j, 0j
            for k in range(len(variance)):
                kernel = count[k] / (1 + variance[k] * nodes[path, i])
                a += variance[k] * kernel
                b += power[k] * kernel
            plain[path, i], weighted[path, i] = a, b
    return plain, weighted
