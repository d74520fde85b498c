"""Evaluate a model on tasks: targets are read once, metrics know nothing of the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from steelyard.data.tasks.mixture import TaskMixture
from steelyard.data.tasks.records import Record
from steelyard.data.tasks.task import Examples, Task
from steelyard.errors import ConfigError, DataError
from steelyard.files import read_json, write_json

__all__ = ["Evaluator", "Predict", "Score"]


class Predict(Protocol):
    """Answers examples."""

    def __call__(self, examples: Sequence[Record], /) -> Sequence[np.ndarray | str]:
        """Return the tokens or the text of each answer."""
        ...


class Score(Protocol):
    """Says how likely the targets of examples are."""

    def __call__(self, examples: Sequence[Record], /) -> Sequence[tuple[float, int]]:
        """Return the sum of log-probabilities of each target in nats, and its tokens."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    """One task's examples, and what they should be answered with."""

    task: Task
    examples: list[Record]
    targets: list[Any]


class Evaluator:
    """Examples and targets of tasks, read once and used at every evaluation."""

    def __init__(
        self,
        data: Examples | TaskMixture,
        *,
        limit: int | None = None,
        batch_size: int = 64,
    ) -> None:
        """Read the examples, in the order of the source and without randomness of a run.

        Args:
            data: task, cache or mixture; rates play no part.
            limit: examples of each task, spread evenly over it; None for all.
            batch_size: examples that a model is given at once.

        Raises:
            ConfigError: no task has metrics, or a number is below 1.
            DataError: an example is malformed.
        """
        if batch_size < 1 or (limit is not None and limit < 1):
            raise ConfigError(
                f"a limit of {limit} examples in batches of {batch_size}", hint="give 1 or more"
            )
        self.batch_size = batch_size
        self._held = [
            _hold(task, limit)
            for task in (data.tasks if isinstance(data, TaskMixture) else [data])
            if _task(task).metrics or _task(task).score_metrics
        ]
        if not self._held:
            raise ConfigError(
                f"no task of {data.name!r} has metrics",
                hint="give a task metrics, such as data.metrics.accuracy",
            )

    @property
    def targets(self) -> dict[str, list[Any]]:
        """What examples should be answered with, by task."""
        return {held.task.name: held.targets for held in self._held}

    def evaluate(
        self,
        predict: Predict | None = None,
        score: Score | None = None,
        *,
        step: int | None = None,
        out: Path | None = None,
    ) -> dict[str, dict[str, float]]:
        """Compute the metrics of every task.

        Args:
            predict: answers examples; needed where a task has metrics.
            score: says how likely targets are; needed where a task has score metrics.
            step: step of the model, written beside the results.
            out: JSON file that results are appended to; a result of the same step is replaced.

        Returns:
            Metrics by task and name.

        Raises:
            ConfigError: a function that is needed is missing.
            DataError: a function returned another number of answers than it was given examples.
        """
        results = {}
        for held in self._held:
            results[held.task.name] = {
                **self._metrics(held, held.task.metrics, predict, "predict", _answers),
                **self._metrics(
                    held, held.task.score_metrics, score, "score", lambda _, found: found
                ),
            }
        if out is not None:
            _append(out, step, results)
        return results

    def _metrics(
        self,
        held: _Held,
        metrics: Sequence[Callable[..., dict[str, float]]],
        function: Callable[[Sequence[Record]], Sequence[Any]] | None,
        name: str,
        finish: Callable[[Task, list[Any]], list[Any]],
    ) -> dict[str, float]:
        """Call a model's function on all examples and give metrics what it returned."""
        if not metrics:
            return {}
        if function is None:
            raise ConfigError(
                f"task {held.task.name!r} has metrics that need a {name} function",
                hint=f"give evaluate a {name} function",
            )
        found: list[Any] = []
        for start in range(0, len(held.examples), self.batch_size):
            some = held.examples[start : start + self.batch_size]
            answers = list(function(some))
            if len(answers) != len(some):
                raise DataError(
                    f"{name} returned {len(answers)} results for {len(some)} examples of task "
                    f"{held.task.name!r}",
                    hint="return one for each example, in their order",
                )
            found += answers
        found = finish(held.task, found)
        return {
            key: value for metric in metrics for key, value in metric(held.targets, found).items()
        }


def _task(examples: Examples) -> Task:
    """Return the task behind examples."""
    task = getattr(examples, "task", examples)
    if not isinstance(task, Task):
        raise ConfigError(f"{task!r} is not a task", hint="give a Task, its cache, or a mixture")
    return task


def _hold(examples: Examples, limit: int | None) -> _Held:
    """Read one task."""
    task, size = _task(examples), len(examples)
    count = min(limit or size, size)
    read = [examples.read(index) for index in (np.arange(count) * size // count).tolist()]
    return _Held(task, read, _answers(task, [record["targets"] for record in read]))


def _answers(task: Task, given: list[Any]) -> list[Any]:
    """Turn tokens into text and text into what metrics compare; targets and answers alike."""
    feature = task.features["targets"]
    texts = []
    for item in given:
        if not isinstance(item, str):
            ids = np.asarray(item)
            # A model goes on after its end; only what stands before the first one is its answer.
            ends = np.flatnonzero(ids == feature.vocabulary.end) if feature.add_end else ids[:0]
            item = feature.vocabulary.decode(ids[: ends[0]] if len(ends) else ids)
        texts.append(task.postprocess(item) if task.postprocess else item)
    return texts


def _append(path: Path, step: int | None, results: Mapping[str, Any]) -> None:
    """Add results to a file, in place of those of the same step."""
    # A resumed run evaluates some steps again: one result for each step stays.
    known = read_json(path) if path.exists() else []
    rest = [entry for entry in known if entry["step"] != step]
    write_json(path, [*rest, {"step": step, "results": results}])
