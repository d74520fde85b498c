"""A fitted learner with the columns that it wants, in a file, and its predictions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.bayes import NaiveBayes
from steelyard.data.learning.boosting import Boosted
from steelyard.data.learning.forest import Forest
from steelyard.data.learning.inputs import INPUTS, TableInputs
from steelyard.data.learning.kernel_machine import KernelModel
from steelyard.data.learning.learners import FittedLearner
from steelyard.data.learning.linear import LinearModel
from steelyard.data.learning.neighbours import Neighbours
from steelyard.data.learning.perceptron import Perceptron
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["FITTED", "TableModel"]

_VERSION = 2
_LEARNER = "learner/"
FITTED: dict[str, type[FittedLearner]] = {
    item.kind: item
    for item in (
        Boosted,
        Forest,
        LinearModel,
        NaiveBayes,
        Neighbours,
        KernelModel,
        Perceptron,
    )
}
"""What models hold, by what users call it."""


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """A learner that predicts a column of a table from others.

    Attributes:
        inputs: what columns become.
        target: what is predicted.
        learner: what was fitted.
        about: plain values that are kept beside it, such as the settings.
    """

    inputs: TableInputs
    target: TargetColumn
    learner: FittedLearner
    about: dict[str, Any] = field(default_factory=dict)

    def scores(self, batch: "pa.RecordBatch") -> NDArray[np.float32]:
        """Return the scores of a batch [K, N]."""
        return self.learner.scores(self.inputs.encode(batch))

    def shares(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the predicted share of each class [N, K] from scores."""
        return self.target.shares(scores)

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
        """Return columns by how much they count, as shares, the largest first."""
        shares = self.inputs.shares(self.learner.weights(self.inputs.count)).tolist()
        return sorted(zip(self.inputs.names, shares, strict=True), key=lambda item: -item[1])

    def save(self, path: Path) -> None:
        """Write the model to a file.

        Args:
            path: the file; an older one is replaced at the end.

        Raises:
            CapacityError: the disk is full; an older file stays.
        """
        about = {
            "version": _VERSION,
            "kind": "table-model",
            "needs": self.inputs.needs,
            "target": self.target.plain(),
            "learner": self.learner.kind,
            "learned": self.learner.about(),
            "about": self.about,
        } | self.inputs.about()
        own = {_LEARNER + name: values for name, values in self.learner.sections().items()}
        told = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
        write_pack(path, told | own | self.inputs.sections())

    @classmethod
    def open(cls, path: Path, learners: Sequence[type[FittedLearner]] = ()) -> "TableModel":
        """Read a model.

        Args:
            path: file of `save`.
            learners: classes of fitted learners of one's own that it may hold.

        Returns:
            The model.

        Raises:
            DataError: the file is no model, of another version, or damaged (the section is named).
        """
        pack = Pack.open(path)
        about = json.loads(pack["about"].tobytes()) if "about" in pack.names else {}
        if about.get("kind") != "table-model":
            raise DataError(f"{path} is no model", hint="fit one: steelyard data table fit")
        sections = {name: pack[name] for name in pack.names if name != "about"}
        if about["version"] == 1:
            # The first version knew boosted trees alone, whose arrays stood beside the bins.
            own = sections
            told = {"needs": "codes", "learner": "boosted"}
            about |= told | {"learned": {"best_rounds": about["best_rounds"]}}
        elif about["version"] == _VERSION:
            parts = ((name.removeprefix(_LEARNER), name) for name in sections)
            own = {short: sections[name] for short, name in parts if short != name}
        else:
            raise DataError(f"{path} is of version {about['version']}, this reads 1 to {_VERSION}")
        known = FITTED | {item.kind: item for item in learners}
        if about["learner"] not in known or about["needs"] not in INPUTS:
            raise DataError(
                f"{path} holds the learner {about['learner']!r} on {about['needs']!r}",
                hint=f"this reads {', '.join(known)}; hand others in: open(path, learners=[...])",
            )
        return cls(
            inputs=INPUTS[about["needs"]].restored(about, sections),
            target=TargetColumn.of(about["target"]),
            learner=known[about["learner"]].restored(about["learned"], own),
            about=about["about"],
        )
