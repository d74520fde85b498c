"""Pruned data in a model that can be solved: a perceptron taught by a perceptron.

Of alpha_total N examples in N dimensions, labelled by a teacher, those with the largest margins
(easy) or the smallest (hard) are kept, and a student of maximal margin is trained on them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr, ndtri

from steelyard.errors import ConfigError
from steelyard.laws.fitting.terms import Array

__all__ = ["BestShare", "Side", "best_share", "crossover", "pruned_error"]

Side = Literal["hard", "easy"]
_WIDEST = 8.0
"""Margins beyond it have no weight that a double could hold beside 1."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(80)
_OVERLAPS = 1 - np.geomspace(1e-6, 0.999, 80)[::-1]
_MOST_STEPS, _TOLERANCE = 100, 1e-11


def pruned_error(alpha_total: float, keep: float = 1.0, side: Side = "hard") -> float:
    """Return the error of a student trained on part of the examples, in the limit of large N.

    The order parameters are the overlap R of student and teacher and the margin kappa, of the
    student's own length. With s^2 = 1 - R^2, c = (kappa - R z) / s and z a kept margin of the
    teacher,

        1 = alpha E[(c^2 + 1) Phi(c) + c phi(c)]
        R = alpha E[z s (c Phi(c) + phi(c)) + R Phi(c)],    alpha = keep alpha_total.

    Args:
        alpha_total: examples per dimension before pruning, above 0.
        keep: share that is kept, above 0 to 1.
        side: "hard" keeps the smallest margins, "easy" the largest.

    Returns:
        Share of new examples that are labelled wrongly, arccos(R) / pi.

    Raises:
        ConfigError: an argument is out of range.

    Source: Sorscher et al. 2022 (arXiv 2206.14486), section 3 and appendix A, for a probe that is
        the teacher itself.
    """
    if not (alpha_total > 0 and 0 < keep <= 1 and side in ("hard", "easy")):
        raise ConfigError(
            f"alpha_total = {alpha_total}, keep = {keep}, side = {side!r}",
            hint='give alpha_total above 0, keep above 0 to 1, and "hard" or "easy"',
        )
    margins, weights = _margins(keep, side)
    alpha = keep * alpha_total

    def residual(overlaps: Array) -> Array:
        return _overlaps_again(overlaps, alpha, margins, weights) - overlaps

    # The crossing from above to below is the student's; it is looked for on a grid, because the
    # residual is flat near both ends.
    values = residual(_OVERLAPS)
    crossed = np.flatnonzero((values[:-1] > 0) & (values[1:] <= 0))
    if not len(crossed):
        # Below the grid's first overlap nothing was learned, beyond its last nothing is left.
        end = _OVERLAPS[0] if values[0] <= 0 else _OVERLAPS[-1]
        return math.acos(float(end)) / math.pi
    low, high = _OVERLAPS[crossed[-1] : crossed[-1] + 2].tolist()
    overlap = _root(lambda overlap: float(residual(np.array([overlap]))[0]), low, high)
    return math.acos(overlap) / math.pi


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function that changes its sign is 0."""
    return brentq(function, low, high, xtol=1e-12)  # pyright: ignore[reportReturnType]


def _margins(keep: float, side: Side) -> tuple[Array, Array]:
    """Return nodes and weights of the mean over the kept margins, which are half-normal."""
    if side == "hard":
        low, high = 0.0, min(float(ndtri((1 + keep) / 2)), _WIDEST)
    else:
        low, high = float(ndtri(1 - keep / 2)), _WIDEST
    margins = low + (high - low) * (_NODES + 1) / 2
    weights = _WEIGHTS * np.exp(-(margins**2) / 2)
    return margins, weights / weights.sum()


def _overlaps_again(overlaps: Array, alpha: float, margins: Array, weights: Array) -> Array:
    """Return the overlaps that the second equation gives at the margins of the first, [S]."""
    spreads = np.sqrt(1 - overlaps**2)
    # Above the root for every overlap: there the gaps alone make the mean exceed 1 / alpha.
    kappas = np.full(len(overlaps), _WIDEST + 2 / math.sqrt(alpha))
    for _ in range(_MOST_STEPS):
        gaps = (kappas[:, None] - overlaps[:, None] * margins) / spreads[:, None]
        below, density = ndtr(gaps), _density(gaps)
        reach = gaps * below + density
        over = alpha * ((gaps * reach + below) @ weights) - 1
        # A convex rising function met from above: Newton's steps go down and never past the root.
        steps = np.maximum(over, 0) * spreads / (2 * alpha * (reach @ weights))
        kappas = kappas - steps
        if steps.max() < _TOLERANCE:
            break
    pulls = margins * spreads[:, None] * reach + overlaps[:, None] * below
    return alpha * (pulls @ weights)


def _density(values: Array) -> Array:
    """Return the density of the normal distribution."""
    return np.exp(-(values**2) / 2) / math.sqrt(2 * math.pi)


@dataclass(frozen=True, slots=True)
class BestShare:
    """What to keep.

    Attributes:
        keep: share of the examples.
        side: which end.
        error: error of the student trained on them.
    """

    keep: float
    side: Side
    error: float


def best_share(alpha_kept: float, most_total: float) -> BestShare:
    """Return how to choose so many examples from as many as there are at most.

    Args:
        alpha_kept: examples per dimension to train on.
        most_total: examples per dimension at hand, at least `alpha_kept`.

    Returns:
        The share of those at hand, or of fewer of them, with the least error.

    Raises:
        ConfigError: fewer are at hand than are to be kept.
    """
    if most_total < alpha_kept:
        raise ConfigError(
            f"{alpha_kept} examples per dimension of {most_total} cannot be kept",
            hint="keep no more than there are",
        )
    found = [BestShare(1.0, "hard", pruned_error(alpha_kept))]
    if most_total > alpha_kept:
        ends = math.log(alpha_kept / most_total), 0.0
        sides: tuple[Side, ...] = ("hard", "easy")
        for side in sides:
            least: Any = minimize_scalar(
                _log_error(alpha_kept, side),
                bounds=ends,
                method="bounded",
                options={"xatol": 1e-3},
            )
            found.append(BestShare(math.exp(least.x), side, float(least.fun)))
            share = alpha_kept / most_total
            found.append(BestShare(share, side, pruned_error(most_total, share, side)))
    return min(found, key=lambda item: item.error)


def _log_error(alpha_kept: float, side: Side) -> Callable[[float], float]:
    """Return the error by ln of the share that so many examples are."""
    return lambda log: pruned_error(alpha_kept / math.exp(log), math.exp(log), side)


def crossover(keep: float, *, low: float = 0.3, high: float = 50.0) -> float:
    """Return the examples per dimension at which hard and easy ones are worth the same.

    Args:
        keep: share that is kept, above 0 and below 1.
        low: where the search begins; easy ones must be better there.
        high: where it ends; hard ones must be better there.

    Returns:
        alpha_total; easy examples are better below, hard ones above.

    Raises:
        ConfigError: the share is out of range, or the two do not change places in between.
    """

    def ahead(log_alpha: float) -> float:
        alpha = math.exp(log_alpha)
        return math.log(pruned_error(alpha, keep, "hard") / pruned_error(alpha, keep, "easy"))

    ends = math.log(low), math.log(high)
    if not ahead(ends[0]) > 0 > ahead(ends[1]):
        raise ConfigError(
            f"easy and hard examples do not change places from {low} to {high} at keep = {keep}",
            hint="give a wider range, and a share below 1",
        )
    return math.exp(_root(ahead, *ends))
