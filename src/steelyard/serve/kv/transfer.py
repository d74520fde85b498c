"""A copy of blocks between the pool and the host tier."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Transfer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Blocks of one request to copy between the pool and the host tier.

    Attributes:
        id: name of the transfer when it has landed.
        request_id: owner of the blocks.
        direction: "out" of the pool or "in" to it.
        runs: int64 [N, 3] (first device block, first host block, count) of runs that are
            consecutive on both sides.
    """

    id: int
    request_id: str
    direction: Literal["out", "in"]
    runs: np.ndarray
