"""What training costs: FLOP as a power of size and one of tokens, fitted to recorded compute."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.points import positive_column
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.levels import coefficients

__all__ = ["SIX_N_D", "CostLaw"]

_FEWEST = 5
_LEAST_SPREAD = 0.2
"""Log inputs that spread less beside one another leave their exponents to chance."""
_ODD = 0.5


@dataclass(frozen=True, slots=True)
class CostLaw:
    """Training compute k N^a D^b of N parameters and D tokens.

    Attributes:
        k: FLOP at one parameter and one token, positive.
        a: exponent of parameters, positive.
        b: exponent of tokens, positive.
        scatter: deviation of the recorded compute from the law, log units; 0 when not fitted.
    """

    k: float = 6.0
    a: float = 1.0
    b: float = 1.0
    scatter: float = 0.0

    def __post_init__(self) -> None:
        """Refuse costs that do not rise."""
        if not all(0 < value < np.inf for value in (self.k, self.a, self.b)):
            raise FitError(
                f"cost law: k, a and b must be positive and finite, given k {self.k:g}, "
                f"a {self.a:g}, b {self.b:g}",
                hint="6 FLOP per parameter and token is CostLaw()",
            )

    def __str__(self) -> str:
        """Return the formula."""
        return f"{self.k:.4g} N^{self.a:.4g} D^{self.b:.4g}"

    @property
    def is_product(self) -> bool:
        """Whether compute is a multiple of N D, for which optima have a closed form."""
        return self.a == self.b == 1.0

    def flops(self, parameters: ArrayLike, tokens: ArrayLike) -> Array:
        """Return the compute of training, FLOP."""
        size = np.asarray(parameters, dtype=np.float64)
        fed = np.asarray(tokens, dtype=np.float64)
        return np.asarray(self.k * size**self.a * fed**self.b)

    def tokens(self, parameters: ArrayLike, flops: ArrayLike) -> Array:
        """Return the tokens that compute pays for at a size."""
        size = np.asarray(parameters, dtype=np.float64)
        return np.asarray(np.asarray(flops) / size**self.a / self.k) ** (1 / self.b)

    @classmethod
    def fit(cls, table: Mapping[str, ArrayLike]) -> "CostLaw":
        """Fit the law to recorded compute, by least squares of logs.

        Args:
            table: columns "parameters", "tokens" and "flops", [n] each, such as a `RunTable`.

        Returns:
            The law; with exponents of 1 where sizes and tokens were not varied apart.

        Raises:
            FitError: a column is missing, there are fewer than five runs, or compute does not rise
                with both.
        """
        missing = [name for name in ("parameters", "tokens", "flops") if name not in table]
        if missing:
            raise FitError(
                f"a cost law needs recorded compute; the table has no {', '.join(missing)}",
                hint="give columns parameters, tokens and flops",
            )
        count = np.size(table["flops"])
        size, tokens, flops = (
            np.log(positive_column(name, table[name], count))
            for name in ("parameters", "tokens", "flops")
        )
        if count < _FEWEST:
            raise FitError(
                f"{count} runs cannot fit a cost law",
                hint=f"give {_FEWEST} or more with their FLOP",
            )
        design = np.stack([np.ones(count), size - size.mean(), tokens - tokens.mean()], axis=1)
        spread = np.linalg.svd(design[:, 1:] / np.sqrt(count), compute_uv=False)[-1]
        (level, a, b), _ = coefficients(design, flops)
        if spread < _LEAST_SPREAD:
            level, a, b = flops.mean(), 1.0, 1.0
        elif min(a, b) < _ODD or max(a, b) > 1 + _ODD:
            raise FitError(
                f"recorded flops grow as parameters^{a:.2f} and tokens^{b:.2f}, which no training "
                f"does",
                hint="check that flops, parameters and tokens are of the same run and unit",
            )
        residual = flops - level - a * design[:, 1] - b * design[:, 2]
        log_k = level - a * size.mean() - b * tokens.mean()
        return cls(float(np.exp(log_k)), float(a), float(b), float(residual.std()))


SIX_N_D = CostLaw()
"""A forward pass of 2 FLOP per parameter and token, and a backward pass of twice that."""
