"""The rows of a table in clusters, with what makes each of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.clustering.density import density_clusters, usual_radius
from steelyard.data.clustering.feature_tree import ClusterFeatureTree
from steelyard.data.clustering.mixture import fit_mixture
from steelyard.data.clustering.model import (
    ClusterCenters,
    ClusterModel,
    ClusterParts,
    RowClusters,
)
from steelyard.data.clustering.quality import davies_bouldin, silhouette
from steelyard.data.features.inputs import FeatureInputs
from steelyard.data.features.preparing import (
    PreparedFeatures,
    prepare_features,
    work_folder,
)
from steelyard.data.features.store import blocks_of
from steelyard.data.kmeans import kmeans
from steelyard.errors import DataError, require

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["ClusterOptions", "ClusteredTable", "cluster_table"]

Method = Literal["kmeans", "mixture", "density", "birch"]
_SAMPLE_PER_CLUSTER, _TRIES, _MOST_FULL = 500, 4, 64
_BATCH_ROWS, _ENTRIES = 65_536, 4096


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How rows are clustered.

    Attributes:
        method: "kmeans" around means, "mixture" of normal distributions, "density" for clusters of
            any form and rows that are in none, "birch" around means of small clusters that one pass
            finds.
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
        require(
            self,
            clusters=(self.clusters >= 1, "at least 1"),
            least_rows=(self.least_rows >= 1, "at least 1"),
            radius=(self.radius is None or self.radius > 0, "above 0"),
        )


@dataclass(frozen=True, kw_only=True)
class ClusteredTable:
    """Clusters of a table.

    Attributes:
        labels: cluster of each row, the largest first; -1 for none [N].
        strengths: distance to the center of k-means and birch, the share of the likeliest part of a
            mixture, and 1 for core rows of density, 0 for others [N].
        sizes: rows of each cluster [K].
        columns: columns that count.
        middles: mean of each column of numbers by cluster, NaN of text [K, columns].
        spreads: how far each column's mean in a cluster is from that of all rows, in standard
            deviations [K, columns].
        silhouette: how much nearer rows are to their own cluster than to the next, on a sample.
        davies_bouldin: how wide clusters are over how far they are apart.
        facts: further figures of the method by name.
        warnings: columns that are left out, and infinite values.
        model: the clusters, which other rows can be put in.
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
    model: ClusterModel

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
        found = _told(given, _METHODS[options.method](given, options))
        del given
    return found


@dataclass(frozen=True, kw_only=True)
class _MethodFound:
    """Clusters as a method numbers them, -1 for none."""

    labels: NDArray[np.int64]
    strengths: NDArray[np.float32]
    clusters: RowClusters
    facts: dict[str, float]


def _around_means(given: PreparedFeatures, options: ClusterOptions) -> _MethodFound:
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
    facts = {"inertia": found.inertia, "passes": found.passes}
    return _assigned(given, ClusterCenters(centers=found.centers, numbers=np.arange(count)), facts)


def _assigned(
    given: PreparedFeatures, clusters: RowClusters, facts: dict[str, float]
) -> _MethodFound:
    """Put all rows in clusters, as rows of other tables will be."""
    parts = [clusters.labels(np.asarray(block)) for block in blocks_of(given.features)]
    labels, strengths = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _MethodFound(labels=labels, strengths=strengths, clusters=clusters, facts=facts)


def _as_mixture(given: PreparedFeatures, options: ClusterOptions) -> _MethodFound:
    """Cluster as a mixture of normal distributions."""
    shape = "full" if given.features.shape[1] <= _MOST_FULL else "diagonal"
    found = fit_mixture(given.features, options.clusters, shape=shape, seed=options.seed)
    facts = {
        "mean log density": found.likelihood,
        "BIC": found.bic(len(given.features)),
        "passes": float(found.passes),
    }
    parts = ClusterParts(mixture=found, numbers=np.arange(options.clusters))
    return _assigned(given, parts, facts)


def _by_density(given: PreparedFeatures, options: ClusterOptions) -> _MethodFound:
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
    cores, numbers = np.array(features[found.is_core]), found.labels[found.is_core]
    return _MethodFound(
        labels=found.labels,
        strengths=found.is_core.astype(np.float32),
        clusters=ClusterCenters(centers=cores, numbers=numbers, radius=found.radius),
        facts=facts,
    )


def _in_one_pass(given: PreparedFeatures, options: ClusterOptions) -> _MethodFound:
    """Cluster around means of the entries of a tree."""
    tree = ClusterFeatureTree(given.features.shape[1], max(_ENTRIES, 20 * options.clusters))
    for block in blocks_of(given.features):
        tree.update(np.asarray(block))
    centers = tree.centers(options.clusters, options.seed)
    clusters = ClusterCenters(centers=centers, numbers=np.arange(len(centers)))
    entries, _, _ = tree.entries()
    facts = {"entries": float(len(entries)), "limit": tree.limit}
    found = _assigned(given, clusters, facts)
    found.facts["inertia"] = float((found.strengths.astype(np.float64) ** 2).sum())
    return found


_METHODS: dict[Method, Callable[[PreparedFeatures, ClusterOptions], _MethodFound]] = {
    "kmeans": _around_means,
    "mixture": _as_mixture,
    "density": _by_density,
    "birch": _in_one_pass,
}


def _told(given: PreparedFeatures, found: _MethodFound) -> ClusteredTable:
    """Return clusters by their size, with the means of their columns."""
    labels = found.labels
    count = int(labels.max(initial=-1)) + 1
    sizes = np.bincount(labels[labels >= 0], minlength=count)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    numbers = np.full(count + 1, -1)
    numbers[order] = np.arange(len(order))
    labels = numbers[labels]
    # Parts of a mixture, and means, may have no row: they have no number.
    more = np.full(int(found.clusters.numbers.max(initial=-1)) + 1, -1)
    more[: min(count, len(more))] = numbers[: min(count, len(more))]
    clusters = found.clusters.renumbered(more)
    inputs = FeatureInputs(encoder=given.encoder, reducer=given.reducer)
    centers, whole = _means(given.features, labels, len(order)), given.whole
    wide = centers if whole is given.features else _means(whole, labels, len(order))
    return ClusteredTable(
        labels=labels,
        strengths=found.strengths,
        sizes=sizes[order],
        columns=given.encoder.names,
        middles=given.encoder.raw_means(wide),
        spreads=np.sqrt(given.encoder.by_column(wide**2)),
        silhouette=silhouette(given.features, labels),
        davies_bouldin=davies_bouldin(given.features, labels, centers),
        facts=found.facts,
        warnings=given.warnings,
        model=ClusterModel(inputs=inputs, fitted=clusters),
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
