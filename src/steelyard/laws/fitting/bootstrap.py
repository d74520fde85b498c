"""How the points of a fit are drawn again for its intervals."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from steelyard.errors import FitError

__all__ = ["Bootstrap", "Resampling"]

Resampling = Literal["auto", "pairs", "noise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """How often and in which way the points of a fit are drawn again.

    Attributes:
        count: resampled fits; with 0 nothing is resampled or held out, and predictions carry the
            noise of a run and an assumed drift only.
        seed: seed of the draws; same seed, same numbers.
        resampling: "pairs" draws points with replacement, "noise" adds normal noise of the
            residuals' size to the fit; "auto" takes pairs from eight points per parameter on,
            because few points drawn with replacement fall onto one axis.
    """

    count: int = 300
    seed: int = 0
    resampling: Resampling = "auto"

    def __post_init__(self) -> None:
        """Refuse counts and seeds below 0 and unknown ways."""
        if self.count < 0 or self.seed < 0:
            raise FitError(
                f"{self.count} bootstraps with seed {self.seed}: --bootstraps and --seed are at "
                f"least 0",
                hint="0 bootstraps give no intervals, 300 are the usual number",
            )
        if self.resampling not in get_args(Resampling):
            raise FitError(
                f"resampling {self.resampling!r} is not known",
                hint=f"one of {', '.join(get_args(Resampling))}",
            )

    def generator(self) -> np.random.Generator:
        """Return a new generator of the seed."""
        return np.random.default_rng(self.seed)

    def only_way(self, way: str) -> np.random.Generator:
        """Return the generator for a function that draws in one way, and refuse a wish for another.

        Args:
            way: what the function draws, for the message.

        Returns:
            A new generator of the seed.

        Raises:
            FitError: the resampling is not "auto".
        """
        if self.resampling != "auto":
            raise FitError(
                f"resampling {self.resampling!r} is not for here: {way}", hint='leave it "auto"'
            )
        return self.generator()
