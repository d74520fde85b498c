"""Places the members of a community on a plane, alike ones near each other."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["placed"]

_ROUNDS = 300


def placed(similarities: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """Lay out a graph by forces: ties pull, all nodes push each other apart.

    Args:
        similarities: similarities of n members, symmetric, 0 on the diagonal, [n, n].
        seed: seed of the first places.

    Returns:
        Places within the square from 0 to 1, [n, 2].

    Source: Fruchterman and Reingold 1991, "Graph drawing by force-directed placement".
    """
    count = len(similarities)
    places = np.random.default_rng(seed).random((count, 2))
    if count < 2:
        return places
    # Ties are compared with the strongest: their size differs much between networks.
    ties = np.sqrt(similarities / max(similarities.max(), 1e-12))
    reach = 1 / np.sqrt(count)
    for turn in range(_ROUNDS):
        apart = places[:, None] - places[None]
        distance = np.maximum(np.sqrt((apart**2).sum(-1)), 1e-4)
        push = reach**2 / distance - ties * distance**2 / reach
        # A weak pull to the middle keeps members without ties on the picture.
        force = (apart / distance[..., None] * push[..., None]).sum(1) + 0.3 * (0.5 - places)
        length = np.maximum(np.sqrt((force**2).sum(-1, keepdims=True)), 1e-9)
        places = places + force / length * np.minimum(length, 0.1 * (1 - turn / _ROUNDS))
    low, high = places.min(0), places.max(0)
    return (places - low) / np.maximum(high - low, 1e-9)
