"""Quantiles that turn standard deviations into intervals."""

from steelyard.laws.fitting.estimate import tails

__all__ = ["normal", "student"]


def normal(level: float) -> float:
    """Return how many standard deviations a normal interval reaches to each side.

    Args:
        level: probability inside, 0..1.

    Returns:
        1.28 for 80 %.

    Raises:
        FitError: the level is not between 0 and 1.
    """
    from scipy.special import ndtri

    return float(ndtri(tails(level)[1]))


def student(freedom: float, level: float) -> float:
    """Return how many standard errors an interval of Student's t reaches to each side.

    Args:
        freedom: degrees of freedom, positive.
        level: probability inside, 0..1.

    Returns:
        1.36 for 80 % and 11 degrees; `normal` of the level for very many.

    Raises:
        FitError: the level is not between 0 and 1.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, tails(level)[1]))
