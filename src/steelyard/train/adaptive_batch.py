"""A batch that grows with the noise of its gradient: how far, and what the rate does."""

import math
from dataclasses import dataclass
from typing import Literal

from steelyard.errors import require

__all__ = ["AdaptiveBatch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveBatch:
    """How the batch follows the measured noise scale, in doublings of the recipe's `batch_size`.

    A step then takes 2, 4, ... batches of the recipe at once, as further micro-batches. Schedule,
    checkpoints and evaluations go on counting batches of the recipe, so that the run sees the same
    examples in the same order, in fewer updates.

    Attributes:
        largest: most times the recipe's batch, a power of two.
        rate: the rate's factor at m times the batch: "sqrt" for sqrt(m), right for Adam; "linear"
            for m, right for plain gradient descent; "none" for 1.
        every: updates between two measurements of the noise scale.
        exchange: examples that one update is worth, r: the batch follows the root of r times the
            noise scale, which costs the fewest examples for the updates that a run may take. 0 for
            the noise scale itself, which goes through every part of the run at its knee.

    Source: McCandlish et al. 2018 (arXiv 1812.06162), section 2.2 (the batch at the knee is the
        noise scale) and appendix D (batches that adapt; the root is its equation D.3).
    """

    largest: int = 16
    rate: Literal["sqrt", "linear", "none"] = "sqrt"
    every: int = 4
    exchange: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no batch can follow.

        Raises:
            ConfigError: a value is out of range.
        """
        require(
            self,
            largest=(
                self.largest >= 2 and self.largest.bit_count() == 1,
                "a power of two, at least 2",
            ),
            every=(self.every >= 1, "at least 1"),
            exchange=(0 <= self.exchange < math.inf, "a number of examples, or 0"),
        )

    def wanted(self, noise_scale: float) -> float:
        """Return the batch in examples at a noise scale in examples."""
        return math.sqrt(self.exchange * noise_scale) if self.exchange else noise_scale

    def factor(self, multiple: int) -> float:
        """Return what the learning rate is multiplied by at a multiple of the batch."""
        return {"sqrt": multiple**0.5, "linear": float(multiple), "none": 1.0}[self.rate]
