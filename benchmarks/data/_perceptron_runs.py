"""Students of a perceptron, trained: maximal margins on the examples that pruning leaves."""

import math

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pruning import prune
from steelyard.jit import njit

__all__ = ["DIMENSIONS", "student_errors"]

Array = NDArray[np.float64]
DIMENSIONS = 200
_MOST_SWEEPS = 3000
_TOLERANCE = 1e-3


def student_errors(alpha: float, keep: float, side: str, repeats: int, *, seed: int) -> Array:
    """Train students on pruned examples of as many teachers.

    Args:
        alpha: examples per dimension before pruning.
        keep: share that is kept.
        side: "hard" or "easy", by the teacher's margin.
        repeats: teachers.
        seed: seed of all draws.

    Returns:
        Error of each student, [repeats].
    """
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(repeats):
        examples = generator.standard_normal((round(alpha * DIMENSIONS), DIMENSIONS))
        # By symmetry every teacher is alike: the first axis.
        margins = examples[:, 0]
        kept = prune(-np.abs(margins), keep=keep, side=side)  # pyright: ignore[reportArgumentType]
        signed = examples[kept] * np.sign(margins[kept])[:, None]
        student = _largest_margin(signed, _MOST_SWEEPS, _TOLERANCE)
        found.append(math.acos(student[0] / float(np.linalg.norm(student))) / math.pi)
    return np.array(found)


@njit()
def _largest_margin(signed: Array, most_sweeps: int, tolerance: float) -> Array:
    """Return the weights of maximal margin for examples times their labels [P, N].

    Coordinate ascent in the dual: the weights are a sum of examples with shares of at least 0, and
    every example that counts ends at a margin of 1.
    """
    count, _ = signed.shape
    squares = np.array([signed[row] @ signed[row] for row in range(count)])
    shares = np.zeros(count)
    weights = np.zeros(signed.shape[1])
    for _ in range(most_sweeps):
        worst = 0.0
        for row in range(count):
            short = 1.0 - signed[row] @ weights
            step = max(short / squares[row], -shares[row])
            if step != 0.0:
                shares[row] += step
                weights += step * signed[row]
            worst = max(worst, abs(step) * squares[row])
        if worst < tolerance:
            break
    return weights
