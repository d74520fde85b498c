"""Bytes of memory that quantizing before a wire and widening behind it read and write."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WireCode"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WireCode:
    """Bytes of one element in memory and on the wire.

    A wire that is no narrower than memory needs no quantizer: all counts are 0 there.

    Attributes:
        wide: bytes of an element in memory.
        narrow: bytes of an element on the wire, scales of blocks included; a number or array.

    Source: Wang et al. 2023 (arXiv 2306.10209), sections 3.1 and 3.3: weights are quantized by
        their owner and widened by whoever gathers them; gradients are quantized once before each
        exchange, and widened, summed and quantized again by one kernel; quantizing overlaps the
        traffic.
    """

    wide: float
    narrow: Any

    def gathered(self, elements: Array, members: Array, *, is_kept: Any = False) -> Array:
        """Count an all-gather: a member quantizes its part and widens the whole.

        Args:
            elements: elements that each member has afterwards.
            members: members of the group; 1 gathers nothing.
            is_kept: whether parts lie quantized in memory, so that they are only widened.

        Returns:
            Bytes read and written by one member.
        """
        own = np.where(is_kept, 0.0, elements / members)
        return self._if_coded((own + elements) * (self.wide + self.narrow), members)

    def scattered(self, elements: Array, members: Array, inner: Array) -> Array:
        """Count a sum that leaves each member its part, by one exchange or two.

        Args:
            elements: elements that each member has before.
            members: members of the group; 1 exchanges nothing.
            inner: members of the first exchange, within a node; all of them where there is no
                second.

        Returns:
            Bytes read and written by one member.
        """
        coded = elements * (self.wide + self.narrow) + elements * self.narrow
        # Between two exchanges the sums of the first are written, and read again, quantized.
        between = np.where(members > inner, 2 * elements / inner * self.narrow, 0.0)
        return self._if_coded(coded + between + elements / members * self.wide, members)

    def _if_coded(self, num_bytes: Array, members: Array) -> Array:
        return np.where((members > 1) & (self.narrow < self.wide), num_bytes, 0.0)
