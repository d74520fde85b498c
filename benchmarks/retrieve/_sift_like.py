"""Vectors that are as hard to search as SIFT descriptors: few intrinsic dimensions, as bytes."""

import numpy as np
from numpy.typing import NDArray

_BLOCK = 100_000


def sift_like(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draw vectors around 1,000 middles in 16 dimensions, bent into 128.

    The constants were chosen on sift-5k, so that the share of the true neighbours in the nearest
    1 to 32 of 64 cells is that of the descriptors.
    """
    rng = np.random.default_rng(seed)
    middles, shares = rng.normal(size=(1000, 16)), rng.dirichlet(np.ones(1000))
    first, second = rng.normal(size=(16, 256)) / 4, rng.normal(size=(256, 128)) / 16
    parts, low, high = [], 0.0, 1.0
    for start in range(0, count, _BLOCK):
        rows = min(_BLOCK, count - start)
        inner = middles[rng.choice(1000, rows, p=shares)] + 0.7 * rng.normal(size=(rows, 16))
        outer = np.tanh(1.5 * inner @ first) @ second
        if not parts:
            low, high = float(outer.min()), float(np.quantile(outer - outer.min(), 0.999))
        scaled = (outer - low) / high * 255 + rng.normal(size=outer.shape) * 8
        parts.append(np.clip(scaled, 0, 255).astype(np.uint8))
    return np.concatenate(parts)
