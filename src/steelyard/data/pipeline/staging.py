"""Which steps of a pipeline learn in the same pass over a table, and the Fold that pass runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pipeline.codec import key_of
from steelyard.data.pipeline.step import FittedStep, PipelineStep
from steelyard.data.stages import hash_of
from steelyard.data.table.fitting import ROW, row_of
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table.fold import Fold

__all__ = ["Learning", "Stage", "StageFold", "applied", "next_stage"]


@dataclass(frozen=True, slots=True)
class Learning:
    """A step that learns in a pass.

    Attributes:
        place: its place in the pipeline.
        step: the step.
        columns: columns that it changes.
        folds: what the pass finds out for it.
    """

    place: int
    step: PipelineStep
    columns: tuple[str, ...]
    folds: "tuple[Fold[Any], ...]"


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass: steps that are applied and steps that learn, in the order of the pipeline.

    Attributes:
        items: fitted steps and those that learn; steps that wait for a later pass are left out.
        reads: columns of the table whose values are needed.
        needs_rows: whether rows have to be numbered.
    """

    items: "tuple[FittedStep | Learning, ...]"
    reads: frozenset[str]
    needs_rows: bool

    @property
    def learning(self) -> list[Learning]:
        """Steps that learn in this pass."""
        return [item for item in self.items if isinstance(item, Learning)]


def next_stage(
    steps: Sequence[PipelineStep], fitted: Mapping[int, FittedStep], schema: "pa.Schema"
) -> tuple[Stage, dict[int, FittedStep]]:
    """Return as many steps as can learn in one pass.

    A step learns in it if the values that it reads are known by then: no step before it that is
    still unknown changes them, brings columns or sets rows aside. Steps that learn nothing are
    known at once.

    Args:
        steps: all steps, in order.
        fitted: those that are known, by place.
        schema: columns of the table.

    Returns:
        The pass, and steps that became known without one.

    Raises:
        ConfigError: a step does not fit the columns that it meets.
    """
    walk = _Walk(schema)
    for place, step in enumerate(steps):
        try:
            walk.pass_by(place, step, fitted.get(place))
        except ConfigError as error:
            raise ConfigError(f"step {place + 1}: {error}", hint=error.hint) from error
    return walk.stage(), walk.known


@dataclass(frozen=True, slots=True)
class _Passed:
    """A step that is applied or learns in a pass, with the columns that it reads and changes."""

    item: "FittedStep | Learning"
    step: PipelineStep
    reads: set[str]
    writes: set[str]


class _Walk:
    """Goes through the steps, and keeps what is known of the columns at each."""

    def __init__(self, schema: "pa.Schema") -> None:
        self.schema = schema
        self.given = set(schema.names)
        self.known: dict[int, FittedStep] = {}
        self._passed: list[_Passed] = []
        # Columns that a step changes which is not known yet; whether one brings or drops columns,
        # and whether one sets rows aside.
        self._unknown: set[str] = set()
        self._has_new = self._is_barred = False

    def pass_by(self, place: int, step: PipelineStep, fitted: FittedStep | None) -> None:
        """Take in the next step."""
        if fitted is None and not self._can_be_told(step):
            self._skip(step, step.columns)
            return
        if fitted is None:
            columns = step.resolved(self.schema)
            reads = {*columns, *step.reads(columns, self.schema)}
            if folds := tuple(step.folds(columns)):
                self._learn(Learning(place, step, columns, folds), reads)
                return
            fitted = step.fitted(columns, self.schema, {})
            self.known[place] = fitted
        reads = {*fitted.columns, *getattr(fitted, "others", ())}
        if self._unknown & reads:
            self._skip(step, fitted.columns)
            return
        # It may stand behind a step that is not known: on other columns the order is all the same.
        after = fitted.schema(self.schema)
        writes = {*fitted.columns, *(set(after.names) - set(self.schema.names))}
        self._passed.append(_Passed(fitted, step, reads, writes))
        self.schema = after

    def stage(self) -> Stage:
        """Return the pass: steps that learn, and those alone that they hang on."""
        kept: list[_Passed] = []
        wanted: set[str] = set()
        for passed in reversed(self._passed):
            is_learning = isinstance(passed.item, Learning)
            sets_aside = passed.step.rejects and bool(kept)
            if is_learning or sets_aside or passed.writes & wanted:
                kept.append(passed)
                wanted |= passed.reads
        return Stage(
            items=tuple(passed.item for passed in reversed(kept)),
            reads=frozenset(wanted & self.given),
            needs_rows=any(passed.step.needs_rows for passed in kept),
        )

    def _can_be_told(self, step: PipelineStep) -> bool:
        """Return whether the columns of a step can be told by now."""
        if not step.columns:
            return not self._has_new
        return not self._has_new or set(step.columns) <= set(self.schema.names)

    def _learn(self, item: Learning, reads: set[str]) -> None:
        """Let a step learn in this pass, if the rows are by now as it would meet them."""
        if not self._is_barred and not self._unknown & reads:
            self._passed.append(_Passed(item, item.step, reads, set()))
        self._skip(item.step, item.columns)

    def _skip(self, step: PipelineStep, columns: Sequence[str]) -> None:
        """Remember what is not known behind a step."""
        self._unknown |= set(columns or self.schema.names)
        self._has_new |= step.adds
        self._is_barred |= step.rejects


