"""How evenly several parties were served."""

from collections.abc import Iterable

import numpy as np

from steelyard.errors import ConfigError

__all__ = ["jain_index"]


def jain_index(shares: Iterable[float]) -> float:
    """Return Jain's fairness index of what each of n parties got.

    Args:
        shares: shares, at least 0 each.

    Returns:
        1 when all got the same (also when all got nothing), 1 / n when one got everything.

    Raises:
        ConfigError: there is no share, or one is negative.

    Source: Jain, Chiu and Hawe 1984 (DEC-TR-301).
    """
    values = np.asarray(list(shares), dtype=np.float64)
    if not len(values) or values.min() < 0:
        raise ConfigError(
            "fairness needs at least one share, none of them negative",
            hint="pass each client's service",
        )
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0
