"""Boosted trees on codes that lie on disk."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.codes import CodeStore
from steelyard.data.learning.gradients import PackedGradients
from steelyard.data.learning.kernels import add_leaf_values
from steelyard.data.learning.learners import FitJob, FittedLearner, Needs
from steelyard.data.learning.losses import mean_loss, start_scores
from steelyard.data.learning.rooms import RowRoom, fill_places
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.learning.trees import Grower, Tree, TreeLimits, tree_sections, trees_of
from steelyard.errors import ConfigError, require

__all__ = ["BoostConfig", "Boosted", "boost"]

_SALT = 7919
"""Apart from each other as rounds are, rows are rounded in other ways."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BoostConfig:
    """How boosted trees are fitted.

    Attributes:
        rounds: most rounds; each adds a tree, or one per class where there are more than two.
        rate: factor of each tree.
        limits: how far trees grow.
        patience: rounds without gain on the rows kept aside after which it ends; 0 never ends.
        threads: threads.
    """

    needs: ClassVar[Needs] = "codes"
    rounds: int = 200
    rate: float = 0.1
    limits: TreeLimits = field(default_factory=TreeLimits)
    patience: int = 20
    threads: int = 2

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(
            self,
            rounds=(self.rounds >= 1, "at least 1"),
            rate=(0 < self.rate <= 1, "above 0 to 1"),
            patience=(self.patience >= 0, "at least 0"),
            threads=(self.threads >= 1, "at least 1"),
        )
        if self.limits.leaves < 2 or self.limits.least_rows < 1 or self.limits.l2 < 0:
            raise ConfigError(f"trees of {self.limits}", hint="2 leaves, 1 row, l2 of 0 or more")

    def fit(self, job: FitJob) -> "Boosted":
        """Fit boosted trees; see `boost`."""
        assert isinstance(job.store, CodeStore), "trees grow on codes"
        return boost(
            job.store,
            job.num_codes,
            job.target,
            self,
            begun=job.begun if isinstance(job.begun, Boosted) else None,
            folder=job.folder,
            done=lambda trees: job.done(trees, len(trees.trees) / self.rounds),
        )


