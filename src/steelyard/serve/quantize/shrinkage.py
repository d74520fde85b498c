"""Loss changes of single matrices, drawn to what matrices of their kind change on average."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

__all__ = ["shrunk"]


def shrunk(losses: Mapping[tuple[int, str, str], Tensor]) -> dict[tuple[int, str, str], float]:
    """Estimate what rounding each matrix changes, from few sequences.

    The least of many noisy means is too low, and choosing by it takes noise for insensitivity.
    Each mean is drawn to that of the same matrix and type over all layers, the further the more of
    the differences between layers is what chance alone would give.

    Args:
        losses: change of the loss of each sequence, float64 [S], by layer, matrix and type.

    Returns:
        Nats per token; the plain means where there is one sequence only.

    Source: Efron and Morris 1975 (JASA 70(350), "Data Analysis Using Stein's Estimator and its
        Generalizations"), equations 1.2 and 2.1 with the variance between groups by moments.
    """
    families: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for place in losses:
        families.setdefault(place[1:], []).append(place)
    found: dict[tuple[int, str, str], float] = {}
    for places in families.values():
        values = np.stack([losses[place].numpy() for place in places])
        found |= dict(zip(places, _drawn_together(values), strict=True))
    return found


def _drawn_together(values: np.ndarray) -> Sequence[float]:
    """Return means of rows [L, S], drawn to their mean."""
    means = values.mean(axis=1)
    count = values.shape[1]
    if len(means) < 2 or count < 2:
        return means.tolist()
    # Sequences are shared by all layers: what they have in common does not tell layers apart.
    apart = values - values.mean(axis=0)
    noise = float(apart.var(axis=1, ddof=1).mean()) / count
    between = float(means.var(ddof=1))
    kept = max(0.0, 1.0 - noise / between) if between > 0 else 0.0
    return (means.mean() + kept * (means - means.mean())).tolist()
