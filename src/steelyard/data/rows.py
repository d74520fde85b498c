"""Several examples to a row: best fit inside windows of a fixed order, any row by its number.

A window is so many consecutive positions of a keyed order of all examples, so its rows depend on
nothing outside of it. Only the number of rows of each window is kept: what a row holds is found
again from the lengths of one window's examples.
"""

from collections import OrderedDict
from typing import Protocol, runtime_checkable

import numpy as np

from steelyard.data.convert import Converter
from steelyard.data.filling import best_fit
from steelyard.data.index import Permutation, derive_seed
from steelyard.data.tasks.task import Examples
from steelyard.errors import ConfigError, DataError

__all__ = ["PackedRows", "Sized"]

_MOST_WINDOWS_KEPT = 1024


@runtime_checkable
class Sized(Examples, Protocol):
    """Examples whose lengths are known without reading them, such as a cache's."""

    def sizes(self, name: str, /) -> np.ndarray:
        """Return the length of a field in every example, before steps and the end, int64 [N]."""
        ...


class PackedRows:
    """The rows into which examples are packed; each example is in one.

    Attributes:
        efficiency: share of places of the rows that hold a token, 0..1, in the fullest stream.
        cut_tokens: tokens that are left out because an example is longer than a row.
        window: examples of a window.
    """

    def __init__(
        self, task: Sized, converter: Converter, *, seed: int = 0, window: int = 1024
    ) -> None:
        """Count the rows of every window: one pass over the lengths.

        Args:
            task: whose examples are packed; its steps must keep lengths.
            converter: says how long an example is in each stream, and a row.
            seed: seed of the order in which examples meet.
            window: examples that are packed together, at least 1; more fill rows better.

        Raises:
            ConfigError: the window is below 1, or the task lacks a feature of the converter.
        """
        if window < 1:
            raise ConfigError(f"a window of {window} examples", hint="give 1 or more")
        self.window = window
        self._task = task
        self._limits = np.array(list(converter.lengths.values()), dtype=np.int64)
        whole = np.stack(list(converter.sizes(_feature_sizes(task, converter)).values()), axis=1)
        self._sizes = np.minimum(whole, self._limits).astype(np.int32)
        self._order = Permutation(len(task), derive_seed(seed, f"{task.name}/rows"))
        windows = -(-len(task) // window)
        counts = [self._fit(number)[1] for number in range(windows)]
        self._firsts = np.concatenate([[0], np.cumsum(counts)])
        places = len(self) * self._limits
        self.efficiency = float((self._sizes.sum(axis=0) / places).max())
        self.cut_tokens = int((whole - self._sizes).sum())
        self._kept: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def __len__(self) -> int:
        """Count the rows."""
        return int(self._firsts[-1])

    def examples(self, row: int) -> np.ndarray:
        """Return which examples a row holds.

        Args:
            row: number of the row.

        Returns:
            int64 [N], in the order they stand in it.

        Raises:
            DataError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise DataError(f"there is no row {row} of {len(self)}", hint="give a row from 0")
        number = int(np.searchsorted(self._firsts, row, side="right")) - 1
        members, starts = self._window_rows(number)
        place = row - int(self._firsts[number])
        return members[starts[place] : starts[place + 1]]

    def _window_rows(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a window's examples by row and where rows begin; the last used are kept."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        rows, count, members = self._fit(number)
        by_row = np.argsort(rows, kind="stable")
        starts = np.searchsorted(rows[by_row], np.arange(count + 1))
        self._kept[number] = (members[by_row], starts)
        if len(self._kept) > _MOST_WINDOWS_KEPT:
            self._kept.popitem(last=False)
        return self._kept[number]

    def _fit(self, number: int) -> tuple[np.ndarray, int, np.ndarray]:
        """Pack one window: row of each of its examples, number of rows, the examples."""
        last = min((number + 1) * self.window, len(self._task))
        members = self._order(np.arange(number * self.window, last))
        sizes = self._sizes[members]
        # The longest first: what is left to fill gaps with is then short.
        fullness = (sizes / self._limits).max(axis=1)
        rows, count = best_fit(sizes, np.argsort(-fullness, kind="stable"), self._limits)
        return rows, count, members


def _feature_sizes(task: Sized, converter: Converter) -> dict[str, np.ndarray]:
    """Return the tokens of a task's features with their ends."""
    missing = [name for name in converter.features if name not in task.features]
    if missing:
        raise ConfigError(
            f"task {task.name!r} has no feature {', '.join(missing)}, which {converter} needs",
            hint=f"its features are {', '.join(sorted(task.features))}",
        )
    return {
        name: task.sizes(name) + int(task.features[name].add_end) for name in converter.features
    }
