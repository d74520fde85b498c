"""Do rows fall into groups or levels that their sizes do not explain? Plain least squares."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array

__all__ = [
    "TwoLevels",
    "coefficients",
    "left_over",
    "overlaps",
    "share_explained",
    "spread_within",
    "surface",
    "two_levels",
]

_NEAR = np.log(1.5)
_LEFT = 0.1
"""Two halves of one normal heap, cut at its middle, leave .36 of its variance; two levels less than
this."""
_FEWEST = 3
_LEAST_SHARE = 0.15
_ROUNDS = 40
_POWERS = (0.0, 0.2, 0.4)
"""Logs suit laws without a floor, powers laws that have one."""
_MOST_COMPARED = 1000


def coefficients(design: Array, target: Array) -> tuple[Array, Array]:
    """Return least-squares coefficients of `design`, [n, k], and their errors, [k] each."""
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ target
    freedom = max(len(target) - design.shape[1], 1)
    variance = float(((target - design @ found) ** 2).sum()) / freedom
    return found, np.sqrt(np.maximum(variance * np.diag(inverse), 0.0))


def surface(axes: Sequence[Array], target: Array) -> Array:
    """Return columns whose least squares follow a smooth law of the sizes.

    Args:
        axes: log sizes, [n] each.
        target: log of what the law predicts, [n].

    Returns:
        A constant, each size as its log or a falling power, whichever follows the target best, and
        their products where there are rows enough, [n, k].
    """
    choices = [
        _products([_shape(log, power) for log, power in zip(axes, powers, strict=True)])
        for powers in itertools.product(_POWERS, repeat=len(axes))
    ]
    return min(choices, key=lambda design: left_over(design, target))


def _shape(log: Array, power: float) -> Array:
    """Return a size as its log or a falling power, with mean 0 and deviation 1."""
    value = np.exp(-power * (log - log.mean())) if power else log
    return (value - value.mean()) / value.std()


def _products(unit: Sequence[Array]) -> Array:
    """Return a constant, the columns, and their products, [n, k]."""
    base = [np.ones(len(unit[0])), *unit]
    every = [*base, *(a * b for index, a in enumerate(unit) for b in unit[index:])]
    # Few runs would be followed by a curved law, noise and all.
    return np.stack(every if len(unit[0]) >= 3 * len(every) else base, axis=1)


def overlaps(axes: Sequence[Array], codes: NDArray) -> float:
    """Return the share of rows with a row of another group near in size.

    Args:
        axes: log sizes, [n] each.
        codes: group of each row, [n].

    Returns:
        Share of rows, 0..1; of tables with very many rows an even sample is looked at.
    """
    step = max(len(codes) // _MOST_COMPARED, 1)
    thin = [log[::step] for log in axes]
    code = np.asarray(codes)[::step]
    is_near = np.zeros(len(code), dtype=np.bool_)
    for row in range(len(code)):
        others = code != code[row]
        for log in thin:
            others &= np.abs(log - log[row]) <= _NEAR
        is_near[row] = others.any()
    return float(is_near.mean())


def spread_within(axes: Sequence[Array], codes: NDArray) -> float:
    """Return how far the log sizes of the middle group run, in the size that varies least there."""
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ranges = [
        np.maximum.reduceat(log[order], begins) - np.minimum.reduceat(log[order], begins)
        for log in axes
    ]
    return min(float(np.median(found)) for found in ranges)


def share_explained(design: Array, target: Array, codes: NDArray) -> tuple[float, Array]:
    """Return how much of the variance beside a surface an own level per group takes away.

    Args:
        design: the surface, a constant in its first column, [n, k].
        target: [n].
        codes: group of each row, 0 to G - 1, [n].

    Returns:
        The share, corrected for the parameters spent, at most 1; and the level of each group, [G].
    """
    own = (codes[:, None] == np.arange(codes.max() + 1)).astype(np.float64)
    grouped = np.concatenate([own, design[:, 1:]], axis=1)
    levels = coefficients(grouped, target)[0]
    before, after = left_over(design, target), left_over(grouped, target)
    return 1 - after / max(before, 1e-300), np.array(levels[: own.shape[1]], dtype=np.float64)


def left_over(design: Array, target: Array) -> float:
    """Return the variance that least squares of `design`, [n, k], leaves of the target, [n]."""
    left = target - design @ coefficients(design, target)[0]
    return float((left**2).sum()) / max(len(target) - design.shape[1], 1)


@dataclass(frozen=True, eq=False)
class TwoLevels:
    """Rows that lie on one of two parallel surfaces.

    Attributes:
        is_high: rows on the upper one, [n].
        step: distance between the surfaces, positive.
    """

    is_high: NDArray[np.bool_]
    step: float


def two_levels(design: Array, target: Array) -> TwoLevels | None:
    """Look for two parallel surfaces through the rows.

    Args:
        design: the surface, a constant in its first column, [n, k].
        target: [n].

    Returns:
        The surfaces; None unless they leave less than a tenth of the variance that one leaves, with
        15 % of the rows or more on either.
    """
    left = target - design @ coefficients(design, target)[0]
    before = float((left**2).sum())
    least = max(_FEWEST, int(_LEAST_SHARE * len(target)))
    if len(target) < max(2 * least, design.shape[1] + 4) or before < 1e-12 * len(target):
        return None
    best: tuple[float, NDArray[np.bool_], float] | None = None
    # One surface through two levels bends towards both, so several cuts of its residuals start.
    for share in (0.25, 0.5, 0.75):
        found = _settle(design, target, left > np.quantile(left, share))
        if found and (best is None or found[0] < best[0]):
            best = found
    if best is None or best[0] > _LEFT * before or min(best[1].sum(), (~best[1]).sum()) < least:
        return None
    return TwoLevels(best[1], best[2])


def _settle(
    design: Array, target: Array, is_high: NDArray[np.bool_]
) -> tuple[float, NDArray[np.bool_], float] | None:
    """Fit both surfaces and assign each row to the nearer one until no row moves."""
    step, base = 0.0, target
    for _ in range(_ROUNDS):
        both = np.concatenate([design, is_high[:, None].astype(np.float64)], axis=1)
        found = coefficients(both, target)[0]
        step, base = float(found[-1]), target - design @ found[:-1]
        again = np.abs(base - step) < np.abs(base)
        if not again.any() or again.all():
            return None
        if (again == is_high).all():
            break
        is_high = again
    left = float((np.minimum(np.abs(base), np.abs(base - step)) ** 2).sum())
    return (left, is_high, step) if step > 0 else (left, ~is_high, -step)
