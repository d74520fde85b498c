"""Made tenants: vectors in clusters, who sees which, and queries."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["MadeTenants", "MadeTenantsOptions"]

_CLUSTERS, _SPREAD, _SIZES_FALL = 100, 0.5, 0.8
_INNER = 16
_LARGEST = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeTenantsOptions:
    """What is made.

    Attributes:
        vectors: vectors.
        dim: numbers in a vector.
        tenants: tenants. Sizes fall by rank from .3 of the vectors; every second tenant sees
            vectors of a few clusters, the others see any.
        queries: queries, drawn as the vectors are.
        seed: seed of the draws.
    """

    vectors: int = 20_000
    dim: int = 64
    tenants: int = 50
    queries: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        if min(self.vectors, self.dim, self.tenants, self.queries) < 1 or self.seed < 0:
            raise ConfigError(
                f"{self.vectors} vectors of {self.dim} numbers, {self.tenants} tenants, "
                f"{self.queries} queries, seed {self.seed}",
                hint="give 1 or more of each, and a seed of 0 or more",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeTenants:
    """Vectors and grants to try an index for tenants with.

    Attributes:
        vectors: float32 [N, D].
        queries: float32 [Q, D].
        grants: numbers of the vectors that each tenant sees, ascending, by its name.
    """

    vectors: NDArray[np.float32]
    queries: NDArray[np.float32]
    grants: dict[str, NDArray[np.int64]]

    @classmethod
    def drawn(cls, options: MadeTenantsOptions) -> "MadeTenants":
        """Draw vectors around middles in few dimensions, and what tenants see.

        Args:
            options: what to draw.

        Returns:
            The same for the same options.
        """
        rng = np.random.default_rng(options.seed)
        count, inner = options.vectors + options.queries, min(_INNER, options.dim)
        middles = rng.normal(size=(_CLUSTERS, inner))
        homes = rng.integers(0, _CLUSTERS, count)
        drawn = middles[homes] + _SPREAD * rng.normal(size=(count, inner))
        turn = rng.normal(size=(inner, options.dim)) / np.sqrt(inner)
        rows = (drawn @ turn + 0.05 * rng.normal(size=(count, options.dim))).astype(np.float32)
        return cls(
            vectors=rows[: options.vectors],
            queries=rows[options.vectors :],
            grants=_granted(options, homes[: options.vectors], rng),
        )


def _granted(
    options: MadeTenantsOptions, homes: NDArray[np.int64], rng: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """Return what each tenant sees: any vectors, or those of the clusters after one of its own."""
    found = {}
    for tenant in range(options.tenants):
        share = _LARGEST / (tenant + 1) ** _SIZES_FALL
        size = max(1, round(share * options.vectors))
        if tenant % 2:
            away = (homes - int(rng.integers(0, _CLUSTERS))) % _CLUSTERS
            # Of one cluster those at the end are as likely as any: the order among them is drawn.
            own = np.lexsort((rng.random(len(homes)), away))[:size]
        else:
            own = rng.choice(options.vectors, size, replace=False)
        found[f"tenant-{tenant + 1}"] = np.sort(own).astype(np.int64)
    return found
