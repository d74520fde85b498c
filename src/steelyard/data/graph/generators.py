"""Graphs with known communities or skewed degrees, as arrays or as parts that are drawn again."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from steelyard.data.graph.edges import EdgeBatch, number_batch
from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError

__all__ = ["PlantedFans", "planted_graph", "rmat_edges"]


def _zipf_sizes(total: int, parts: int, exponent: float) -> NDArray[np.int64]:
    """Cut a total into parts of Zipf sizes, each of at least 2."""
    shares = np.arange(1, parts + 1) ** -exponent
    sizes = np.maximum((total * shares / shares.sum()).astype(np.int64), 2)
    sizes[0] += total - sizes.sum()
    return sizes


class PlantedFans:
    """Fans who follow popular stars of one to three communities, and some at random.

    A fan has 1, 2 or 3 interests, each a community with the chance of its share of the stars. For
    each interest the fan follows `follows` stars of it, drawn by their popularity, which is Zipf
    within a community; and `noise` stars of all, drawn evenly. Draws are with replacement.

    Attributes:
        labels: community of each star, [stars].
        parts: parts of which each is drawn from a seed of its own.
    """

    def __init__(
        self,
        *,
        stars: int,
        communities: int,
        fans: int,
        follows: int = 10,
        noise: int = 2,
        exponent: float = 0.8,
        seed: int = 0,
        part_fans: int = 100_000,
    ) -> None:
        """Draw the communities.

        Args:
            stars: number of stars.
            communities: number of communities; sizes are Zipf too.
            fans: number of fans.
            follows: draws within an interest.
            noise: draws from all stars.
            exponent: exponent of both Zipf laws.
            seed: seed.
            part_fans: fans of a part.

        Raises:
            ConfigError: fewer than two stars a community, or no fan.
        """
        sizes = (
            _zipf_sizes(stars, communities, exponent) if communities > 0 else np.zeros(1, np.int64)
        )
        if sizes[0] < sizes[-1] or sizes[-1] < 2 or fans < 1 or follows < 1 or noise < 0:
            raise ConfigError(
                f"{stars} stars in {communities} communities with {fans} fans",
                hint="give each community several stars, and one fan or more",
            )
        self._settings = (stars, communities, fans, follows, noise, exponent, seed, part_fans)
        self.labels = np.repeat(np.arange(communities), sizes)
        rank = np.arange(stars) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        popular = (rank + 1.0) ** -exponent
        self.popularity = popular / np.bincount(self.labels, popular)[self.labels]
        # Numbers that rise from the community's own to the next: one search finds both.
        within = np.cumsum(self.popularity)
        self._ends = within / within[-1] * communities
        self._interest = sizes / stars
        self._fans, self._follows, self._noise = fans, follows, noise
        self._seed, self._part_fans = seed, part_fans
        self.parts = -(-fans // part_fans)

    @property
    def key(self) -> str:
        """Hash of the settings."""
        return hash_of(*self._settings)

    def read(self, part: int) -> Iterator[EdgeBatch]:
        """Draw a part: rows are stars, columns are fans."""
        stars, fans = self.draw(part)
        yield number_batch(stars, fans)

    def draw(self, part: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return star and fan of each edge of a part; some stand twice."""
        rng = np.random.default_rng((self._seed, part))
        first = part * self._part_fans
        count = min(self._part_fans, self._fans - first)
        owners = np.repeat(np.arange(first, first + count), rng.integers(1, 4, count))
        interests = rng.choice(len(self._interest), len(owners), p=self._interest)
        spots = interests[:, None] + rng.random((len(owners), self._follows))
        stars = np.searchsorted(self._ends, spots.ravel(), side="right")
        # The last sum may fall short of its community's end by rounding.
        chosen = np.minimum(stars, len(self.labels) - 1)
        random = rng.integers(0, len(self.labels), count * self._noise)
        fans = np.repeat(np.arange(first, first + count), self._noise)
        return (
            np.concatenate((chosen, random)),
            np.concatenate((np.repeat(owners, self._follows), fans)),
        )

    def similarity(self, one: int, other: int) -> float:
        """Return the ratio of the expected sizes of two stars' shared and joint followers.

        Args:
            one: a star.
            other: another one.

        Returns:
            Jaccard similarity in the limit of many fans.
        """
        missed = [self._missed([star]) for star in (one, other)]
        joint = 1 - self._missed([one, other])
        return (2 - sum(missed) - joint) / joint

    def _missed(self, stars: list[int]) -> float:
        """Return the chance that a fan follows none of the stars."""
        chance = 0.0
        for community in set(self.labels[stars].tolist()):
            own = sum(self.popularity[star] for star in stars if self.labels[star] == community)
            chance += self._interest[community] * (1 - (1 - own) ** self._follows)
        none = (1 - len(stars) / len(self.labels)) ** self._noise
        return float(np.mean([(1 - chance) ** interests for interests in (1, 2, 3)]) * none)


