"""Rates that software reaches: shares of published peaks, or a curve of measured products."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Efficiencies", "MatmulCurve"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiencies:
    """Fractions of published peaks that well-tuned software reaches.

    Attributes:
        matmul: share of the peak that a large matrix product reaches.
        attention: share of the peak that fused attention reaches.
        memory: share of the memory bandwidth that is reached.
        link: share of a link's bandwidth that large collectives reach.
        rings: share of that share which is left to rings over several nodes that gather weights and
            scatter gradients layer by layer: 1 where a ring runs over every network card of a node.
        tile: a matrix product reaches x / (x + tile) of its rate for each of its sizes x; 0 for all
            of it.
        launch_s: time that a kernel launch adds.
    """

    matmul: float = 0.62
    attention: float = 0.35
    memory: float = 0.80
    link: float = 0.75
    rings: float = 1.0
    tile: float = 48.0
    launch_s: float = 2e-6

    @classmethod
    def typical(cls, peak_flops_per_s: float) -> "Efficiencies":
        """Return the fractions that published training runs reach.

        Chips beyond 500 TFLOP/s are held back by power and use a smaller share. The values were
        chosen by hand on 144 published A100 and H100 runs and a layout sweep; the blind check is on
        the cost room's page.

        Args:
            peak_flops_per_s: dense peak of the dtype.

        Returns:
            The fractions.
        """
        return cls() if peak_flops_per_s < 5e14 else cls(matmul=0.48, attention=0.30)

    @classmethod
    def peak(cls) -> "Efficiencies":
        """Return every rate at its published peak and free launches, as rough analyses assume."""
        return cls(matmul=1.0, attention=1.0, memory=1.0, link=1.0, tile=0.0, launch_s=0.0)


@dataclass(frozen=True, slots=True)
class MatmulCurve:
    """Measured matmul rates, interpolated over shape.

    Attributes:
        log_sizes: natural logarithms of (m, n, k), [points, 3].
        flops_per_s: rate at each point, [points].
    """

    log_sizes: Array
    flops_per_s: Array

    def rate(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
        """Interpolate the rate over sizes that broadcast together.

        Neighbors are weighted by the inverse fourth power of their distance in log space, so the
        answer always lies between measured rates and equals them at measured sizes; beyond the
        measured sizes it stays near the nearest.

        Args:
            m: rows of the product.
            n: columns.
            k: inner size.

        Returns:
            FLOP/s.
        """
        logs = (np.log(np.maximum(np.asarray(item, dtype=float), 1)) for item in (m, n, k))
        sizes = np.stack(np.broadcast_arrays(*logs), axis=-1)
        square = ((sizes[..., None, :] - self.log_sizes) ** 2).sum(axis=-1)
        # The constant keeps the weight finite at a measured size, where it outweighs the rest.
        weight = 1 / (square + 1e-6) ** 2
        return np.exp((weight * np.log(self.flops_per_s)).sum(axis=-1) / weight.sum(axis=-1))
