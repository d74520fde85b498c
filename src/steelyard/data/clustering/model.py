"""Clusters that were found, in a file, and the cluster of other rows."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.clustering.mixture import GaussianMixture
from steelyard.data.features.inputs import FeatureInputs
from steelyard.data.features.row_model import FittedRows, RowModel
from steelyard.data.kmeans import nearest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ClusterCenters", "ClusterModel", "ClusterParts", "RowClusters"]


class RowClusters(FittedRows):
    """Something that puts rows in clusters.

    Attributes:
        numbers: cluster of each of its points or parts, -1 for one that no row was in [M].
    """

    numbers: NDArray[np.int64]

    @abstractmethod
    def labels(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the cluster of rows, -1 for none, and how surely it is theirs.

        Args:
            rows: features [N, K].

        Returns:
            Both [N].
        """
        ...

    @abstractmethod
    def renumbered(self, numbers: NDArray[np.int64]) -> "RowClusters":
        """Return the same clusters with other numbers.

        Args:
            numbers: new number of each cluster; -1 for one without rows.

        Returns:
            The clusters.
        """
        ...

    def schema(self) -> "pa.Schema":
        """Return the columns "cluster" and "strength"."""
        import pyarrow as pa

        return pa.schema([("cluster", pa.int64()), ("strength", pa.float32())])

    def applied(
        self, whole: NDArray[np.float32], rows: NDArray[np.float32], inputs: FeatureInputs
    ) -> "pa.RecordBatch":
        """Return clusters and strengths of rows."""
        import pyarrow as pa

        labels, strengths = self.labels(rows)
        return pa.record_batch([pa.array(labels), pa.array(strengths)], schema=self.schema())


@dataclass(frozen=True, kw_only=True)
class ClusterCenters(RowClusters):
    """Points that rows are nearest to: means, parts of clusters, or core rows.

    Attributes:
        centers: points [M, K].
        numbers: cluster of each of them [M].
        radius: distance beyond which rows are in no cluster; 0 where every row is in one.
    """

    kind: ClassVar[str] = "centers"
    centers: NDArray[np.floating]
    numbers: NDArray[np.int64]
    radius: float = 0.0

    def labels(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return clusters, and distances to the point; with a radius 1 for core rows, else 0."""
        if not len(self.centers):
            return np.full(len(rows), -1), np.zeros(len(rows), np.float32)
        at, squares = nearest(rows, self.centers)
        found = self.numbers[at]
        if not self.radius:
            return found, np.sqrt(squares).astype(np.float32)
        is_own = (self.centers[at] == rows).all(axis=1)
        # What rounding adds must not put a row out that lies at the very edge.
        within = squares <= self.radius**2 * (1 + 1e-6)
        return np.where(within, found, -1), is_own.astype(np.float32)

    def renumbered(self, numbers: NDArray[np.int64]) -> "ClusterCenters":
        """Return the same points with other numbers, without those that no row was near."""
        own = numbers[self.numbers]
        kept = own >= 0
        return ClusterCenters(centers=self.centers[kept], numbers=own[kept], radius=self.radius)

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {"radius": self.radius}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"centers": self.centers, "numbers": self.numbers}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> "ClusterCenters":
        """Return the points of values and arrays."""
        return cls(**{name: np.array(sections[name]) for name in ("centers", "numbers")}, **about)


@dataclass(frozen=True, kw_only=True)
class ClusterParts(RowClusters):
    """Parts of a mixture that rows are likeliest of.

    Attributes:
        mixture: the mixture.
        numbers: cluster of each part [M].
    """

    kind: ClassVar[str] = "mixture"
    mixture: GaussianMixture
    numbers: NDArray[np.int64]

    def labels(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the likeliest parts, and their shares of the density."""
        found, shares = self.mixture.assign(np.asarray(rows, np.float64))
        return self.numbers[found], shares.astype(np.float32)

    def renumbered(self, numbers: NDArray[np.int64]) -> "ClusterParts":
        """Return the same parts with other numbers."""
        return ClusterParts(mixture=self.mixture, numbers=numbers[self.numbers])

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        mixture = self.mixture
        arrays = {"shares": mixture.shares, "means": mixture.means}
        return arrays | {"covariances": mixture.covariances, "numbers": self.numbers}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> "ClusterParts":
        """Return the parts of arrays by name."""
        mixture = GaussianMixture(
            shares=np.array(sections["shares"]),
            means=np.array(sections["means"]),
            covariances=np.array(sections["covariances"]),
        )
        return cls(mixture=mixture, numbers=np.array(sections["numbers"]))


class ClusterModel(RowModel):
    """Clusters of a table with the columns that they want; `predict` puts other rows in them."""

    known: ClassVar[Mapping[str, type[FittedRows]]] = {
        item.kind: item for item in (ClusterCenters, ClusterParts)
    }