def planted_graph(
    nodes: int, *, mean_degree: float = 20.0, mixing: float = 0.3, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw an undirected graph with communities of power-law sizes and power-law degrees.

    Args:
        nodes: number of nodes, at least 50.
        mean_degree: about the mean number of neighbours.
        mixing: share of the ends of edges that are matched over all nodes, 0 to 1; the others are
            within their community.
        seed: seed.

    Returns:
        Both ends of each edge, in which loops and repeated edges may stand, and the community of
        each node.

    Raises:
        ConfigError: too few nodes, or a share outside of 0 to 1.

    Source: Lancichinetti et al. 2008, arXiv 0805.4770, with exponents 2.5 of degrees and 1.5 of
        sizes; stubs are matched at random, so degrees hold on average.
    """
    if nodes < 50 or not 0 <= mixing <= 1:
        raise ConfigError(
            f"a graph of {nodes} nodes with mixing {mixing}",
            hint="give 50 nodes or more, and a mixing from 0 to 1",
        )
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    while sum(sizes) < nodes:
        # A density of s^-1.5 above the least size.
        sizes.append(int(min(20 * (1 - rng.random()) ** -2, nodes / 5)))
    labels = np.repeat(np.arange(len(sizes)), sizes)[:nodes]
    # Degrees of a density d^-2.5: their mean is 3 times the least.
    degrees = np.minimum(mean_degree / 3 * (1 - rng.random(nodes)) ** (-1 / 1.5), nodes / 10)
    outside = rng.binomial(np.ceil(degrees).astype(np.int64), mixing)
    inside = np.ceil(degrees).astype(np.int64) - outside
    stubs = [rng.permutation(np.repeat(np.arange(nodes), outside))]
    for community in range(labels[-1] + 1):
        own = np.flatnonzero(labels == community)
        stubs.append(rng.permutation(np.repeat(own, inside[own])))
    even = [part[: len(part) // 2 * 2] for part in stubs]
    ends = np.concatenate(even).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], labels


def rmat_edges(
    scale: int, edges: int, *, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw edges by R-MAT: skewed degrees, no planted communities.

    Args:
        scale: logarithm of the number of nodes to base 2, 1 to 32.
        edges: number of edges; some stand twice.
        seed: seed.

    Returns:
        Both ends of each edge.

    Raises:
        ConfigError: the scale is out of range.

    Source: Chakrabarti et al. 2004 (R-MAT), with the quadrants .57, .19, .19, .05 of Graph500.
    """
    if not 1 <= scale <= 32:
        raise ConfigError(f"a scale of {scale}, but it must be in [1, 32]")
    rng = np.random.default_rng(seed)
    rows, columns = np.zeros(edges, np.int64), np.zeros(edges, np.int64)
    for _ in range(scale):
        spot = rng.random(edges)
        rows = 2 * rows + (spot >= 0.76)
        columns = 2 * columns + (((spot >= 0.57) & (spot < 0.76)) | (spot >= 0.95))
    return rows, columns
