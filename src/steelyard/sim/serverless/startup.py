"""What a start-up is made of: parts with empirical quantiles, coupled by a Gaussian copula."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, require
from steelyard.sim.serverless.draws import GRID, draw_starts

__all__ = ["EmpiricalQuantiles", "StartUp"]


@dataclass(frozen=True)
class EmpiricalQuantiles:
    """Distribution of a non-negative time by its quantiles, and how often the time is there at all.

    Attributes:
        values_s: quantiles at 0, 1/200, ..., 1, seconds; linear between.
        share: fraction of starts that have this part; it takes 0 s in the others.
    """

    values_s: NDArray[np.float64]
    share: float = 1.0

    def __post_init__(self) -> None:
        values = np.asarray(self.values_s, dtype=np.float64)
        object.__setattr__(self, "values_s", values)
        good = values.shape == (GRID + 1,) and np.isfinite(values).all()
        require(
            self,
            values_s=(
                bool(good and (values >= 0).all() and (np.diff(values) >= 0).all()),
                f"{GRID + 1} rising quantiles at or above 0",
            ),
            share=(0 <= self.share <= 1, "in [0, 1]"),
        )

    @classmethod
    def from_curve(
        cls, levels: ArrayLike, values_s: ArrayLike, *, share: float = 1.0
    ) -> "EmpiricalQuantiles":
        """Read quantiles at any rising levels in [0, 1]; the ends are held, NaN left out.

        Args:
            levels: probabilities.
            values_s: quantiles at these, seconds.
            share: fraction of starts that have this part.

        Returns:
            The distribution on the common grid.

        Raises:
            ConfigError: no value is known, or they fall or are negative.
        """
        at = np.asarray(levels, dtype=np.float64)
        values = np.asarray(values_s, dtype=np.float64)
        known = np.isfinite(values)
        if not known.any():
            raise ConfigError("a curve of quantiles has no value", hint="give at least one")
        grid = np.linspace(0, 1, GRID + 1)
        return cls(np.interp(grid, at[known], values[known]), share)

    @classmethod
    def constant(cls, seconds: float) -> "EmpiricalQuantiles":
        """Return a part that always takes the same time."""
        return cls(np.full(GRID + 1, float(seconds)))

    @property
    def mean_s(self) -> float:
        """Mean over all starts, those without the part included, seconds."""
        middle = (self.values_s[1:] + self.values_s[:-1]) / 2
        return float(middle.mean() * self.share)


@dataclass(frozen=True)
class StartUp:
    """Additive parts of a start of one runtime; `of_bytes` is that of an inference engine.

    Attributes:
        parts: distribution by the part's name, in the order in which they are passed.
        correlation: correlations of the parts' normal scores [P, P]; none when left out.
        is_pooled: whether pods of this runtime wait in reserved pools; images of users do not.
    """

    parts: Mapping[str, EmpiricalQuantiles]
    correlation: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    is_pooled: bool = True

    def __post_init__(self) -> None:
        count = len(self.parts)
        if not self.correlation.size:
            object.__setattr__(self, "correlation", np.eye(count))
        matrix = np.asarray(self.correlation, dtype=np.float64)
        good = matrix.shape == (count, count) and np.allclose(matrix, matrix.T)
        good = good and np.allclose(np.diag(matrix), 1.0)
        require(
            self,
            parts=(bool(self.parts), "at least one part"),
            correlation=(
                bool(good and np.linalg.eigvalsh(matrix).min() > -1e-6),
                f"a correlation matrix [{count}, {count}]: symmetric, 1 on the diagonal, and not "
                "indefinite",
            ),
        )

    @classmethod
    def of_bytes(
        cls,
        weights_bytes: float,
        bytes_per_s: float,
        *,
        process_s: float,
        imports_s: float,
        warm_up_s: float,
    ) -> "StartUp":
        """Return the start of an inference engine, whose weights come from storage.

        Args:
            weights_bytes: size of the weights.
            bytes_per_s: rate of the storage.
            process_s: time to start the process.
            imports_s: time to import its libraries.
            warm_up_s: time to compile, capture and run first steps.

        Returns:
            Four constant parts: process, imports, weights, warm_up.

        Raises:
            ConfigError: the rate is not above 0.
        """
        if bytes_per_s <= 0:
            raise ConfigError(f"bytes_per_s is {bytes_per_s}, but must be above 0")
        times = {
            "process": process_s,
            "imports": imports_s,
            "weights": weights_bytes / bytes_per_s,
            "warm_up": warm_up_s,
        }
        parts = {name: EmpiricalQuantiles.constant(value) for name, value in times.items()}
        return cls(parts, is_pooled=False)

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return curves [P, 201], shares [P] and the lower factor of the correlations [P, P]."""
        curves = np.stack([part.values_s for part in self.parts.values()])
        shares = np.array([part.share for part in self.parts.values()])
        # A touch of independence: a singular matrix has no Cholesky factor.
        near = self.correlation + 1e-6 * np.eye(len(shares))
        lower = np.linalg.cholesky(near)
        return curves, shares, lower / np.linalg.norm(lower, axis=1, keepdims=True)

    def sample(self, count: int, seed: int) -> NDArray[np.float64]:
        """Draw starts.

        Args:
            count: how many.
            seed: seed of the draws.

        Returns:
            Seconds [count, parts].
        """
        out = np.empty((count, len(self.parts)))
        draw_starts(*self.arrays(), seed, 0, out)
        return out
