"""The rows of a table in clusters, with what makes each of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.clustering.density import density_clusters, usual_radius
from steelyard.data.clustering.mixture import fit_mixture
from steelyard.data.clustering.quality import davies_bouldin, silhouette
from steelyard.data.features.preparing import (
    PreparedFeatures,
    prepare_features,
    work_folder,
)
from steelyard.data.features.store import blocks_of
from steelyard.data.kmeans import kmeans, nearest
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["ClusterOptions", "ClusteredTable", "cluster_table"]

Method = Literal["kmeans", "mixture", "density"]
_SAMPLE_PER_CLUSTER, _TRIES, _MOST_FULL = 500, 4, 64
_BATCH_ROWS = 65_536


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How rows are clustered.

    Attributes:
        method: "kmeans" around means, "mixture" of normal distributions, "density" for clusters of
            any form and rows that are in none.
        clusters: how many; of density unused.
        leave_out: columns that do not count, such as keys.
        reduce: fewer features, such as "pca:16" or "random:64"; empty for all.
        radius: distance within which rows are neighbours, in standard deviations of a column; of
            density; None for that within which nine of ten rows have enough.
        least_rows: neighbours that make a row part of a cluster's core; of density.
        memory: most bytes that the first pass may take, such as "200MB"; empty for no bound.
        seed: seed of what is drawn.
    """

    method: Method = "kmeans"
    clusters: int = 8
    leave_out: Sequence[str] = ()
    reduce: str = ""
    radius: float | None = None
    least_rows: int = 10
    memory: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if self.clusters < 1 or self.least_rows < 1 or (self.radius or 1) <= 0:
            raise ConfigError(
                f"{self.clusters} clusters, {self.least_rows} neighbours, radius {self.radius}",
                hint="give 1 or more clusters and neighbours, and a radius above 0",
            )


