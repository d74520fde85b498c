"""What every detector of odd rows is."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowDetector", "drops"]

_Rows = NDArray[np.floating]


class RowDetector(Protocol):
    """Something that was shown rows and says how odd others are."""

    def score(self, rows: _Rows) -> NDArray[np.float64]:
        """Return how odd rows are; larger is odder.

        Args:
            rows: [N, D].

        Returns:
            [N].
        """
        ...

    def blame(self, rows: _Rows) -> NDArray[np.float64]:
        """Return how much each column makes rows odd, 0 or more.

        Args:
            rows: [N, D].

        Returns:
            [N, D].
        """
        ...


def drops(detector: RowDetector, rows: _Rows, usual: _Rows) -> NDArray[np.float64]:
    """Return how much less odd rows would be with a usual value in each column in turn.

    Args:
        detector: scores rows.
        rows: [N, D].
        usual: usual values, such as medians [D].

    Returns:
        Drops of the score, 0 where it does not drop [N, D].
    """
    own = detector.score(rows)
    found = np.zeros(rows.shape)
    for column in range(rows.shape[1]):
        changed = np.array(rows)
        changed[:, column] = usual[column]
        found[:, column] = own - detector.score(changed)
    return np.maximum(found, 0.0)
