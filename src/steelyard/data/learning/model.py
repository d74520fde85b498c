"""Fitted trees with the columns that they want, in a file, and their predictions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.bins import FeatureBins
from steelyard.data.learning.boosting import Boosted
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.learning.trees import Tree
from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["TableModel"]

_VERSION = 1
_PARTS = ("features", "splits", "missing_left", "children", "values", "gains")


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """Trees that predict a column of a table from others.

    Attributes:
        bins: how columns become codes.
        target: what is predicted.
        trees: the trees.
        about: plain values that are kept beside them, such as the settings.
    """

    bins: list[FeatureBins]
    target: TargetColumn
    trees: Boosted
    about: dict[str, Any] = field(default_factory=dict)

    def scores(self, batch: "pa.RecordBatch") -> NDArray[np.float32]:
        """Return the scores of a batch [K, N]."""
        if not self.bins:
            return np.repeat(self.trees.start[:, None], len(batch), axis=1)
        codes = np.stack([column.encode(batch) for column in self.bins])
        return self.trees.score(codes, np.arange(len(batch)))

    def shares(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the predicted share of each class [N, K] from scores."""
        if self.target.width == 1:
            share = 1 / (1 + np.exp(-scores[0].astype(np.float64)))
            return np.stack([1 - share, share], axis=1)
        parts = np.exp(scores.astype(np.float64) - scores.max(axis=0))
        return (parts / parts.sum(axis=0)).T

    def predict(self, table: "DataTable") -> Iterator["pa.RecordBatch"]:
        """Predict the rows of a table.

        Args:
            table: has the columns that the model was fitted on; one that is missing counts as
                missing in every row, and values that were not seen share a code.

        Yields:
            Batches of the column "prediction"; of classes also "share", that of the predicted one,
            and of two classes "share of CLASS" in its place, of the second.
        """
        import pyarrow as pa

        schema = self.schema()
        for batch in table.batches:
            scores = self.scores(batch)
            if self.target.task == "regress":
                yield pa.record_batch([pa.array(scores[0], pa.float32())], schema=schema)
                continue
            shares = self.shares(scores)
            chosen = shares.argmax(axis=1)
            names = pa.array(self.target.classes, pa.string()).take(pa.array(chosen))
            is_two = len(self.target.classes) == 2
            told = shares[:, 1] if is_two else shares[np.arange(len(chosen)), chosen]
            yield pa.record_batch([names, pa.array(told)], schema=schema)

    def schema(self) -> "pa.Schema":
        """Return the columns of predictions."""
        import pyarrow as pa

        if self.target.task == "regress":
            return pa.schema([("prediction", pa.float32())])
        classes = self.target.classes
        share = f"share of {classes[1]}" if len(classes) == 2 else "share"
        return pa.schema([("prediction", pa.string()), (share, pa.float64())])

    def importances(self) -> list[tuple[str, float]]:
        """Return columns by their share of all gain, the largest first."""
        gains = self.trees.gains(len(self.bins)).tolist()
        named = ((column.name, gain) for column, gain in zip(self.bins, gains, strict=True))
        return sorted(named, key=lambda item: -item[1])

    def save(self, path: Path) -> None:
        """Write the model to a file.

        Args:
            path: the file; an older one is replaced at the end.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        trees = [tree for row in self.trees.trees for tree in row]
        about = {
            "version": _VERSION,
            "kind": "table-model",
            "columns": [{"name": item.name, "is_text": item.is_text} for item in self.bins],
            "target": {
                "name": self.target.name,
                "task": self.target.task,
                "classes": self.target.classes,
                "hashes": [str(value) for value in self.target.hashes],
            },
            "best_rounds": self.trees.best_rounds,
            "about": self.about,
        }
        sections: dict[str, NDArray[Any]] = {
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
            "start": self.trees.start,
            "losses": np.array(self.trees.losses),
            "sizes": np.array([len(tree.features) for tree in trees], np.int64),
        }
        for name in _PARTS:
            parts = [getattr(tree, name) for tree in trees]
            sections[name] = np.concatenate(parts) if parts else np.empty(0)
        for place, column in enumerate(self.bins):
            sections |= {f"{place}/{name}": values for name, values in column.arrays().items()}
        write_pack(path, sections)

    @classmethod
    def open(cls, path: Path) -> "TableModel":
        """Read a model.

        Args:
            path: file of `save`.

        Returns:
            The model.

        Raises:
            DataError: the file is no model, of another version, or damaged (the section is named).
        """
        pack = Pack.open(path)
        about = json.loads(pack["about"].tobytes()) if "about" in pack.names else {}
        if about.get("kind") != "table-model":
            raise DataError(f"{path} is no model", hint="fit one: steelyard data table fit")
        if about["version"] != _VERSION:
            raise DataError(f"{path} is of version {about['version']}, this reads {_VERSION}")
        bins = []
        for place, item in enumerate(about["columns"]):
            begins = f"{place}/"
            own = [name for name in pack.names if name.startswith(begins)]
            arrays = {name.removeprefix(begins): pack[name] for name in own}
            bins.append(FeatureBins.restored(item["name"], arrays, text=item["is_text"]))
        told = about["target"]
        target = TargetColumn(
            name=told["name"],
            task=told["task"],
            classes=tuple(told["classes"]),
            hashes=tuple(int(value) for value in told["hashes"]),
        )
        trees = Boosted(start=np.array(pack["start"]), losses=pack["losses"].tolist())
        trees.trees, trees.best_rounds = _trees(pack, target.width), about["best_rounds"]
        return cls(bins=bins, target=target, trees=trees, about=about["about"])


def _trees(pack: Pack, width: int) -> list[list[Tree]]:
    """Return the trees of a file by round."""
    arrays = [np.asarray(pack[name]) for name in _PARTS]
    found, begin = [], 0
    for size in pack["sizes"].tolist():
        found.append(Tree(*(values[begin : begin + size] for values in arrays)))
        begin += size
    return [found[first : first + width] for first in range(0, len(found), width)]
