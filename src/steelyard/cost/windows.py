"""Pairs of token and attended token where layers have sliding windows."""

from collections import Counter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture

__all__ = ["attended_keys", "attended_pairs", "windowed"]

Array = NDArray[np.float64]


def attended_pairs(arch: Architecture, tokens: ArrayLike, context: ArrayLike) -> Array:
    """Count pairs of token and attended token in the mean layer, causally.

    Args:
        arch: model with or without windows.
        tokens: new tokens of a sequence.
        context: tokens that the last of them attends, itself included.

    Returns:
        Pairs; of sizes that broadcast together.
    """
    new, last = np.asarray(tokens, dtype=float), np.asarray(context, dtype=float)

    def below(count: Array, window: int) -> Array:
        """Sum min(i, window) for i from 1 to `count`."""
        inside = np.minimum(count, window) if window else count
        return inside * (inside + 1) / 2 + (count - inside) * (window or 0)

    layers = _windows(arch).items()
    total = sum(n * (below(last, each) - below(last - new, each)) for each, n in layers)
    return np.asarray(total / arch.num_layers)


def attended_keys(arch: Architecture, tokens: ArrayLike, context: ArrayLike) -> Array:
    """Count the tokens whose keys some new token attends, in the mean layer.

    Args:
        arch: model with or without windows.
        tokens: new tokens of a sequence.
        context: tokens that the last of them attends, itself included.

    Returns:
        Tokens; of sizes that broadcast together.
    """
    new, last = np.asarray(tokens, dtype=float), np.asarray(context, dtype=float)
    reach = (
        count * (np.minimum(last, each + new - 1) if each else last)
        for each, count in _windows(arch).items()
    )
    return np.asarray(sum(reach) / arch.num_layers)


def windowed(arch: Architecture, tokens: float, pairs: float) -> float:
    """Take off what lies outside of windows, as far as it is known.

    Args:
        arch: model with or without windows.
        tokens: new tokens of any number of sequences.
        pairs: pairs of token and attended token without windows.

    Returns:
        Pairs in the mean layer, each token taken to attend as many as the others.
    """
    mean = pairs / tokens if tokens else 0.0
    reach = sum(n * min(mean, each or mean) for each, n in _windows(arch).items())
    return tokens * reach / arch.num_layers


def _windows(arch: Architecture) -> Counter[int]:
    """Count the layers by their window; 0 stands for none."""
    return Counter(arch.window_of(layer) for layer in range(arch.num_layers))
