"""A task: a source of records, what is done to them, and the features that come out."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from steelyard.data.index import derive_seed
from steelyard.data.tasks.keys import key_of
from steelyard.data.tasks.records import Record, RecordSource
from steelyard.data.tasks.vocabularies import TokenVocabulary
from steelyard.errors import ConfigError, DataError

__all__ = ["Examples", "Feature", "Step", "Task", "refuse"]

Step = Callable[..., Any]
"""Called as `step(record)`, or as `step(record, rng)` when it has a parameter `rng`."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_VERSION = 1
_SAMPLE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A field of tokens that a task's records end up with.

    Attributes:
        vocabulary: encodes the field where it is text, and bounds its ids.
        add_end: whether the vocabulary's end is put after the tokens.
        required: whether every record must have it.
        dtype: integer type the tokens must fit.
    """

    vocabulary: TokenVocabulary
    add_end: bool = True
    required: bool = True
    dtype: str = "int32"


class Examples(Protocol):
    """What a loader reads: a task, or a task's cache."""

    @property
    def name(self) -> str:
        """Name of the task."""
        ...

    @property
    def features(self) -> Mapping[str, Feature]:
        """What its records end up with."""
        ...

    def __len__(self) -> int:
        """Count the examples of a pass."""
        ...

    def read(self, index: int, /, *, seed: int = 0, epoch: int = 0) -> Record:
        """Return example `index`; a pure function of its arguments."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """A source of records and all that is done to them before a model sees them.

    A record passes `prepare`, then text in a feature's field is encoded, then it passes `steps`,
    then the end is added. A cache holds records as they are before `steps`.

    Attributes:
        name: name of letters, digits, dots, dashes and underscores.
        source: where records come from.
        features: what records end up with, by field.
        prepare: steps done once: each returns a record, None to drop it, or a list of records. Only
            a cache can hold a task whose records are dropped or split.
        steps: steps done at every reading: each returns one record. A generator passed as `rng`
            depends on the run's seed, the epoch, the step's place and the example's number.
        postprocess: turns a model's text into what metrics compare; None keeps the text.
        metrics: functions of (targets, predictions) that return numbers by name.
        score_metrics: functions of (targets, scores) that return numbers by name.
    """

    name: str
    source: RecordSource
    features: Mapping[str, Feature]
    prepare: tuple[Step, ...] = ()
    steps: tuple[Step, ...] = ()
    postprocess: Callable[[str], Any] | None = None
    metrics: tuple[Callable[..., dict[str, float]], ...] = field(default=())
    score_metrics: tuple[Callable[..., dict[str, float]], ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what no record could mend.

        Raises:
            ConfigError: one or more fields are wrong; all are named.
        """
        wrong = []
        if not _NAME.fullmatch(self.name):
            wrong.append(f"name {self.name!r} is not letters, digits, dots, dashes, underscores")
        if not self.features:
            wrong.append("there are no features")
        for name, feature in self.features.items():
            if np.dtype(feature.dtype).kind not in "iu":
                wrong.append(f"feature {name!r} is of dtype {feature.dtype}, not of integers")
            elif feature.vocabulary.size - 1 > np.iinfo(feature.dtype).max:
                wrong.append(f"feature {name!r}: {feature.dtype} cannot hold its vocabulary's ids")
            if feature.add_end and feature.vocabulary.end is None:
                wrong.append(f"feature {name!r} adds an end, but its vocabulary has none")
        steps = (*self.prepare, *self.steps)
        wrong += [f"step {step!r} is not callable" for step in steps if not callable(step)]
        refuse(f"task {self.name!r}", wrong)

    def __len__(self) -> int:
        """Count the records of the source."""
        return len(self.source)

    @property
    def key(self) -> str:
        """Hash of everything that a cache of this task depends on."""
        return key_of(self.preparation_key, self.source.key)

    @property
    def preparation_key(self) -> str:
        """Hash of what is done to records before they are cached, whatever the source."""
        encoders = {name: feature.vocabulary.key for name, feature in self.features.items()}
        return key_of(_VERSION, list(self.prepare), encoders)

    def prepared(self, index: int) -> list[Record]:
        """Return what becomes of one record of the source before `steps`.

        Args:
            index: number of the record.

        Returns:
            Records with encoded features; none where it was dropped.
        """
        records = [self.source[index]]
        for place, step in enumerate(self.prepare):
            made = [self._call(step, record, (0, 0, place, index)) for record in records]
            records = [item for outcome in made for item in _several(outcome)]
        return [self._encoded(record) for record in records]

    def read(self, index: int, /, *, seed: int = 0, epoch: int = 0) -> Record:
        """Return the example of one record; a pure function of its arguments.

        Args:
            index: number of the record.
            seed: seed of the run.
            epoch: number of the pass.

        Returns:
            Its features as integers of their dtype, and what else the record holds.

        Raises:
            DataError: the record was dropped or split, or a feature is missing or malformed.
        """
        records = self.prepared(index)
        if len(records) != 1:
            raise DataError(
                f"record {index} of task {self.name!r} became {len(records)} records",
                hint="cache the task, so that its examples can be counted: steelyard data cache",
            )
        return self.finish(records[0], index, seed=seed, epoch=epoch)

    def finish(self, record: Record, index: int, *, seed: int = 0, epoch: int = 0) -> Record:
        """Do to a prepared record what is done at every reading.

        Args:
            record: what `prepared` returned, or a cache holds.
            index: number of the example, on which random steps depend.
            seed: seed of the run.
            epoch: number of the pass.

        Returns:
            The example.

        Raises:
            DataError: a feature is missing or malformed; all that is wrong is named.
        """
        for place, step in enumerate(self.steps, len(self.prepare)):
            record = self._call(step, record, (seed, epoch, place, index))
            if not isinstance(record, Mapping):
                raise DataError(
                    f"step {place} of task {self.name!r} returned {type(record).__name__}, not one "
                    "record",
                    hint="drop and split records in prepare",
                )
        made, wrong = dict(record), []
        for name, feature in self.features.items():
            if name in made:
                wrong += _violations(name, feature, made[name])
            elif feature.required:
                wrong.append(f"feature {name!r} is missing; it has {', '.join(sorted(made))}")
        refuse(f"example {index} of task {self.name!r}", wrong, DataError)
        for name, feature in self.features.items():
            if name in made:
                made[name] = _ended(made[name], feature)
        return made

    def check(self) -> None:
        """Read a few records and refuse the task if any is wrong.

        Raises:
            DataError: the source is empty, or an example is malformed; all that is wrong is named.
        """
        if not len(self):
            raise DataError(f"task {self.name!r} has no records", hint="name other files")
        wrong = []
        for index in np.linspace(0, len(self) - 1, min(_SAMPLE, len(self))).astype(int).tolist():
            try:
                for record in self.prepared(index):
                    self.finish(record, index)
            except DataError as error:
                wrong.append(str(error))
        refuse(f"task {self.name!r}", wrong, DataError)

    def _call(self, step: Step, record: Record, state: tuple[int, int, int, int]) -> Any:
        """Call a step, with a generator if it takes one, of (seed, epoch, place, example)."""
        seed, epoch, place, index = state
        if not self._draws[place]:
            return step(record)
        # A counter-based generator: key and counter say all, so nothing has to be drawn before.
        # The name is in the key, so that tasks are independent of each other.
        key = (derive_seed(seed, self.name) << 64) | index
        bits = np.random.Philox(key=key, counter=(epoch << 192) | (place << 128))
        return step(record, rng=np.random.Generator(bits))

    @cached_property
    def _draws(self) -> list[bool]:
        """Which steps take a generator, those of `prepare` first."""
        return [_takes_generator(step) for step in (*self.prepare, *self.steps)]

    def _encoded(self, record: Record) -> Record:
        """Encode the features that are text."""
        return {
            name: self.features[name].vocabulary.encode(value)
            if name in self.features and isinstance(value, str)
            else value
            for name, value in record.items()
        }


