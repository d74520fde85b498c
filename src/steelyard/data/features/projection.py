"""Random projection: fewer columns that keep distances between rows, whatever the rows are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["RandomProjection"]


@dataclass(frozen=True, kw_only=True)
class RandomProjection:
    """Signs that add columns up: +1, 0 and -1 in the shares 1/6, 2/3, 1/6, scaled.

    Attributes:
        signs: int8 [D, K].
    """

    signs: NDArray[np.int8]

    @classmethod
    def drawn(cls, width: int, count: int, seed: int = 0) -> "RandomProjection":
        """Draw a projection.

        Args:
            width: columns D, 1 or more.
            count: columns afterwards K, 1 or more.
            seed: seed of the signs.

        Returns:
            The projection.

        Raises:
            ConfigError: a number is below 1.

        Source: Achlioptas 2003, "Database-friendly random projections", theorem 1.1.
        """
        if width < 1 or count < 1:
            raise ConfigError(f"a projection of {width} to {count} columns", hint="1 or more")
        drawn = np.random.default_rng(seed).integers(0, 6, (width, count))
        return cls(signs=((drawn == 0).astype(np.int8) - (drawn == 1)).astype(np.int8))

    def apply(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the projected rows [N, K]."""
        return rows @ self.signs.astype(np.float64) * (3 / self.signs.shape[1]) ** 0.5

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"signs": self.signs}

    @classmethod
    def restored(cls, sections: dict[str, NDArray[Any]]) -> "RandomProjection":
        """Return the projection of arrays by name."""
        return cls(signs=np.array(sections["signs"], np.int8))
