"""Detectors of odd rows, in a file, and the scores of other rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.anomalies.detector import RowDetector
from steelyard.data.anomalies.half_space import HalfSpaceTrees
from steelyard.data.anomalies.isolation import IsolationForest
from steelyard.data.anomalies.local_outliers import LocalOutliers
from steelyard.data.anomalies.mahalanobis import MahalanobisDetector
from steelyard.data.anomalies.residuals import ResidualDetector
from steelyard.data.features.inputs import FeatureInputs
from steelyard.data.features.pca import PrincipalComponents
from steelyard.data.features.reducing import directions_of
from steelyard.data.features.row_model import FittedRows, RowModel

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DetectorModel", "OddRow", "RowScores", "odd_rows"]

_MOST_REASONS, _LEAST_SHARE = 3, 0.05
_FLAT: tuple[type[Any], ...] = (IsolationForest, LocalOutliers, MahalanobisDetector)
"""Detectors whose fields are arrays and plain values."""


@dataclass(frozen=True, slots=True)
class OddRow:
    """A row that is odd.

    Attributes:
        place: number of the row, from 0.
        score: how odd it is.
        reasons: columns with their share of the blame, largest first, and their value where it is
            a number.
    """

    place: int
    score: float
    reasons: tuple[tuple[str, float, float | None], ...]

    @property
    def told(self) -> str:
        """The reasons in words."""
        parts = (
            f"{name}{'' if value is None else f' = {value:.4g}'} ({share:.0%})"
            for name, share, value in self.reasons
        )
        return ", ".join(parts)


def odd_rows(
    detector: RowDetector,
    inputs: FeatureInputs,
    whole: NDArray[np.float32],
    rows: NDArray[np.float32],
    scores: NDArray[np.float32],
    places: NDArray[np.int64],
) -> tuple[list[OddRow], NDArray[np.float64]]:
    """Return rows with the columns that make them odd.

    Args:
        detector: what found them.
        inputs: how rows became features.
        whole: features before they were made narrower [N, D].
        rows: features [N, K].
        scores: [N].
        places: numbers of the rows [N].

    Returns:
        The rows, and the share of the blame that each column has [N, columns].
    """
    blame = detector.blame(np.asarray(rows, np.float64))
    if inputs.reducer is not None:
        # What narrower features are blamed for, columns are by how far they move them.
        blame = blame @ directions_of(inputs.reducer) ** 2
    shares = inputs.encoder.by_column(blame)
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    values = inputs.encoder.raw_means(np.asarray(whole, np.float64))
    found = [
        OddRow(place, score, _reasons(inputs.names, shares[at], values[at]))
        for at, (place, score) in enumerate(zip(places.tolist(), scores.tolist(), strict=True))
    ]
    return found, shares


def _reasons(
    names: list[str], shares: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[tuple[str, float, float | None], ...]:
    """Return the columns with the largest shares, at most three."""
    order = np.argsort(-shares, kind="stable")[:_MOST_REASONS].tolist()
    return tuple(
        (names[at], float(shares[at]), None if np.isnan(values[at]) else float(values[at]))
        for at in order
        if shares[at] > _LEAST_SHARE
    )


@dataclass(frozen=True, kw_only=True)
class RowScores(FittedRows):
    """A detector with the score above which rows are odd.

    Attributes:
        detector: scores rows.
        threshold: the score.
    """

    kind: ClassVar[str] = "detector"
    detector: RowDetector
    threshold: float

    def schema(self) -> "pa.Schema":
        """Return the columns "score", "odd" and "why"."""
        import pyarrow as pa

        kinds = {"score": pa.float32(), "odd": pa.bool_(), "why": pa.string()}
        return pa.schema(list(kinds.items()))

    def applied(
        self, whole: NDArray[np.float32], rows: NDArray[np.float32], inputs: FeatureInputs
    ) -> "pa.RecordBatch":
        """Return scores, and the reasons of odd rows; streamed trees learn nothing from them."""
        import pyarrow as pa

        scores = self.detector.score(rows).astype(np.float32)
        is_odd = scores > np.float32(self.threshold)
        at = np.flatnonzero(is_odd)
        told: list[str | None] = [None] * len(rows)
        if len(at):
            given = (whole[at], rows[at], scores[at], at)
            for row in odd_rows(self.detector, inputs, *given)[0]:
                told[row.place] = row.told
        arrays = [pa.array(scores), pa.array(is_odd), pa.array(told, pa.string())]
        return pa.record_batch(arrays, schema=self.schema())

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        name = type(self.detector).__name__
        return {
            "threshold": self.threshold,
            "detector": name,
            "settings": _plain(self.detector),
        }

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        if isinstance(self.detector, ResidualDetector):
            return self.detector.components.sections()
        if isinstance(self.detector, HalfSpaceTrees):
            return self.detector.sections()
        values = {item.name: getattr(self.detector, item.name) for item in _fields(self.detector)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> "RowScores":
        """Return the detector of values and arrays."""
        arrays = {name: np.array(values) for name, values in sections.items()}
        detector = _MAKERS[about["detector"]](about["settings"], arrays)
        return cls(detector=detector, threshold=float(about["threshold"]))


def _fields(detector: Any) -> tuple[Any, ...]:
    """Return the fields of a detector that is a dataclass."""
    return fields(detector)


def _plain(detector: RowDetector) -> dict[str, Any]:
    """Return the values of a detector that are no arrays."""
    if isinstance(detector, ResidualDetector):
        return {}
    values = {item.name: getattr(detector, item.name) for item in _fields(detector)}
    return {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}


def _flat(kind: type[Any]) -> Callable[[dict[str, Any], dict[str, NDArray[Any]]], RowDetector]:
    """Return what makes a detector of its fields."""
    return lambda told, arrays: kind(**told, **arrays)


_MAKERS: dict[str, Callable[[dict[str, Any], dict[str, NDArray[Any]]], RowDetector]] = {
    **{kind.__name__: _flat(kind) for kind in _FLAT},
    "ResidualDetector": lambda _told, arrays: ResidualDetector(
        components=PrincipalComponents.restored(arrays)
    ),
    "HalfSpaceTrees": HalfSpaceTrees.restored,
}
"""What makes detectors of values and arrays, by name."""


class DetectorModel(RowModel):
    """A detector of a table with the columns that it wants; `predict` scores other rows."""

    known: ClassVar[Mapping[str, type[FittedRows]]] = {RowScores.kind: RowScores}
