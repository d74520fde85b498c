"""The settings of an index that tenants share, as a recipe holds them."""

from dataclasses import dataclass

from steelyard.errors import ConfigError
from steelyard.retrieve.index import Metric
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex

__all__ = ["TenantsRecipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantsRecipe:
    """How an index that tenants share is built.

    Attributes:
        metric: "l2" or "ip".
        nprobe: vectors that a query looks at, at least.
        branching: children of a node.
        leaf_size: most vectors of a leaf.
        shortlist: vectors of a tenant below a node that are looked at without going deeper.
        seed: seed of the sample and of the clusters.
    """

    metric: Metric = "l2"
    nprobe: int = 1200
    branching: int = 16
    leaf_size: int = 128
    shortlist: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative seed; the index refuses the other numbers."""
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}", hint="give 0 or more")

    def index(self, dim: int) -> ClusterTreeIndex:
        """Return an index without vectors.

        Args:
            dim: numbers in a vector.

        Returns:
            The index, not yet trained.

        Raises:
            ConfigError: a number is out of range.
        """
        return ClusterTreeIndex(
            dim,
            branching=self.branching,
            shortlist=self.shortlist,
            leaf_size=self.leaf_size,
            nprobe=self.nprobe,
            metric=self.metric,
        )
