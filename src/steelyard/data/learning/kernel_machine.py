"""Kernel machines that stream: random Fourier features of rows, and a linear model of these."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.learners import FitJob, FittedLearner, Needs
from steelyard.data.learning.linear import LinearConfig, LinearModel, descended
from steelyard.errors import DataError, require

__all__ = ["FourierFeatures", "KernelConfig", "KernelModel"]

_BLOCK, _PROBED = 4096, 500


@dataclass(frozen=True, kw_only=True)
class FourierFeatures:
    """Waves whose products are a Gaussian kernel on average.

    Attributes:
        directions: their frequencies [D, M].
        offsets: their phases [M].

    Source: Rahimi and Recht 2007, "Random features for large-scale kernel machines", algorithm 1.
    """

    directions: NDArray[np.float32]
    offsets: NDArray[np.float32]

    @classmethod
    def drawn(cls, rows: NDArray[np.floating], count: int, seed: int) -> "FourierFeatures":
        """Draw waves for rows; the kernel is as wide as the median distance between them.

        Args:
            rows: some hundreds of the rows [N, D].
            count: waves M.
            seed: seed of the waves.

        Returns:
            The waves.

        Raises:
            DataError: all rows are equal.
        """
        given = np.asarray(rows, np.float64)
        squares = np.square(given[:, None] - given).sum(axis=2)
        width = float(np.sqrt(np.median(squares[squares > 0]))) if squares.any() else 0.0
        if not width:
            raise DataError("rows are equal, so that no kernel has a width", hint="add columns")
        rng = np.random.default_rng(seed)
        directions = rng.normal(size=(given.shape[1], count)) / width
        return cls(
            directions=directions.astype(np.float32),
            offsets=rng.uniform(0, 2 * np.pi, count).astype(np.float32),
        )

    def apply(self, rows: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the waves at rows, of about unit variance [N, M]."""
        found = np.asarray(rows, np.float32) @ self.directions + self.offsets
        np.cos(found, out=found)
        found *= np.float32(2**0.5)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelConfig:
    """How a kernel machine is fitted: waves are made block by block, and never kept.

    Attributes:
        waves: random features; more come closer to the kernel.
        loss: "hinge" (a support vector machine) or "log" for classes, "squared" for numbers; None
            for hinge of classes.
        rate: factor of each step.
        l2: weight of half the squared weights in the loss of a row.
        epochs: most passes over the rows.
    """

    needs: ClassVar[Needs] = "features"
    waves: int = 1024
    loss: Literal["log", "hinge", "squared"] | None = None
    rate: float = 0.1
    l2: float = 1e-4
    epochs: int = 20

    def __post_init__(self) -> None:
        """Refuse what is out of range; the rest is the linear learner's to refuse."""
        require(self, waves=(1 <= self.waves <= 1 << 16, "1 to 65536"))
        LinearConfig(loss=self.loss, rate=self.rate, l2=self.l2, epochs=self.epochs)

    def fit(self, job: FitJob) -> "KernelModel":
        """Fit a linear model to the waves of rows.

        Args:
            job: features of rows, and what is predicted.

        Returns:
            Waves and weights.

        Raises:
            ConfigError: the loss is of another task.
            DataError: no rows are left to learn from, a class has none among them, or all are
                equal.
        """
        usual = "squared" if job.target.task == "regress" else "hinge"
        given = {"loss": self.loss or usual, "rate": self.rate, "l2": self.l2}
        rows = job.rows
        some = rows[:: max(len(rows) // _PROBED, 1)][:_PROBED]
        waves = FourierFeatures.drawn(job.features[some], self.waves, job.seed)
        config = LinearConfig(epochs=self.epochs, **given)
        return KernelModel(waves=waves, linear=descended(config, job, waves.apply, self.waves))


@dataclass(frozen=True, kw_only=True)
class KernelModel:
    """A linear model of waves.

    Attributes:
        waves: the waves.
        linear: the model.
    """

    kind: ClassVar[str] = "kernel"
    waves: FourierFeatures
    linear: LinearModel

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their features [N, D]."""
        found = np.empty((len(self.linear.coefficients), len(given)), np.float32)
        for first in range(0, len(given), _BLOCK):
            part = self.waves.apply(given[first : first + _BLOCK])
            found[:, first : first + len(part)] = self.linear.scores(part)
        return found

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return zeros [count]: each wave is of all features."""
        return np.zeros(count)

    def about(self) -> dict[str, Any]:
        """Return the plain values: none."""
        return {}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        own = {"directions": self.waves.directions, "offsets": self.waves.offsets}
        return own | self.linear.sections()

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the model of arrays by name."""
        waves = FourierFeatures(
            directions=np.array(sections["directions"]), offsets=np.array(sections["offsets"])
        )
        return cls(waves=waves, linear=LinearModel(coefficients=np.array(sections["coefficients"])))
