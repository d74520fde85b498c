"""From a wanted value back to the input that reaches it, with an interval."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.points import check_positive
from steelyard.laws.fitting.terms import Array

__all__ = ["bisect", "input_for"]

_DECADES = 2.0
_FAR_DECADES = 12.0
_HALVINGS = 60
"""Enough for any range of decades: the last halving moves the input by less than 1e-15."""


def bisect(lies_above: Callable[[Array], NDArray[np.bool_]], low: Array, high: Array) -> Array:
    """Halve ranges until they are points.

    Args:
        lies_above: whether each wanted point lies above the middle of its range, [n].
        low: lower ends, [n].
        high: upper ends, [n].

    Returns:
        The points, [n].
    """
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_above = lies_above(middle)
        low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
    return (low + high) / 2


def input_for(
    fit: Fit, target: float, level: float = 0.8, *, extrapolate: bool = False
) -> Estimate:
    """Find the input of a falling one-input law at which a target value is reached.

    Both ends of the prediction band are inverted as well, so noise and the drift beyond the points
    widen the answer.

    Args:
        fit: fit of a law that falls with its only input.
        target: wanted value, natural units, positive.
        level: probability inside the interval, 0..1.
        extrapolate: whether the answer may lie more than two decades beyond the points.

    Returns:
        The input; low is where a lucky run reaches the target, high where nearly every run does,
        infinite when the upper end of the band never gets there.

    Raises:
        FitError: the law has several inputs, or the target lies outside what it reaches in the
            allowed range.
    """
    if len(fit.law.inputs) != 1 or not fit.inputs:
        raise FitError(
            f"law {fit.law.name} with inputs {', '.join(fit.law.inputs)} cannot be inverted: one "
            f"input and its points are needed"
        )
    check_positive(wanted_value=target)
    name = fit.law.inputs[0]
    known = np.log(fit.inputs[name])
    room = (_FAR_DECADES if extrapolate else _DECADES) * math.log(10)
    # A loss before any tuning may stand at 1e-10 examples, where the search need not begin.
    smallest = float(known[known > -20].min()) - room
    largest = float(known.max()) + room
    ends = _band(fit, np.array([smallest, largest]), level)
    if not ends[1, 1] <= math.log(target) <= ends[1, 0]:
        _refuse(target, ends, name, smallest, largest, extrapolate)
    # Lower end, value and upper end of the band are bisected side by side, each at its own input:
    # the diagonal of the band at three inputs.
    found = np.exp(
        bisect(
            lambda middle: np.diagonal(_band(fit, middle, level)) > math.log(target),
            np.full(3, smallest),
            np.full(3, largest),
        )
    )
    reached = ends[2, 1] <= math.log(target)
    return Estimate(float(found[1]), float(found[0]), float(found[2]) if reached else math.inf)


def _band(fit: Fit, log_input: Array, level: float) -> Array:
    """Return the log of low, value and high at each input, [3, n]."""
    said = fit.predict({fit.law.inputs[0]: np.exp(log_input)}, level, extrapolate=True)
    return np.log(np.stack([said.low, said.value, said.high]))


def _refuse(
    target: float, ends: Array, name: str, smallest: float, largest: float, extrapolate: bool
) -> None:
    """Say why the target has no answer."""
    if math.log(target) > ends[1, 0]:
        raise FitError(
            f"{target:g} is worse than the {math.exp(ends[1, 0]):.4g} the law expects at "
            f"{math.exp(smallest):.3g} {name}",
            hint="no data is needed",
        )
    raise FitError(
        f"{target:g} is not reached: the law expects {math.exp(ends[1, 1]):.4g} at "
        f"{math.exp(largest):.3g} {name}"
        + ("" if extrapolate else ", two decades beyond the points"),
        hint="the floor may be above it; take a better model"
        if extrapolate
        else "say extrapolate=True to look further",
    )
