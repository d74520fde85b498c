"""The exact second moments of averaged SGD on least squares, one pass over the steps.

Compiled on first use.
"""

import numpy as np

from steelyard.jit import njit

__all__ = ["averaged_risk"]

_BLOWN_UP = 1e6


@njit(cache=True)
def averaged_risk(
    values, counts, squares, noise_variance, batch, learning_rate, at_steps, risk
):  # pragma: no cover
    """Fill `risk` [n] with the expected excess risk of the average of all iterates at rising steps `at_steps` [n].

    Per eigenvalue (`values`, `counts` of them [G]) three moments advance: of the error, of error
    times averaged error, and of the averaged error, all starting at `squares` [G]. Risks of a
    diverging run are infinite.
    """
    size = len(values)
    error, cross, averaged = squares.copy(), squares.copy(), squares.copy()
    start = 0.0
    for index in range(size):
        start += counts[index] * values[index] * squares[index]
    row = 0
    for step in range(1, at_steps[-1] + 1):
        last = 0.0
        for index in range(size):
            last += counts[index] * values[index] * error[index]
        if not last < _BLOWN_UP * start:
            risk[row:] = np.inf
            return
        keep = step / (step + 1.0)
        take = 1.0 - keep
        scale = learning_rate * learning_rate / batch
        total = 0.0
        for index in range(size):
            value = values[index]
            decay = 1.0 - learning_rate * value
            moment = decay * decay * error[index] + scale * value * (
                value * error[index] + last + noise_variance
            )
            mixed = keep * decay * cross[index] + take * moment
            averaged[index] = (
                keep * keep * averaged[index]
                + 2.0 * keep * take * decay * cross[index]
                + take * take * moment
            )
            error[index] = moment
            cross[index] = mixed
            total += counts[index] * value * averaged[index]
        if step == at_steps[row]:
            risk[row] = total
            row += 1
