"""What every learner is: settings that fit rows, and what was fitted, which scores rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.store import FeatureStore
from steelyard.data.learning.codes import CodeStore
from steelyard.data.learning.targets import TargetColumn

__all__ = ["FitJob", "FittedLearner", "LearnerConfig", "Needs"]

Needs = Literal["codes", "features"]


class FittedLearner(Protocol):
    """What was fitted; it is kept as arrays and plain values."""

    kind: ClassVar[str]
    """What users call the learner."""

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows.

        Args:
            given: codes uint8 [F, N] or features float32 [N, D], as the learner needs them.

        Returns:
            [K, N]: numbers that are predicted; for two classes the log odds of the second; for
            more, logarithms of their shares up to a constant of the row.
        """
        ...

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return how much each of the inputs counts, as shares [count]; zeros where unknown."""
        ...

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        ...

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        ...

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> "FittedLearner":
        """Return what such values and arrays were made of."""
        ...


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """Rows that are learned from.

    Attributes:
        store: codes or features, targets, and which rows are kept aside.
        target: what is predicted.
        num_codes: codes of each column [F]; empty for features.
        is_text: columns whose codes have no order [F]; empty for features.
        seed: seed of all that is drawn.
        folder: where what is kept for each row lies in mapped files; in memory when None.
        begun: what an earlier call had when it ended.
        work: where a learner may keep what it goes on with after a kill, itself; None where nobody
            goes on.
        done: is told what is fitted so far, where that can be begun with, and the share of the
            work that is done.
    """

    store: CodeStore | FeatureStore
    target: TargetColumn
    num_codes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    is_text: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    seed: int = 0
    folder: Path | None = None
    begun: FittedLearner | None = None
    work: Path | None = None
    done: Callable[[FittedLearner | None, float], None] = lambda _fitted, _share: None

    @property
    def codes(self) -> NDArray[np.uint8]:
        """Codes of the store [F, N]."""
        assert isinstance(self.store, CodeStore), "a learner on codes"
        return self.store.codes

    @property
    def features(self) -> NDArray[np.float32]:
        """Features of the store [N, D]."""
        assert isinstance(self.store, FeatureStore), "a learner on features"
        return self.store.features

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows that are learned from."""
        return np.flatnonzero(~np.asarray(self.store.is_held))

    @property
    def held(self) -> NDArray[np.int64]:
        """Rows that are kept aside."""
        return np.flatnonzero(np.asarray(self.store.is_held))


class LearnerConfig(Protocol):
    """Settings of a learner, which fit it: ours, or an object of one's own that is handed in.

    Settings are fields of a dataclass, or attributes of plain values: a call that goes on after a
    kill knows by them that they are the same.
    """

    needs: ClassVar[Needs]
    """What it learns from."""

    def fit(self, job: FitJob) -> FittedLearner:
        """Learn.

        Args:
            job: rows, and what is predicted.

        Returns:
            What was fitted; it does not depend on the threads, or on how often it was begun again.

        Raises:
            ConfigError: the learner cannot predict such a target.
            DataError: no rows are left to learn from, or a class has none among them.
        """
        ...
