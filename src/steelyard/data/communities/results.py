"""What an index answers."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Community", "Explanation", "Method"]

Method = Literal["auto", "average", "agglomerative", "pagerank"]
"""Rules by which candidates are ranked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Community:
    """Accounts around seeds, the nearest first.

    Attributes:
        seeds: names of the seeds.
        members: names of the members that were found, without the seeds, [n].
        scores: score of each by the method; higher is nearer.
        similarity: mean Jaccard similarity of each to the seeds, estimated.
        containment: share of the neighbours of each that the nearest seed in this sense has too,
            estimated; for a small account beside giants it is large where the similarity is small.
        degrees: neighbours of each.
        method: how they were ranked.
        candidates: accounts that shared a band with a seed, or were found later.
        widened: "" or by what candidates were added, as there were too few: "single places", then
            "second hop".
        cut_buckets: buckets of which only the first members were looked at.
        seconds: time of the query.
    """

    seeds: tuple[int | str, ...]
    members: tuple[int | str, ...]
    scores: NDArray[np.float64]
    similarity: NDArray[np.float64]
    containment: NDArray[np.float64]
    degrees: NDArray[np.int64]
    method: str
    candidates: int
    widened: str
    cut_buckets: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What an index knows of an account.

    Attributes:
        account: its name.
        degree: its neighbours.
        candidates: accounts that share a band with it.
        nearest: names of those most like it.
        similarity: their estimated Jaccard similarities, [n].
        error: standard error of each, [n].
        exact: Jaccard similarities from the graph itself, [n].
        shared: neighbours that they share, [n].
    """

    account: int | str
    degree: int
    candidates: int
    nearest: tuple[int | str, ...]
    similarity: NDArray[np.float64]
    error: NDArray[np.float64]
    exact: NDArray[np.float64]
    shared: NDArray[np.int64]
