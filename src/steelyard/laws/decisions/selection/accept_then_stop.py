"""The power phase of a fine-tuning curve, found from its largest sizes downwards."""

from dataclasses import dataclass

import numpy as np

from steelyard.laws.fitting.terms import Array

__all__ = ["PowerPhase", "accept_then_stop"]

_SMALLEST_SD = 1e-4
"""Three points can lie on a line by accident; a residual below this is below the noise of any
evaluation."""


@dataclass(frozen=True, slots=True)
class PowerPhase:
    """A straight line in log-log space through the sizes of the power phase.

    Attributes:
        slope: slope of log loss over log examples.
        intercept: log loss at one example.
        first_examples: smallest size that was accepted.
        num_points: accepted sizes.
        residual_sd: standard deviation of the log residuals, divisor n.
    """

    slope: float
    intercept: float
    first_examples: float
    num_points: int
    residual_sd: float

    def log_loss(self, examples: float) -> float:
        """Extend the line to a data size."""
        return self.intercept + self.slope * float(np.log(examples))


def accept_then_stop(
    examples: Array, loss: Array, *, num_start: int = 3, threshold: float = 5.0
) -> PowerPhase:
    """Fit a line to the largest sizes and accept smaller ones until one lies off it.

    A size that lies more than `threshold` residual standard deviations off belongs to the flat
    phase before the power law. The smallest size is only ever tested against, never fitted, as in
    the authors' published runs.

    Args:
        examples: data sizes, [n], rising; n is at least `num_start`.
        loss: loss at each of them, [n], positive.
        num_start: sizes accepted without a test, at least 2.
        threshold: distance that rejects a size, in residual standard deviations of the sizes
            accepted so far, divisor n.

    Returns:
        The line.

    Source: Lin et al. 2024 (arXiv 2402.02314), algorithm 1.
    """
    log_size, log_loss = np.log(examples[::-1]), np.log(loss[::-1])
    count = num_start
    while True:
        slope, intercept = np.polyfit(log_size[:count], log_loss[:count], 1)
        spread = float(np.std(log_loss[:count] - intercept - slope * log_size[:count]))
        if count >= len(log_size) - 1:
            break
        if abs(log_loss[count] - intercept - slope * log_size[count]) > threshold * max(
            spread, _SMALLEST_SD
        ):
            break
        count += 1
    return PowerPhase(float(slope), float(intercept), float(examples[-count]), count, spread)
