"""Keep part of the examples by how hard they are, and load only those."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from steelyard.data.tasks.cached import CachedTask
from steelyard.data.tasks.records import Record
from steelyard.data.tasks.task import Feature, Task
from steelyard.errors import ConfigError, DataError

__all__ = ["KeptExamples", "prune", "prune_documents"]


def prune(
    scores: np.ndarray,
    *,
    keep: float,
    side: Literal["hard", "easy"] = "hard",
    labels: np.ndarray | None = None,
    balance: float = 0.5,
) -> np.ndarray:
    """Choose the hardest or the easiest examples.

    The paper found that hard ones pay where data are plenty and easy ones where they are scarce;
    wrong labels are among the hardest. With labels every class keeps at least a share of what
    classes keep on average, or all it has: else the hard side may drop classes whole.

    Args:
        scores: how hard examples are, finite and not all equal, [N]; higher is harder.
        keep: share to keep, above 0 to 1.
        side: which end is kept.
        labels: classes, integers [N]; None for no balance.
        balance: least a class keeps, as a share of the mean over classes, 0..1.

    Returns:
        Numbers of the kept examples, int64, ascending; round(keep N) of them, at least 1.

    Raises:
        ConfigError: a share is out of range, or the side is unknown.
        DataError: scores are not finite or all equal, or labels are not one per score.

    Source: Sorscher et al. 2022 (arXiv 2206.14486), sections 3, 5 and appendix H (class balance).
    """
    scores = np.asarray(scores, dtype=np.float64)
    _check(scores, keep, side, labels, balance)
    count = max(1, round(keep * len(scores)))
    # Equal scores keep the order of the examples, so that the choice is the same everywhere.
    order = np.argsort(-scores if side == "hard" else scores, kind="stable")
    first = np.zeros(len(scores), dtype=bool)
    if labels is not None:
        classes, place = np.unique(labels, return_inverse=True)
        least = int(balance * count / len(classes))
        ranked = place[order]
        for number in range(len(classes)):
            first[order[ranked == number][:least]] = True
    rest = order[~first[order]][: count - int(first.sum())]
    return np.sort(np.concatenate([np.flatnonzero(first), rest]))


def _check(
    scores: np.ndarray, keep: float, side: str, labels: np.ndarray | None, balance: float
) -> None:
    """Refuse arguments that allow no choice."""
    if not 0 < keep <= 1 or not 0 <= balance <= 1 or side not in ("hard", "easy"):
        raise ConfigError(
            f"keep = {keep}, balance = {balance}, side = {side!r}",
            hint='give keep above 0 to 1, balance in 0..1, and "hard" or "easy"',
        )
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise DataError(
            f"scores {list(scores.shape)} are not finite numbers [N]",
            hint="leave out examples that could not be scored",
        )
    if keep < 1 and len(scores) > 1 and scores.min() == scores.max():
        raise DataError(
            f"all {len(scores)} scores are {scores[0]:g}: they rank nothing",
            hint="score with an earlier checkpoint, or another metric",
        )
    if labels is not None and np.shape(labels) != scores.shape:
        raise DataError(f"{np.size(labels)} labels for {len(scores)} scores")


def prune_documents(
    table: Mapping[str, np.ndarray],
    *,
    keep: float,
    by: str = "el2n",
    side: Literal["hard", "easy"] = "hard",
    duplicates: bool = False,
) -> np.ndarray:
    """Choose documents from a table of what they cost.

    Args:
        table: columns of one length [N]: "document", "duplicate_of" and `by`, such as
            `train.measure.document_costs` made.
        keep: share of all documents to keep, above 0 to 1; fewer where too few are left.
        by: column of the scores; documents without one, NaN, are left out.
        side: which end is kept.
        duplicates: keep near duplicates of earlier documents too.

    Returns:
        Numbers of the kept documents, int64, ascending.

    Raises:
        ConfigError: a column is missing, or `keep` is out of range.
        DataError: no document has a score, or as in `prune`.
    """
    if not 0 < keep <= 1:
        raise ConfigError(f"keep = {keep} of the documents", hint="give a share above 0 to 1")
    missing = {"document", "duplicate_of", by} - set(table)
    if missing:
        raise ConfigError(
            f"the table has no column {', '.join(sorted(missing))}",
            hint="score the documents with: steelyard train score",
        )
    numbers, scores = table["document"], np.asarray(table[by], dtype=np.float64)
    left = np.isfinite(scores)
    if not duplicates:
        left &= table["duplicate_of"] == numbers
    share = min(1.0, keep * len(scores) / max(int(left.sum()), 1))
    return np.asarray(numbers[left][prune(scores[left], keep=share, side=side)], dtype=np.int64)


class KeptExamples:
    """Some examples of a task, counted anew from 0; loads like the task itself.

    Attributes:
        task: the task.
        name: its name.
    """

    def __init__(self, examples: Task | CachedTask, kept: np.ndarray) -> None:
        """Keep the numbers.

        Args:
            examples: a task or its cache.
            kept: numbers of the examples to keep, each once, such as `prune` returned.

        Raises:
            DataError: there are none, one stands twice, or does not exist.
        """
        kept = np.asarray(kept, dtype=np.int64)
        known = len(kept) > 0 and kept.min() >= 0 and kept.max() < len(examples)
        if not known or len(np.unique(kept)) != len(kept):
            raise DataError(
                f"{kept.size} kept examples of {len(examples)}, {len(np.unique(kept))} different",
                hint="give numbers from 0, each once",
            )
        self._examples, self._kept = examples, kept
        self.task = examples if isinstance(examples, Task) else examples.task
        self.name = examples.name

    @property
    def features(self) -> Mapping[str, Feature]:
        """What examples end up with."""
        return self.task.features

    def __len__(self) -> int:
        """Count the kept examples."""
        return len(self._kept)

    def read(self, index: int, /, *, seed: int = 0, epoch: int = 0) -> Record:
        """Return kept example `index`, as the task would under its own number."""
        return self._examples.read(int(self._kept[index]), seed=seed, epoch=epoch)

    def sizes(self, name: str) -> np.ndarray:
        """Return the length of a field in every kept example of a cache, int64 [N].

        Args:
            name: the field.

        Returns:
            As of `CachedTask.sizes`.

        Raises:
            ConfigError: the task is not cached.
        """
        if not isinstance(self._examples, CachedTask):
            raise ConfigError(
                f"task {self.name!r} is not cached, so the lengths of its examples are not known",
                hint="cache it (steelyard data cache), or load without packing",
            )
        return self._examples.sizes(name)[self._kept]
