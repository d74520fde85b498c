"""Covariance of a student's errors at two times, whose symmetry and signs check the theory."""

import numpy as np

from steelyard.laws.fitting.terms import Array
from steelyard.laws.theory.mean_field.losses import Dynamics, circle, closed_form, node_pairs

__all__ = ["error_covariance"]


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
    n = len(z)
    rows = n // 2 + 1
    source = np.asarray(1 / ((1 - z[:rows, None]) * (1 - z)), dtype=np.complex128)
    values = closed_form(dynamics, node_pairs(dynamics, x[None, :rows], x[None], source))[0][0]
    weight = np.r_[1.0, np.full(rows - 2, 2.0), 1.0]
    steps = np.arange(last + 1)
    # Half of the rows stand for their conjugates, so the real part is all there is.
    turns = np.exp(-2j * np.pi * np.outer(steps, np.arange(n)) / n)
    total = (turns[:, :rows] * weight) @ values @ turns.T
    return total.real / (float(n) ** 2 * radius ** (steps[:, None] + steps))
