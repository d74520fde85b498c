"""Random forest: deep trees on drawn rows and columns of codes, whose leaves are averaged."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.forest_kernels import add_forest_values, grow_whole_tree
from steelyard.data.learning.learners import FitJob, FittedLearner, Needs
from steelyard.data.learning.losses import scores_of_shares, start_scores
from steelyard.data.learning.targets import TargetColumn
from steelyard.errors import require

__all__ = ["Forest", "ForestConfig"]

_PARTS = ("features", "splits", "missing_left", "children", "values", "gains")
_Tree = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForestConfig:
    """How a forest is grown.

    Attributes:
        trees: trees.
        least_rows: rows of a leaf at least.
        tries: share of the columns that is tried at a node; 0 for the square root of their number.
        sample_rows: most rows that a tree is grown with; memory follows from it.
        threads: threads, each of which grows a tree.
    """

    needs: ClassVar[Needs] = "codes"
    trees: int = 100
    least_rows: int = 5
    tries: float = 0.0
    sample_rows: int = 1_000_000
    threads: int = 2

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        require(
            self,
            trees=(self.trees >= 1, "at least 1"),
            least_rows=(self.least_rows >= 1, "at least 1"),
            tries=(0 <= self.tries <= 1, "0 to 1"),
            sample_rows=(self.sample_rows >= 2, "at least 2"),
            threads=(self.threads >= 1, "at least 1"),
        )

    def fit(self, job: FitJob) -> "Forest":
        """Grow a forest.

        Args:
            job: codes of rows, and what is predicted.

        Returns:
            The forest. Each tree follows from the seed and its number alone.

        Raises:
            DataError: no rows are left to learn from, or a class has none among them.

        Source: Breiman 2001, "Random Forests", section 4; rows are drawn as in Oza and Russell
            2001 (online bagging): how often one comes is Poisson.
        """
        start_scores(job.store.targets, job.store.is_held, job.target)
        grower = _TreeGrower(self, job)
        forest = job.begun if isinstance(job.begun, Forest) else Forest(target=job.target)
        with ThreadPoolExecutor(self.threads) as pool:
            while len(forest.trees) < self.trees:
                begin = len(forest.trees)
                numbers = range(begin, min(begin + 2 * self.threads, self.trees))
                forest.trees += list(pool.map(grower.grow, numbers))
                job.done(forest, len(forest.trees) / self.trees)
        return forest


class _TreeGrower:
    """Draws rows and grows a tree with them."""

    def __init__(self, config: ForestConfig, job: FitJob) -> None:
        self.config, self.job, self.rows = config, job, job.rows
        columns = len(job.codes)
        share = config.tries or columns**0.5 / max(columns, 1)
        self.tries = max(1, round(share * columns))

    def grow(self, number: int) -> _Tree:
        """Return the tree of a number."""
        rng = np.random.default_rng([self.job.seed, number])
        mean = min(1.0, self.config.sample_rows / len(self.rows))
        drawn = rng.poisson(mean, len(self.rows)).astype(np.uint8)
        kept = np.flatnonzero(drawn)
        # Of few rows none may be drawn.
        kept = kept if len(kept) else np.arange(len(self.rows))
        rows, weights = self.rows[kept], np.maximum(drawn[kept], 1)
        # What a tree is grown with lies side by side: a node's rows are far apart otherwise.
        codes = np.stack([column[rows] for column in self.job.codes])
        targets = np.asarray(self.job.store.targets[rows])
        outputs = max(len(self.job.target.classes), 1)
        size = 2 * max(int(weights.sum() // self.config.least_rows), 1) + 1
        made = {
            "features": np.empty(size, np.int32),
            "splits": np.zeros(size, np.uint8),
            "missing_left": np.zeros(size, bool),
            "children": np.zeros((size, 2), np.int32),
            "values": np.empty((size, outputs), np.float32),
            "gains": np.zeros(size, np.float32),
        }
        nodes = grow_whole_tree(
            codes,
            self.job.num_codes,
            weights.astype(np.float32),
            targets,
            outputs,
            self.tries,
            float(self.config.least_rows),
            int(rng.integers(1 << 62)),
            *made.values(),
        )
        return {name: values[:nodes].copy() for name, values in made.items()}


@dataclass(kw_only=True)
class Forest:
    """Trees whose leaves are averaged.

    Attributes:
        target: what is predicted.
        trees: arrays over the nodes of each tree.
    """

    kind: ClassVar[str] = "forest"
    target: TargetColumn
    trees: list[_Tree] = field(default_factory=list)

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their codes [F, N]."""
        sums = np.zeros((given.shape[1], max(len(self.target.classes), 1)))
        for tree in self.trees:
            arrays = [tree[name] for name in _PARTS[:-1]]
            add_forest_values(given, arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], sums)
        if self.target.task == "regress":
            return scores_of_shares(self.target, sums / len(self.trees))
        # One tree of a leaf alone is added: where all trees agree, no share is 0.
        prior = np.mean([tree["values"][0] for tree in self.trees], axis=0)
        return scores_of_shares(self.target, (sums + prior) / (len(self.trees) + 1))

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return the share of all gain that each column's splits had [count]."""
        found = np.zeros(count)
        for tree in self.trees:
            inner = tree["features"] >= 0
            np.add.at(found, tree["features"][inner], tree["gains"][inner])
        return found / max(found.sum(), 1e-300)

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {"target": self.target.plain()}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name: the trees' nodes behind each other."""
        sizes = np.array([len(tree["features"]) for tree in self.trees], np.int64)
        found = {"sizes": sizes}
        return found | {
            name: np.concatenate([tree[name] for tree in self.trees]) for name in _PARTS
        }

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the forest of values and arrays."""
        made = cls(target=TargetColumn.of(about["target"]))
        made.trees = list(_cut(sections))
        return made


def _cut(sections: dict[str, NDArray[Any]]) -> Iterator[_Tree]:
    """Return the trees of nodes that lie behind each other."""
    first = 0
    for size in sections["sizes"].tolist():
        yield {name: np.asarray(sections[name])[first : first + size] for name in _PARTS}
        first += size