@dataclass(frozen=True, slots=True)
class StageFold:
    """A `Fold` of all that the steps of one pass learn, each on rows as it would meet them.

    Attributes:
        stage: the pass.
    """

    stage: Stage

    @property
    def name(self) -> str:
        """What it is called in results: a hash of all that its result depends on."""
        told = [
            [item.place, item.columns, [fold.name for fold in item.folds]]
            if isinstance(item, Learning)
            else key_of(item)
            for item in self.stage.items
        ]
        return f"stage {hash_of(told)[:16]}"

    def _folds(self) -> "dict[tuple[int, str], Fold[Any]]":
        """Return folds, each once, by how many steps were applied before and by name."""
        found, number = {}, 0
        for item in self.stage.items:
            if isinstance(item, Learning):
                for fold in item.folds:
                    found.setdefault((number, fold.name), fold)
            else:
                number += 1
        return found

    def _schemas(self, schema: "pa.Schema") -> "list[pa.Schema]":
        """Return the columns before any step, and after each that is applied."""
        found = [schema]
        for item in self.stage.items:
            if not isinstance(item, Learning):
                found.append(item.schema(found[-1]))
        return found

    def init(self, schema: "pa.Schema") -> dict[tuple[int, str], Any]:
        """Return the state before any row."""
        schemas = self._schemas(schema)
        return {key: fold.init(schemas[key[0]]) for key, fold in self._folds().items()}

    def update(self, state: dict[tuple[int, str], Any], batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        number, fed = 0, set()
        for item in self.stage.items:
            if not isinstance(item, Learning):
                batch = applied(item, batch, training=True)
                number += 1
                continue
            for fold in item.folds:
                key = (number, fold.name)
                if key not in fed:
                    fed.add(key)
                    fold.update(state[key], batch)

    def merge(self, state: dict[tuple[int, str], Any], later: dict[tuple[int, str], Any]) -> None:
        """Take in the state of rows that come later."""
        for key, fold in self._folds().items():
            fold.merge(state[key], later[key])

    def finish(self, state: dict[tuple[int, str], Any]) -> dict[int, dict[str, Any]]:
        """Return the results of each step by its place, by the names of its folds."""
        done = {key: fold.finish(state[key]) for key, fold in self._folds().items()}
        found: dict[int, dict[str, Any]] = {}
        number = 0
        for item in self.stage.items:
            if isinstance(item, Learning):
                found[item.place] = {fold.name: done[number, fold.name] for fold in item.folds}
            else:
                number += 1
        return found

    def sections(self, state: dict[tuple[int, str], Any]) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {
            f"{number}/{name}": values
            for number, (key, fold) in enumerate(self._folds().items())
            for name, values in fold.sections(state[key]).items()
        }

    def of(
        self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]
    ) -> dict[tuple[int, str], Any]:
        """Return the state of such arrays."""
        folds, schemas = self._folds(), self._schemas(schema)
        own: list[dict[str, NDArray[Any]]] = [{} for _ in folds]
        for key, values in sections.items():
            number, _, name = key.partition("/")
            own[int(number)][name] = values
        return {
            key: fold.of(schemas[key[0]], arrays)
            for (key, fold), arrays in zip(folds.items(), own, strict=True)
        }


def kept_rows(
    step: FittedStep, batch: "pa.RecordBatch", path: str = "", quarantine: Quarantine | None = None
) -> "pa.RecordBatch":
    """Return the rows of a batch that a step does not set aside.

    Args:
        step: the step.
        batch: rows, with the column `ROW` if the step sets rows aside.
        path: their file.
        quarantine: takes the others, each with the first thing that is wrong; None drops them.

    Returns:
        The rows, in order.
    """
    import pyarrow as pa

    if (reject := getattr(step, "reject", None)) is None:
        return batch
    is_bad = np.zeros(len(batch), bool)
    for found in reject(batch):
        for place, value in zip(found.rows.tolist(), found.values, strict=True):
            if not is_bad[place] and quarantine is not None:
                row = int(row_of(np.asarray(batch[ROW])[place]))
                quarantine.add(BadRow(path, row, found.column, value, found.reason))
            is_bad[place] = True
    return batch.filter(pa.array(~is_bad)) if is_bad.any() else batch


def applied(
    step: FittedStep,
    batch: "pa.RecordBatch",
    *,
    training: bool,
    path: str = "",
    quarantine: Quarantine | None = None,
) -> "pa.RecordBatch":
    """Return a batch after a step.

    Args:
        step: the step.
        batch: the rows.
        training: whether these are the rows that the step was fitted on.
        path: their file.
        quarantine: takes rows that are set aside; None drops them.

    Returns:
        The batch.
    """
    if training or not getattr(step, "is_for_training", False):
        batch = kept_rows(step, batch, path, quarantine)
    own = getattr(step, "transform_training", None) if training else None
    return own(batch) if own is not None else step.transform(batch)