@dataclass(frozen=True, kw_only=True)
class ClusteredTable:
    """Clusters of a table.

    Attributes:
        labels: cluster of each row, the largest first; -1 for none [N].
        strengths: distance to the center of k-means, the share of the likeliest part of a mixture,
            and 1 for core rows of density, 0 for others [N].
        sizes: rows of each cluster [K].
        columns: columns that count.
        middles: mean of each column of numbers by cluster, NaN of text [K, columns].
        spreads: how far each column's mean in a cluster is from that of all rows, in standard
            deviations [K, columns].
        silhouette: how much nearer rows are to their own cluster than to the next, on a sample.
        davies_bouldin: how wide clusters are over how far they are apart.
        facts: further figures of the method by name.
        warnings: columns that are left out, and infinite values.
    """

    labels: NDArray[np.int64]
    strengths: NDArray[np.float32]
    sizes: NDArray[np.int64]
    columns: list[str]
    middles: NDArray[np.float64]
    spreads: NDArray[np.float64]
    silhouette: float
    davies_bouldin: float
    facts: dict[str, float]
    warnings: list[str]

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Return the columns "cluster" and "strength", in the order of the rows."""
        import pyarrow as pa

        for first in range(0, len(self.labels), _BATCH_ROWS):
            part = slice(first, first + _BATCH_ROWS)
            arrays = [pa.array(self.labels[part]), pa.array(self.strengths[part])]
            yield pa.record_batch(arrays, names=["cluster", "strength"])


def cluster_table(
    table: "DataTable",
    options: ClusterOptions,
    folder: Path,
    *,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> ClusteredTable:
    """Cluster the rows of a table of any length.

    The first pass looks at columns, the second writes features to the folder, and clusters are
    found in that file; those by density have features in memory.

    Args:
        table: the table.
        options: how.
        folder: takes the features; removed at the end.
        done: is told what is worked on, and the share of it that is done.

    Returns:
        The clusters.

    Raises:
        ConfigError: no such column, or an option is out of range.
        DataError: no column varies, or there are fewer rows than clusters.
        CapacityError: the disk is full, or the radius holds too many rows.
    """
    with work_folder(folder):
        given = prepare_features(
            table,
            folder,
            leave_out=options.leave_out,
            reduce=options.reduce,
            memory=options.memory,
            seed=options.seed,
            done=done,
        )
        if len(given.features) < (1 if options.method == "density" else options.clusters):
            raise DataError(
                f"{len(given.features)} rows make no {options.clusters} clusters",
                hint="give fewer clusters",
            )
        done("clusters", 0.0)
        labels, strengths, facts = _METHODS[options.method](given, options)
        found = _told(given, labels, strengths, facts)
        del given
    return found


_Found = tuple[NDArray[np.int64], NDArray[np.float32], dict[str, float]]


def _around_means(given: PreparedFeatures, options: ClusterOptions) -> _Found:
    """Cluster around means."""
    count = options.clusters
    found = kmeans(
        given.features,
        count,
        seed=options.seed,
        start="parallel",
        sample=_SAMPLE_PER_CLUSTER * count,
        tries=_TRIES,
        bounds=True,
        precision="float32",
        tolerance=1e-3,
    )
    apart = nearest(given.features, found.centers)[1]
    facts = {"inertia": found.inertia, "passes": found.passes}
    return found.labels, np.sqrt(apart).astype(np.float32), facts


def _as_mixture(given: PreparedFeatures, options: ClusterOptions) -> _Found:
    """Cluster as a mixture of normal distributions."""
    shape = "full" if given.features.shape[1] <= _MOST_FULL else "diagonal"
    found = fit_mixture(given.features, options.clusters, shape=shape, seed=options.seed)
    parts = [found.assign(np.asarray(block, np.float64)) for block in blocks_of(given.features)]
    labels, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
    facts = {
        "mean log density": found.likelihood,
        "BIC": found.bic(len(labels)),
        "passes": float(found.passes),
    }
    return labels, shares.astype(np.float32), facts


def _by_density(given: PreparedFeatures, options: ClusterOptions) -> _Found:
    """Cluster by density."""
    features = np.asarray(given.features)
    radius = options.radius or usual_radius(features, options.least_rows, options.seed)
    if radius <= 0:
        raise DataError("nine of ten rows are equal to others", hint="give a radius")
    found = density_clusters(features, radius, options.least_rows)
    facts = {
        "radius": found.radius,
        "core rows": float(found.is_core.sum()),
        "rows in no cluster": float((found.labels < 0).sum()),
    }
    return found.labels, found.is_core.astype(np.float32), facts


_METHODS: dict[Method, Callable[[PreparedFeatures, ClusterOptions], _Found]] = {
    "kmeans": _around_means,
    "mixture": _as_mixture,
    "density": _by_density,
}


def _told(
    given: PreparedFeatures,
    labels: NDArray[np.int64],
    strengths: NDArray[np.float32],
    facts: dict[str, float],
) -> ClusteredTable:
    """Return clusters by their size, with the means of their columns."""
    count = int(labels.max(initial=-1)) + 1
    sizes = np.bincount(labels[labels >= 0], minlength=count)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    numbers = np.full(count + 1, -1)
    numbers[order] = np.arange(len(order))
    labels = numbers[labels]
    centers, whole = _means(given.features, labels, len(order)), given.whole
    wide = centers if whole is given.features else _means(whole, labels, len(order))
    return ClusteredTable(
        labels=labels,
        strengths=strengths,
        sizes=sizes[order],
        columns=given.encoder.names,
        middles=given.encoder.raw_means(wide),
        spreads=np.sqrt(given.encoder.by_column(wide**2)),
        silhouette=silhouette(given.features, labels),
        davies_bouldin=davies_bouldin(given.features, labels, centers),
        facts=facts,
        warnings=given.warnings,
    )


def _means(
    features: NDArray[np.float32], labels: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Return the mean of the rows of each cluster [count, D]."""
    sums, first = np.zeros((count, features.shape[1])), 0
    counts = np.bincount(labels[labels >= 0], minlength=count)
    for block in blocks_of(features):
        own = labels[first : first + len(block)]
        kept = own >= 0
        np.add.at(sums, own[kept], block[kept])
        first += len(block)
    return sums / np.maximum(counts, 1)[:, None]
