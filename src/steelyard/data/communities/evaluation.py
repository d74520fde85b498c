"""How much of known communities an index finds from a few of their members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.communities.index import CommunityIndex
from steelyard.data.communities.results import Method
from steelyard.errors import ConfigError

__all__ = ["RecallAreas", "recall_areas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAreas:
    """Areas under curves of recall.

    Attributes:
        communities: names of the communities, in the order of the rows.
        areas: area of each community and restart, 0 to 1, [communities, restarts].
        candidates: mean share of the accounts that were candidates.
        seconds: time of each query, [communities x restarts].
    """

    communities: tuple[int | str, ...]
    areas: NDArray[np.float64]
    candidates: float
    seconds: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean area."""
        return float(self.areas.mean())


def recall_areas(
    index: CommunityIndex,
    labels: Mapping[int, int | str] | Mapping[str, int | str],
    method: Method,
    *,
    num_seeds: int = 5,
    restarts: int = 5,
    least_members: int = 25,
    seed: int = 0,
) -> RecallAreas:
    """Grow known communities from some of their members and measure the recall of the others.

    A query grows to the size of the community; recall of the members that are no seeds is taken
    after every 5 additions.

    Args:
        index: index of the network.
        labels: community by account; those that are not in the index are left out.
        method: how candidates are ranked.
        num_seeds: seeds of a query.
        restarts: queries of a community, with other seeds each.
        least_members: smaller communities are left out.
        seed: seed of the draws.

    Returns:
        The areas.

    Raises:
        ConfigError: no community is large enough.

    Source: Chamberlain et al. 2016, arXiv 1601.03958.
    """
    members: dict[int | str, list[int | str]] = {}
    rows = index.graph.find(list(labels))
    is_there = np.isin(rows, index.rows)
    for (name, label), known in zip(labels.items(), is_there, strict=True):
        if known:
            members.setdefault(label, []).append(name)
    large = {label: own for label, own in members.items() if len(own) >= least_members}
    if not large or num_seeds >= least_members:
        raise ConfigError(
            f"no community of {least_members} members for {num_seeds} seeds",
            hint="give a smaller least size, and fewer seeds than members",
        )
    rng = np.random.default_rng(seed)
    areas, shares, seconds = np.zeros((len(large), restarts)), [], []
    for row, own in enumerate(large.values()):
        for turn in range(restarts):
            seeds = [own[place] for place in rng.permutation(len(own))[:num_seeds]]
            found = index.query(seeds, len(own), method)
            areas[row, turn] = _area(found.members, set(own) - set(seeds), len(own))
            shares.append(found.candidates / len(index))
            seconds.append(found.seconds)
    return RecallAreas(
        communities=tuple(large),
        areas=areas,
        candidates=float(np.mean(shares)),
        seconds=np.array(seconds),
    )


def _area(found: Sequence[int | str], wanted: set[int | str], size: int) -> float:
    """Return the area under the recall after 0, 5, 10, ... members found, over its width."""
    hits = np.concatenate(([0], np.cumsum([name in wanted for name in found])))
    steps = np.arange(0, size + 1, 5)
    recall = hits[np.minimum(steps, len(hits) - 1)] / len(wanted)
    return float(np.trapezoid(recall, steps) / steps[-1])