def refuse(what: str, wrong: list[str], kind: type[ConfigError | DataError] = ConfigError) -> None:
    """Raise an error that lists all violations at once, if there are any."""
    if wrong:
        raise kind(f"{what}: {'; '.join(wrong)}", hint="correct what is listed")


def _several(outcome: Any) -> list[Record]:
    """Return what a step that may drop or split made."""
    if outcome is None:
        return []
    return [outcome] if isinstance(outcome, Mapping) else list(outcome)


def _takes_generator(step: Step) -> bool:
    """Whether a step has a parameter `rng`."""
    try:
        return "rng" in inspect.signature(step).parameters
    except ValueError:  # some builtin functions tell nothing
        return False


def _violations(name: str, feature: Feature, value: Any) -> list[str]:
    """List what is wrong with a feature before its end is added."""
    if not isinstance(value, np.ndarray):
        return [f"feature {name!r} is {type(value).__name__}, not an array of token ids"]
    if value.ndim != 1 or value.dtype.kind not in "iu":
        return [f"feature {name!r} is {value.dtype} {list(value.shape)}, not integers [N]"]
    wrong = []
    size, end = feature.vocabulary.size, feature.vocabulary.end
    if len(value) and not (value.min() >= 0 and value.max() < size):
        wrong.append(f"feature {name!r} has id {value.max()} outside of its vocabulary of {size}")
    if feature.add_end and len(value) and value[-1] == end:
        wrong.append(f"feature {name!r} ends already, and would end twice")
    return wrong


def _ended(value: np.ndarray, feature: Feature) -> np.ndarray:
    """Return a feature in its dtype, with its end."""
    tokens = value.astype(feature.dtype, copy=False)
    return (
        np.append(tokens, tokens.dtype.type(feature.vocabulary.end)) if feature.add_end else tokens
    )
