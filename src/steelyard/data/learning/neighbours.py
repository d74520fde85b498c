"""Nearest neighbours in a sample of the rows."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.nearest import nearest_rows
from steelyard.data.learning.learners import FitJob, FittedLearner, Needs
from steelyard.data.learning.losses import scores_of_shares, start_scores
from steelyard.data.learning.targets import TargetColumn
from steelyard.errors import require

__all__ = ["NeighbourConfig", "Neighbours"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NeighbourConfig:
    """How neighbours are kept.

    Attributes:
        neighbours: rows whose targets are averaged.
        sample_rows: most rows that are kept.
    """

    needs: ClassVar[Needs] = "features"
    neighbours: int = 20
    sample_rows: int = 20_000

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(
            self,
            neighbours=(self.neighbours >= 1, "at least 1"),
            sample_rows=(self.sample_rows >= 1, "at least 1"),
        )

    def fit(self, job: FitJob) -> "Neighbours":
        """Keep a sample of rows.

        Args:
            job: features of rows, and what is predicted.

        Returns:
            The sample.

        Raises:
            DataError: no rows are left to learn from, or a class has none among them.

        Source: Fix and Hodges 1951, "Discriminatory analysis: nonparametric discrimination".
        """
        start_scores(job.store.targets, job.store.is_held, job.target)
        rows = job.rows
        if len(rows) > self.sample_rows:
            rng = np.random.default_rng(job.seed)
            rows = np.sort(rng.choice(rows, self.sample_rows, replace=False))
        return Neighbours(
            target=job.target,
            count=min(self.neighbours, len(rows)),
            features=np.array(job.features[rows]),
            targets=np.array(job.store.targets[rows]),
        )


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Rows with their targets.

    Attributes:
        target: what is predicted.
        count: neighbours that are averaged.
        features: [M, D].
        targets: [M].
    """

    kind: ClassVar[str] = "neighbours"
    target: TargetColumn
    count: int
    features: NDArray[np.float32]
    targets: NDArray[np.float32]

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their features [N, D]."""
        places, _ = nearest_rows(self.features, np.asarray(given, np.float32), self.count)
        found = self.targets[places]
        if self.target.task == "regress":
            return found.mean(axis=1)[None].astype(np.float32)
        classes = np.arange(len(self.target.classes))
        # One row with the shares of all kept ones is added, so that no share is 0.
        prior = (self.targets[:, None] == classes).mean(axis=0)
        sums = (found[:, :, None] == classes).sum(axis=1) + prior
        return scores_of_shares(self.target, sums / (self.count + 1))

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return zeros [count]: all features count alike."""
        return np.zeros(count)

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {"target": self.target.plain(), "count": self.count}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"features": self.features, "targets": self.targets}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the sample of values and arrays."""
        return cls(
            target=TargetColumn.of(about["target"]),
            count=about["count"],
            features=np.array(sections["features"]),
            targets=np.array(sections["targets"]),
        )
