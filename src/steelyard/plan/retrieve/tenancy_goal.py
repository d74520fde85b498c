"""What tenants of one set of vectors want: sizes, sharing, recall, memory."""

from dataclasses import dataclass

from steelyard.errors import ConfigError
from steelyard.plan.retrieve.index_goal import IndexGoal

__all__ = ["TenancyGoal"]


@dataclass(frozen=True, kw_only=True)
class TenancyGoal:
    """What is wanted.

    Attributes:
        vectors: vectors of all tenants.
        dim: numbers in a vector.
        tenants: tenants.
        seen_by: tenants that see a vector, on average.
        selectivity: share of all vectors that the tenant sees whose queries are timed; the mean
            tenant's when 0.
        locality: share of a tenant's vectors that lie in a few clusters of its own, 0 to 1.
        recall: share of the k nearest vectors to find.
        k: neighbours of a query.
        memory_bytes: memory for all; 0 for no limit.
        latency_s: longest time of a query; 0 for no limit.
        hardness: cells that such vectors need for a recall over those that usual ones need; 1
            where none were looked at. It grows with their inner dimensions.
    """

    vectors: int
    dim: int
    tenants: int
    seen_by: float = 1.0
    selectivity: float = 0.0
    locality: float = 0.0
    recall: float = 0.95
    k: int = 10
    memory_bytes: float = 0.0
    latency_s: float = 0.0
    hardness: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what nobody can want."""
        if min(self.vectors, self.dim, self.tenants, self.k) < 1:
            raise ConfigError(
                f"{self.vectors:,} vectors of {self.dim} numbers, {self.tenants:,} tenants, "
                f"{self.k} neighbours",
                hint="give at least one of each",
            )
        if not 1 <= self.seen_by <= self.tenants:
            raise ConfigError(
                f"a vector seen by {self.seen_by:g} of {self.tenants:,} tenants",
                hint="give 1 to as many as there are",
            )
        if not 0 <= self.selectivity <= 1 or not 0 <= self.locality <= 1:
            raise ConfigError(
                f"a selectivity of {self.selectivity:g}, a locality of {self.locality:g}",
                hint="give shares from 0 to 1",
            )
        if not 0 < self.recall <= 1:
            raise ConfigError(f"a recall of {self.recall:g}", hint="give it above 0, up to 1")
        if min(self.memory_bytes, self.latency_s) < 0:
            raise ConfigError("memory or time is below 0", hint="give 0 for no limit")
        if not self.hardness > 0:
            raise ConfigError(
                f"a hardness of {self.hardness:g}", hint="give it above 0, usual is 1"
            )

    @classmethod
    def of(
        cls,
        goal: IndexGoal,
        *,
        selectivity: float = 0.0,
        locality: float = 0.0,
        k: int = 10,
        hardness: float = 1.0,
    ) -> "TenancyGoal":
        """Return what a goal in words wants of tenants.

        Args:
            goal: vectors, tenants, recall, time and memory.
            selectivity: see the class.
            locality: see the class.
            k: neighbours of a query.
            hardness: see the class.

        Returns:
            The same for tenants.

        Raises:
            ConfigError: it names no tenants, or a number is out of range.
        """
        if goal.tenants < 2:
            raise ConfigError(
                "the goal names no tenants", hint="name two or more, such as '200 tenants'"
            )
        return cls(
            vectors=goal.vectors,
            dim=goal.dim,
            tenants=goal.tenants,
            seen_by=goal.seen_by,
            selectivity=selectivity,
            locality=locality,
            recall=goal.recall,
            k=k,
            memory_bytes=goal.memory_bytes,
            latency_s=goal.latency_s,
            hardness=hardness,
        )

    @property
    def own_vectors(self) -> int:
        """Vectors that the tenant sees."""
        share = self.selectivity or self.seen_by / self.tenants
        return min(max(1, round(self.vectors * share)), self.vectors)

    @property
    def grants(self) -> float:
        """Vectors that all tenants see, each counted as often as it is seen."""
        return self.vectors * self.seen_by
