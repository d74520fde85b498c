"""How many cells a recall needs, and what codes lose, before there is an index to measure.

The constants were measured on four kinds of vectors of 20,000 each: SIFT-like descriptors, latent
vectors of program texts, a mixture of 300 clouds, and one cloud of falling variances without any
clusters. The truth about other vectors may lie anywhere between; a sample of them narrows it.
"""

import math
from dataclasses import dataclass

from steelyard.cost.vector_search import IndexShape
from steelyard.laws.fitting.estimate import Estimate

__all__ = ["USUAL", "ProbeRule", "ceiling_of", "probes_for"]

_CEILINGS: dict[tuple[str, int], dict[int, tuple[float, float, float]]] = {
    ("ivfpq", 4): {
        0: (0.71, 0.57, 0.83),
        2: (0.91, 0.78, 0.99),
        4: (0.98, 0.92, 1.0),
        8: (0.996, 0.985, 1.0),
        16: (1.0, 0.998, 1.0),
        32: (1.0, 1.0, 1.0),
    },
    ("ivfpq", 8): {
        0: (0.52, 0.30, 0.67),
        2: (0.72, 0.45, 0.89),
        4: (0.87, 0.61, 0.97),
        8: (0.935, 0.75, 1.0),
        16: (0.969, 0.88, 1.0),
        32: (0.987, 0.95, 1.0),
    },
    ("ivfpq", 16): {
        0: (0.38, 0.16, 0.56),
        2: (0.56, 0.24, 0.76),
        4: (0.73, 0.34, 0.90),
        8: (0.84, 0.47, 1.0),
        16: (0.90, 0.63, 1.0),
        32: (0.94, 0.76, 1.0),
    },
    ("fastscan", 2): {
        2: (0.82, 0.65, 0.96),
        4: (0.937, 0.81, 1.0),
        8: (0.979, 0.93, 1.0),
        16: (0.996, 0.98, 1.0),
        32: (0.999, 0.996, 1.0),
    },
}
"""Recall of the ten nearest with all cells, by kind, numbers per part of a code, and candidates per
neighbour that are compared again: mean, least and most of the four kinds of vectors."""


@dataclass(frozen=True, kw_only=True)
class ProbeRule:
    """Cells that a recall r needs: scale (nlist / 141)^growth (0.2 / (1 - r))^steepness.

    Attributes:
        scale: cells of 141 for a recall of .8.
        growth: exponent of the number of cells.
        steepness: exponent of the share that may be missed.
        factor: factor around it that holds 80 % of vectors.
        source: where the constants come from.
    """

    scale: float = 3.5
    growth: float = 0.45
    steepness: float = 0.556
    factor: float = 6.0
    source: str = "geometric mean of four kinds of vectors"

    def probes(self, nlist: int, recall: float) -> Estimate:
        """Return the cells to look into.

        Args:
            nlist: cells.
            recall: share of the neighbours to find, below 1.

        Returns:
            Cells, 1 to all.
        """
        grown = self.scale * (nlist / 141) ** self.growth
        wanted = grown * (0.2 / (1 - recall)) ** self.steepness
        values = (wanted, wanted / self.factor, wanted * self.factor)
        middle, low, high = (float(min(max(math.ceil(value - 1e-9), 1), nlist)) for value in values)
        return Estimate(middle, low, high)

    @classmethod
    def measured(cls, nlist: int, recall: float, probes: int) -> "ProbeRule":
        """Return the rule that goes through a measurement on a sample.

        Args:
            nlist: cells of the sample's index.
            recall: the recall.
            probes: cells that it needed.

        Returns:
            The rule; what a larger index needs is still extrapolated.
        """
        usual = cls()
        told = usual.scale * (nlist / 141) ** usual.growth * (0.2 / (1 - recall)) ** usual.steepness
        scale = usual.scale * probes / told
        return cls(scale=scale, factor=1.5, source="measured on the sample")


USUAL = ProbeRule()
"""The rule without a sample."""


def probes_for(shape: IndexShape, recall: float, rule: ProbeRule = USUAL) -> Estimate:
    """Return the cells that a query of an index looks into.

    Args:
        shape: the index.
        recall: share of the neighbours to find.
        rule: how many cells a recall needs.

    Returns:
        Cells; 1 of an index without any.
    """
    if shape.nlist == 1:
        return Estimate(1.0, 1.0, 1.0)
    return rule.probes(shape.nlist, min(recall, 0.999))


def ceiling_of(shape: IndexShape) -> Estimate:
    """Return the recall that codes allow with all cells; 1 of whole vectors.

    Args:
        shape: the index; codes of parts of 4, 8 or 16 numbers, fast ones of 2.

    Returns:
        Share of the ten nearest.
    """
    if not shape.code_centers:
        return Estimate(1.0, 1.0, 1.0)
    known = _CEILINGS.get((shape.kind, shape.dim // shape.parts))
    if known is None or shape.rerank not in known:
        return Estimate(0.0, 0.0, 0.0)
    return Estimate(*known[shape.rerank])
