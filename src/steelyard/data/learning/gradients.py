"""Derivatives of losses by scores, packed for histograms, by several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.packing import PackScale, pack_rows, pack_slopes
from steelyard.data.learning.targets import TargetColumn

__all__ = ["PackedGradients"]

_CHUNK = 1 << 15
"""Rows that are worked on at once: what is made meanwhile stays in the processor's cache."""
_Floats = NDArray[np.float32]


class PackedGradients:
    """Packs the derivatives of the loss of each row.

    Attributes:
        packed: packed numbers [N].
    """

    def __init__(
        self,
        target: TargetColumn,
        targets: _Floats,
        packed: NDArray[np.int64],
        pool: ThreadPoolExecutor | None,
    ) -> None:
        """Take what is predicted.

        Args:
            target: the target.
            targets: numbers, or numbers of classes [N].
            packed: room for packed numbers [N].
            pool: threads; None works in this one.
        """
        self.packed, self._target, self._targets, self._pool = packed, target, targets, pool

    def fill(self, scores: _Floats, place: int, salt: int) -> PackScale:
        """Pack the derivatives by one score.

        Args:
            scores: [K, N].
            place: number of the score.
            salt: changes how numbers are rounded.

        Returns:
            What the steps of packed numbers stand for.
        """
        if self._target.task == "regress":
            largest = max(self._each(lambda part: _largest(scores[0, part], self._targets[part])))
            scale = PackScale.of_numbers(largest)

            def pack(part: slice) -> None:
                slopes = scores[0, part] - self._targets[part]
                pack_slopes(slopes, 1 / scale.gradient, self.packed[part])
        else:
            scale = PackScale.of_classes()
            own = 1 if self._target.width == 1 else place

            def pack(part: slice) -> None:
                shares = _shares(scores[:, part], place)
                slopes = shares - (self._targets[part] == own)
                given = (slopes, shares * (1 - shares), 1 / scale.gradient, 1 / scale.hessian)
                pack_rows(*given, part.start + salt, self.packed[part])

        self._each(pack)
        return scale

    def _each(self, work: Callable[[slice], float | None]) -> list[float]:
        """Return what work returns for all parts."""
        firsts = range(0, len(self.packed), _CHUNK)
        parts = [slice(first, min(first + _CHUNK, len(self.packed))) for first in firsts]
        mapped = map(work, parts) if self._pool is None else self._pool.map(work, parts)
        return [0.0, *(float(value or 0.0) for value in mapped)]


def _largest(scores: _Floats, targets: _Floats) -> float:
    """Return the size of the largest gradient of squared errors."""
    return float(np.abs(scores - targets).max(initial=0.0))


def _shares(scores: _Floats, place: int) -> _Floats:
    """Return the predicted share of one class [N]."""
    if len(scores) == 1:
        # float32 overflows where the share is 0 anyway.
        return 1 / (1 + np.exp(np.minimum(-scores[0], 80)))
    parts = np.exp(scores - scores.max(axis=0))
    return parts[place] / parts.sum(axis=0)