@dataclass(kw_only=True, slots=True)
class Boosted:
    """Trees by round.

    Attributes:
        start: scores before the first tree [K].
        trees: trees of each round, one per score.
        losses: loss of the rows kept aside after each round.
        best_rounds: rounds after which it was least; all where no rows are kept aside.
    """

    kind: ClassVar[str] = "boosted"
    start: NDArray[np.float32]
    trees: list[list[Tree]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    best_rounds: int = 0

    def score(self, codes: NDArray[np.uint8], rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the scores of rows [K, N] by the best rounds; of other rows those of the start."""
        found = np.repeat(self.start[:, None], codes.shape[1], axis=1)
        for trees in self.trees[: self.best_rounds]:
            for place, tree in enumerate(trees):
                tree.add_to(codes, rows, found[place])
        return found

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their codes [F, N]."""
        return self.score(given, np.arange(given.shape[1]))

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return the share of all gain that each column's splits had [count]."""
        found = np.zeros(count)
        for trees in self.trees[: self.best_rounds]:
            for tree in trees:
                inner = tree.features >= 0
                np.add.at(found, tree.features[inner], tree.gains[inner])
        return found / max(found.sum(), 1e-300)

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {"best_rounds": self.best_rounds}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        trees = [tree for row in self.trees for tree in row]
        return {"start": self.start, "losses": np.array(self.losses)} | tree_sections(trees)

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the trees of values and arrays."""
        start, trees = np.array(sections["start"]), trees_of(sections)
        rows = [trees[first : first + len(start)] for first in range(0, len(trees), len(start))]
        losses = sections["losses"].tolist()
        return cls(start=start, trees=rows, losses=losses, best_rounds=about["best_rounds"])


def boost(
    store: CodeStore,
    num_codes: NDArray[np.int64],
    target: TargetColumn,
    config: BoostConfig,
    *,
    begun: Boosted | None = None,
    folder: Path | None = None,
    done: Callable[[Boosted], None] = lambda _: None,
) -> Boosted:
    """Fit boosted trees.

    Args:
        store: codes and targets.
        num_codes: codes of each feature [F].
        target: what is predicted.
        config: how.
        begun: what an earlier call had when it ended; its rounds are not fitted again.
        folder: where what is kept for each row lies in mapped files, 24 bytes a row; in memory,
            with a copy of the codes, when None.
        done: is told the trees after each round.

    Returns:
        The trees. They do not depend on the threads, or on how often the work was begun again.

    Raises:
        DataError: no rows are left to learn from, or a class has none among them.

    Source: Friedman 2001; Ke et al. 2017 (LightGBM), algorithm 1; Chen and Guestrin 2016
        (arXiv 1603.02754).
    """
    run = _Boosting(store, num_codes, target, config, begun, folder)
    try:
        while not run.is_over:
            run.round()
            done(run.model)
    finally:
        run.close()
    return run.model


class _Boosting:
    """Scores of all rows while trees are added."""

    def __init__(
        self,
        store: CodeStore,
        num_codes: NDArray[np.int64],
        target: TargetColumn,
        config: BoostConfig,
        begun: Boosted | None,
        folder: Path | None,
    ) -> None:
        self.store, self.target, self.config = store, target, config
        width, count, room = target.width, len(store.targets), RowRoom(folder)
        self.held = np.flatnonzero(store.is_held).astype(np.int32)
        num_rows = count - len(self.held)
        start = start_scores(store.targets, store.is_held, target)
        self.rows = room.array("rows", np.uint32, num_rows)
        fill_places(store.is_held, self.rows)
        self._work = room.array("work", np.uint32, num_rows)
        self._spare = room.array("spare", np.uint32, num_rows)
        threads = config.threads
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        # A copy lies in large pages, and codes of rows that are far apart come much sooner; a plain
        # array of a file keeps that mapped, and its parts are cheaper to cut.
        self.codes = np.array(store.codes) if folder is None else np.asarray(store.codes)
        self.grower = Grower(self.codes, num_codes, config.limits, self.pool, threads)
        packed = room.array("packed", np.int64, count)
        self.gradients = PackedGradients(target, store.targets, packed, self.pool)
        self.model = begun or Boosted(start=start)
        self.scores = room.array("scores", np.float32, width, count)
        self.scores[:] = self.model.start[:, None]
        for trees in self.model.trees:
            for place in range(width):
                for part in (self.rows, self.held):
                    self._add(trees[place], part, self.scores[place])

    @property
    def is_over(self) -> bool:
        """Whether no further round is wanted."""
        rounds = len(self.model.trees)
        waited = rounds - self.model.best_rounds
        has_waited = (
            bool(self.config.patience) and len(self.held) and waited >= self.config.patience
        )
        return rounds >= self.config.rounds or bool(has_waited)

    def round(self) -> None:
        """Add a tree for each score."""
        trees = []
        given = self.scores.copy() if self.target.width > 1 else self.scores
        for place in range(self.target.width):
            self._work[:] = self.rows
            salt = (len(self.model.trees) * self.target.width + place) * _SALT
            scale = self.gradients.fill(given, place, salt)
            scores = self.scores[place]
            tree = self.grower.grow(
                self._work,
                self.gradients.packed,
                scale,
                self._spare,
                self.config.rate,
                lambda leaf, value, into=scores: add_leaf_values(leaf, np.float32(value), into),
            )
            self._add(tree, self.held, scores)
            trees.append(tree)
        model = self.model
        model.trees.append(trees)
        model.losses.append(self._loss())
        if not len(self.held) or model.losses[-1] <= min(model.losses):
            model.best_rounds = len(model.trees)

    def _add(self, tree: Tree, rows: NDArray[np.integer], scores: NDArray[np.float32]) -> None:
        """Add a tree's values to the scores of rows, by all threads."""
        if self.pool is None:
            tree.add_to(self.codes, rows, scores)
            return
        parts = np.array_split(rows, self.config.threads)
        list(self.pool.map(lambda part: tree.add_to(self.codes, part, scores), parts))

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown()

    def _loss(self) -> float:
        """Return the mean loss of the rows kept aside; NaN without any."""
        if not len(self.held):
            return float("nan")
        scores = self.scores[:, self.held]
        return mean_loss(self.target, self.store.targets[self.held], scores)
