"""How well a set of accounts holds together, on the graph of their similarities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CommunityMetrics", "measure"]

_STARTS, _STEPS, _DAMPING = 10, 2, 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunityMetrics:
    """Measures of a community; m is the weight inside, c that across its boundary, n its size.

    Attributes:
        members: n.
        conductance: c / (2m + c); low where few ties lead out. NaN where there is no tie at all.
        density: 2m / (n (n - 1)): the mean similarity of two members.
        separability: m / c; infinite where no tie leads out.
        cohesiveness: lowest conductance of a part of the community inside of it; high where it
            falls apart nowhere.
        clustering: mean weighted clustering coefficient.

    Source: Chamberlain et al. 2016, arXiv 1601.03958; Yang and Leskovec 2012, arXiv
        1205.6233; Holme et al. 2007 for clustering.
    """

    members: int
    conductance: float
    density: float
    separability: float
    cohesiveness: float
    clustering: float


def measure(
    inside: NDArray[np.float64], boundary: float, rng: np.random.Generator
) -> CommunityMetrics:
    """Measure a community.

    Args:
        inside: similarities of its n members, symmetric, 0 on the diagonal, [n, n].
        boundary: sum of the similarities of members and others.
        rng: draws the members from which walks start.

    Returns:
        The measures.
    """
    count, weight = len(inside), float(inside.sum()) / 2
    ends = 2 * weight + boundary
    return CommunityMetrics(
        members=count,
        conductance=boundary / ends if ends else float("nan"),
        density=2 * weight / (count * (count - 1)),
        separability=weight / boundary if boundary else float("inf"),
        cohesiveness=_cohesiveness(inside, rng),
        clustering=_clustering(inside),
    )


def _cohesiveness(inside: NDArray[np.float64], rng: np.random.Generator) -> float:
    """Return the lowest conductance of a sweep of short walks from some members; NaN without ties.

    Members are added in the order of the walk's rank over their strength, and each set on the way
    is a cut of the community.
    """
    strength = inside.sum(axis=0)
    total = strength.sum()
    if total == 0:
        return float("nan")
    flow = np.divide(inside, strength, out=np.zeros_like(inside), where=strength > 0)
    lowest = 1.0
    for start in rng.permutation(len(inside))[:_STARTS]:
        home = np.zeros(len(inside))
        home[start] = 1.0
        rank = home
        for _ in range(_STEPS):
            rank = _DAMPING * (flow @ rank) + (1 - _DAMPING) * home
        score = np.divide(rank, strength, out=np.zeros_like(rank), where=strength > 0)
        order = np.argsort(-score, kind="stable")
        ordered = inside[np.ix_(order, order)]
        # A member takes the ties to those before it off the cut, and puts the others onto it.
        before = np.tril(ordered).sum(axis=1)
        volume = np.cumsum(strength[order])[:-1]
        cut = np.cumsum(strength[order] - 2 * before)[:-1]
        smaller = np.minimum(volume, total - volume)
        shares = np.divide(cut, smaller, out=np.ones_like(cut), where=smaller > 1e-12)
        lowest = min(lowest, float(shares.min(initial=1.0)))
    return max(lowest, 0.0)


def _clustering(inside: NDArray[np.float64]) -> float:
    """Return the mean of the weight of triangles at a member over that of its pairs of ties."""
    largest = inside.max(initial=0.0)
    if largest == 0:
        return 0.0
    triangles = np.einsum("ij,ji->i", inside @ inside, inside)
    sums = inside.sum(axis=1)
    # diag(W 1 W) with a largest weight for the third tie; a pair of a tie with itself is none.
    pairs = largest * (sums**2 - (inside**2).sum(axis=1))
    return float(np.divide(triangles, pairs, out=np.zeros_like(pairs), where=pairs > 0).mean())
