"""Naive Bayes on codes: how often each class has each code, counted in one pass."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.learners import FitJob, FittedLearner, Needs
from steelyard.data.learning.losses import start_scores
from steelyard.errors import ConfigError, require
from steelyard.jit import njit

__all__ = ["BayesConfig", "NaiveBayes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BayesConfig:
    """How naive Bayes is fitted.

    Attributes:
        smoothing: rows that each class is given besides, with codes as all rows have them.
    """

    needs: ClassVar[Needs] = "codes"
    smoothing: float = 20.0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(self, smoothing=(self.smoothing > 0, "above 0"))

    def fit(self, job: FitJob) -> "NaiveBayes":
        """Count codes by class.

        Args:
            job: codes of rows, and the classes that are predicted.

        Returns:
            Logarithms of shares. Counts of parts may be added up, and give the same.

        Raises:
            ConfigError: a number is to be predicted.
            DataError: no rows are left to learn from, or a class has none among them.

        Source: Yang and Webb 2009, "Discretization for naive-Bayes learning: managing
            discretization bias and variance", section 4, for intervals of equal frequency; as many
            as the cube root of the rows, the rate of Freedman and Diaconis 1981.
        """
        if job.target.task != "classify":
            raise ConfigError(
                f"naive Bayes tells classes apart, {job.target.name} is a number",
                hint="take the learner ridge or forest",
            )
        start_scores(job.store.targets, job.store.is_held, job.target)
        classes = len(job.target.classes)
        counts = np.zeros((len(job.codes), 256, classes))
        for place, column in enumerate(job.codes):
            _count_codes(column, job.store.targets, job.store.is_held, counts[place])
            job.done(None, (place + 1) / len(job.codes))
        return _of_counts(counts, job.is_text, self.smoothing)


@njit()
def _count_codes(
    column: np.ndarray, targets: np.ndarray, is_held: np.ndarray, counts: np.ndarray
) -> None:
    """Count the codes of rows that are not kept aside, by class [256, classes]."""
    for row in range(len(column)):
        if not is_held[row]:
            counts[column[row], int(targets[row])] += 1.0


def _of_counts(
    counts: NDArray[np.float64], is_text: NDArray[np.bool_], smoothing: float
) -> "NaiveBayes":
    """Return the classifier of counts by column, code and class."""
    rows = counts[0].sum(axis=0) if len(counts) else np.ones(counts.shape[2])
    tables = np.zeros(counts.shape, np.float32)
    for place, own in enumerate(counts):
        groups = np.arange(256) if is_text[place] else _joined(own.sum(axis=1))
        joined = np.zeros_like(own)
        np.add.at(joined, groups, own)
        share = joined.sum(axis=1, keepdims=True) / max(own.sum(), 1.0)
        logs = np.log((joined + smoothing * share + 1e-12) / (rows + smoothing))
        # A code that no row has tells nothing: its logarithms are those of equal shares.
        logs[joined.sum(axis=1) == 0] = 0.0
        tables[place] = logs[groups]
    return NaiveBayes(tables=tables, priors=np.log(rows / rows.sum()))


def _joined(counts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the interval of each code: neighbours are joined until they hold enough."""
    wanted, groups = counts.sum() ** (2 / 3), np.zeros(256, np.int64)
    group, held = 1, 0.0
    for code in range(1, 256):
        groups[code] = group
        held += counts[code]
        if held >= wanted:
            group, held = group + 1, 0.0
    # What is left over at the end joins the last whole interval.
    if held < wanted and group > 1:
        groups[groups == group] = group - 1
    return groups


@dataclass(frozen=True, kw_only=True)
class NaiveBayes:
    """Logarithms of how often classes have codes.

    Attributes:
        tables: float32 [F, 256, classes].
        priors: logarithms of the shares of the classes [classes].
    """

    kind: ClassVar[str] = "bayes"
    tables: NDArray[np.float32]
    priors: NDArray[np.float64]

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their codes [F, N]."""
        found = np.repeat(self.priors[None], given.shape[1], axis=0)
        for table, column in zip(self.tables, given, strict=True):
            found += table[column]
        scores = found.T
        return (scores[1:] - scores[:1] if len(scores) == 2 else scores).astype(np.float32)

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return how far apart codes of each column put the classes, as shares [count]."""
        found = (self.tables - self.tables.mean(axis=2, keepdims=True)).std(axis=1).sum(axis=1)
        return found.astype(np.float64) / max(float(found.sum()), 1e-300)

    def about(self) -> dict[str, Any]:
        """Return the plain values: none."""
        return {}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {"tables": self.tables, "priors": self.priors}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the classifier of arrays by name."""
        return cls(tables=np.array(sections["tables"]), priors=np.array(sections["priors"]))
