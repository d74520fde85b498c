"""Odd rows of a table, with the columns that make them so."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.anomalies.detector import RowDetector
from steelyard.data.anomalies.half_space import HalfSpaceTrees
from steelyard.data.anomalies.isolation import IsolationForest
from steelyard.data.anomalies.local_outliers import LocalOutliers
from steelyard.data.anomalies.mahalanobis import MahalanobisDetector
from steelyard.data.anomalies.model import DetectorModel, OddRow, RowScores, odd_rows
from steelyard.data.anomalies.residuals import ResidualDetector
from steelyard.data.features.inputs import FeatureInputs
from steelyard.data.features.preparing import (
    PreparedFeatures,
    prepare_features,
    work_folder,
)
from steelyard.data.features.store import blocks_of
from steelyard.data.sketch import Covariance
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["DetectOptions", "DetectedTable", "OddRow", "detect_table"]

Method = Literal["forest", "distance", "components", "neighbours", "stream"]
_FOREST_ROWS, _KEPT_ROWS = 100_000, 10_000
_MOST_EXPLAINED, _BATCH_ROWS = 1000, 65_536


@dataclass(frozen=True, kw_only=True)
class DetectOptions:
    """How odd rows are found.

    Attributes:
        method: "forest" (isolation forest), "distance" (from the middle, in the scale of the
            covariance), "components" (what the main ones do not explain), "neighbours" (local
            outlier factor in a sample), "stream" (half-space trees, by the rows before).
        share: share of rows that are called odd, above 0 to below 1.
        leave_out: columns that do not count, such as keys.
        reduce: fewer features, such as "pca:16" or "random:64"; empty for all.
        trees: trees of the forest.
        sample: rows of each tree.
        memory: most bytes that the first pass may take, such as "200MB"; empty for no bound.
        seed: seed of what is drawn.
    """

    method: Method = "forest"
    share: float = 0.01
    leave_out: Sequence[str] = ()
    reduce: str = ""
    trees: int = 100
    sample: int = 256
    memory: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if not 0 < self.share < 1:
            raise ConfigError(
                f"a share of {self.share:g} odd rows", hint="give above 0 to below 1: --share 0.01"
            )
        if self.trees < 1 or self.sample < 2:
            raise ConfigError(
                f"{self.trees} trees of {self.sample} rows", hint="give 1 tree, 2 rows or more"
            )


@dataclass(frozen=True, kw_only=True)
class DetectedTable:
    """How odd rows of a table are.

    Attributes:
        scores: larger is odder [N].
        threshold: score above which rows are called odd.
        odd: rows that are, the oddest first, at most 1,000 of them, with their columns.
        count: how many rows are odd.
        columns: columns by their share of the blame in all odd rows that were explained.
        warnings: columns that are left out, and infinite values.
        model: the detector, which scores other rows too.
    """

    scores: NDArray[np.float32]
    threshold: float
    odd: list[OddRow]
    count: int
    columns: list[tuple[str, float]]
    warnings: list[str]
    model: DetectorModel

    def batches(self) -> "Iterator[pa.RecordBatch]":
        """Return the columns "score", "odd" and "why" (the oddest 1,000), in the rows' order."""
        import pyarrow as pa

        why = {row.place: row.told for row in self.odd}
        for first in range(0, len(self.scores), _BATCH_ROWS):
            scores = self.scores[first : first + _BATCH_ROWS]
            told = [why.get(place) for place in range(first, first + len(scores))]
            flags = pa.array(scores > np.float32(self.threshold))
            arrays = [pa.array(scores), flags, pa.array(told, pa.string())]
            yield pa.record_batch(arrays, names=["score", "odd", "why"])


def detect_table(
    table: "DataTable",
    options: DetectOptions,
    folder: Path,
    *,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> DetectedTable:
    """Find the odd rows of a table of any length.

    The first pass looks at columns, the second writes features to the folder; the detector reads
    that file.

    Args:
        table: the table.
        options: how.
        folder: takes the features; removed at the end.
        done: is told what is worked on, and the share of it that is done.

    Returns:
        Scores and reasons.

    Raises:
        ConfigError: no such column, or an option is out of range.
        DataError: no column varies, or there are fewer than two rows.
        CapacityError: the disk is full.
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
        scores, detector = _scored(given.features, options, lambda at: done("scores", at))
        found = _told(given, scores, detector, options.share)
        del given
    return found


def _scored(
    features: NDArray[np.float32], options: DetectOptions, done: Callable[[float], None]
) -> tuple[NDArray[np.float32], RowDetector]:
    """Return the scores of all rows, and what gave them."""
    detector = _fitted(features, options)
    found, first = np.empty(len(features), np.float32), 0
    for block in blocks_of(features):
        rows = np.asarray(block)
        is_stream = isinstance(detector, HalfSpaceTrees)
        scores = detector.update(rows) if is_stream else detector.score(rows)
        found[first : first + len(rows)] = scores
        first += len(rows)
        done(first / len(features))
    return found, detector


def _fitted(features: NDArray[np.float32], options: DetectOptions) -> RowDetector:
    """Return a detector that was shown the rows."""
    rng = np.random.default_rng(options.seed)

    def drawn(most: int) -> NDArray[np.float32]:
        if len(features) <= most:
            return np.asarray(features)
        return np.asarray(features[np.sort(rng.choice(len(features), most, replace=False))])

    if options.method == "forest":
        rows = drawn(max(_FOREST_ROWS, options.sample))
        more = {"trees": options.trees, "sample": options.sample, "seed": options.seed}
        return IsolationForest.fit(rows, flagged=options.share, **more)
    if options.method == "neighbours":
        return LocalOutliers.fit(drawn(_KEPT_ROWS))
    if options.method == "stream":
        return HalfSpaceTrees(width=features.shape[1], seed=options.seed)
    if options.method == "distance":
        return MahalanobisDetector.fit(lambda: map(np.asarray, blocks_of(features)))
    spread = Covariance(features.shape[1])
    for block in blocks_of(features):
        spread.update(block)
    return ResidualDetector.fit(spread)


def _told(
    given: PreparedFeatures, scores: NDArray[np.float32], detector: RowDetector, share: float
) -> DetectedTable:
    """Return the oddest rows with their columns."""
    threshold = float(np.float32(np.quantile(scores, 1 - share)))
    count = int((scores > np.float32(threshold)).sum())
    order = np.argsort(-scores, kind="stable")[: min(count, _MOST_EXPLAINED)]
    inputs = FeatureInputs(encoder=given.encoder, reducer=given.reducer)
    rows = (given.whole[order], given.features[order], scores[order], order)
    odd, shares = odd_rows(detector, inputs, *rows)
    names = inputs.names
    whole = shares.mean(axis=0) if len(order) else np.zeros(len(names))
    return DetectedTable(
        scores=scores,
        threshold=threshold,
        odd=odd,
        count=count,
        columns=sorted(zip(names, whole.tolist(), strict=True), key=lambda item: -item[1]),
        warnings=given.warnings,
        model=DetectorModel(
            inputs=inputs, fitted=RowScores(detector=detector, threshold=threshold)
        ),
    )
