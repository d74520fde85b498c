"""Noise that privacy rests on: drawn exactly, from whole numbers and the system's randomness."""

import math
import secrets
from collections.abc import Callable
from fractions import Fraction

__all__ = ["discrete_gaussian", "discrete_laplace"]

RandBelow = Callable[[int], int]
"""Draws a whole number from 0 up to and without a bound."""


def _is_below(share: Fraction, draw: RandBelow) -> bool:
    """Return true with a probability, 0 to 1."""
    return draw(share.denominator) < share.numerator


def _is_exp(gamma: Fraction, draw: RandBelow) -> bool:
    """Return true with probability exp(-gamma), gamma 0 or more."""
    while gamma > 1:
        if not _is_exp(Fraction(1), draw):
            return False
        gamma -= 1
    count = 1
    while _is_below(gamma / count, draw):
        count += 1
    return count % 2 == 1


def discrete_laplace(scale: Fraction, draw: RandBelow = secrets.randbelow) -> int:
    """Draw a whole number z with probability in proportion to exp(-|z| / scale).

    Floats are never used: noise of floats tells the value behind it by its last bits.

    Args:
        scale: above 0.
        draw: source of randomness; the system's own unless a test needs another.

    Returns:
        The number.

    Source: Canonne, Kamath and Steinke 2020, arXiv 2004.00010, algorithm 2; Mironov 2012 on floats.
    """
    upper, lower = scale.numerator, scale.denominator
    while True:
        part = draw(upper)
        if not _is_exp(Fraction(part, upper), draw):
            continue
        whole = 0
        while _is_exp(Fraction(1), draw):
            whole += 1
        size = (part + upper * whole) // lower
        is_negative = draw(2) == 1
        # Zero has one sign, or it would come twice as often.
        if not (is_negative and size == 0):
            return -size if is_negative else size


def discrete_gaussian(variance: Fraction, draw: RandBelow = secrets.randbelow) -> int:
    """Draw a whole number z with probability in proportion to exp(-z^2 / (2 variance)).

    Args:
        variance: above 0.
        draw: source of randomness.

    Returns:
        The number.

    Source: Canonne, Kamath and Steinke 2020, arXiv 2004.00010, algorithm 3.
    """
    scale = Fraction(math.isqrt(math.floor(variance)) + 1)
    while True:
        found = discrete_laplace(scale, draw)
        away = abs(found) - variance / scale
        if _is_exp(away * away / (2 * variance), draw):
            return found
