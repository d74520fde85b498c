"""What the blocks of requests hold, as numbers for the compiled loop."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import CapacityError

__all__ = ["BlockContents", "number_contents"]

_MOST_PLACES = 2**31 - 1
"""Places are counted with 32 bits."""


class BlockContents(NamedTuple):
    """The full blocks of all requests.

    Attributes:
        first: row of each request's first block, int64 [R].
        count: its blocks, int64 [R].
        numbers: content of each block, int64 [blocks]; those of several requests come first.
        num_shared: contents that several requests may share.
        num_alone: others.
    """

    first: NDArray[np.int64]
    count: NDArray[np.int64]
    numbers: NDArray[np.int64]
    num_shared: int
    num_alone: int

    def num_places(self, lanes: int, groups: int) -> int:
        """Count the places of contents in a fleet.

        Args:
            lanes: micro-batches of all replicas.
            groups: groups of replicas.

        Returns:
            Places.

        Raises:
            CapacityError: there are more than the loop can count.
        """
        places = lanes * self.num_shared + groups * self.num_alone
        if places > _MOST_PLACES:
            raise CapacityError(
                f"{places:,} blocks to keep track of, more than {_MOST_PLACES:,}",
                hint="simulate a shorter trace or fewer replicas, or take `run_fleet`",
            )
        return places


def number_contents(
    tokens: NDArray[np.int64], block_size: int, block_ids: Sequence[Sequence[int]]
) -> BlockContents:
    """Number the contents of all full blocks.

    Args:
        tokens: prompt and output tokens of each request, int64 [R].
        block_size: token slots per block; 0 keeps no blocks.
        block_ids: leading block ids of each request, as in `FleetJob`; blocks beyond are like no
            other's.

    Returns:
        The numbers.
    """
    count = tokens // block_size if block_size else np.zeros_like(tokens)
    first = np.cumsum(count) - count
    numbers = np.full(int(count.sum()), -1, np.int64)
    known = [ids[:most] for ids, most in zip(block_ids, count.tolist(), strict=True)]
    # An id that one request has alone needs a place in one lane only.
    uses = Counter(name for ids in known for name in set(ids))
    number_of = {name: index for index, name in enumerate(n for n, k in uses.items() if k > 1)}
    for start, ids in zip(first.tolist(), known, strict=True):
        numbers[start : start + len(ids)] = [number_of.get(name, -1) for name in ids]
    alone = numbers < 0
    numbers[alone] = len(number_of) + np.arange(int(alone.sum()))
    return BlockContents(first, count, numbers, len(number_of), int(alone.sum()))
