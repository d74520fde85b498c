"""Flows: who sends how much to whom, and when; and flows that have been given their ways."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError
from steelyard.sim.network.paths import Bundles

__all__ = ["Flows", "RoutedFlows"]


@dataclass(frozen=True, eq=False)
class Flows:
    """What hosts send one another; F flows.

    Attributes:
        source: sending hosts, int [F].
        target: receiving hosts, int [F]; not the sender.
        size_bytes: bytes of each flow, above 0, float [F]; a number stands for all.
        start_s: when it begins, float [F]; a number stands for all.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    start_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def __init__(
        self,
        source: ArrayLike,
        target: ArrayLike,
        size_bytes: ArrayLike,
        start_s: ArrayLike = 0.0,
    ) -> None:
        """Broadcast the columns against one another.

        Args:
            source: sending hosts.
            target: receiving hosts.
            size_bytes: bytes of each flow.
            start_s: when each begins.

        Raises:
            ConfigError: a size is not above 0, a time is negative, or there are no flows.
        """
        columns = np.broadcast_arrays(*(np.atleast_1d(c) for c in (source, target, size_bytes)))
        start, end, size = columns
        begin = np.broadcast_to(np.asarray(start_s, dtype=float), start.shape)
        if not len(start):
            raise ConfigError("there are no flows", hint="give at least one pair of hosts")
        for name, values, good in (
            ("a size above 0 bytes", size, np.isfinite(size) & (size > 0)),
            ("a start at or after 0 s", begin, np.isfinite(begin) & (begin >= 0)),
        ):
            if not good.all():
                row = int(np.flatnonzero(~good)[0])
                raise ConfigError(f"flow {row} needs {name}, but has {values[row]}")
        object.__setattr__(self, "source", np.ascontiguousarray(start, dtype=np.int64))
        object.__setattr__(self, "target", np.ascontiguousarray(end, dtype=np.int64))
        object.__setattr__(self, "size_bytes", np.ascontiguousarray(size, dtype=float))
        object.__setattr__(self, "start_s", np.ascontiguousarray(begin))

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedFlows:
    """Flows in pieces, each on its way; S pieces, H hops.

    Attributes:
        flows: what was routed.
        flow: flow of a piece, int [S], rising.
        size_bytes: bytes of a piece, float [S]; those of a flow add up to its size.
        hops: int [S, H]; a link, or the number of links plus a bundle, or -1 after the last.
        bundles: sets of links that hops stand for.
    """

    flows: Flows
    flow: NDArray[np.int64]
    size_bytes: NDArray[np.float64]
    hops: NDArray[np.int32]
    bundles: Bundles = field(default_factory=Bundles.none)

    def __len__(self) -> int:
        return len(self.flow)

    def queue_pairs(self) -> NDArray[np.int64]:
        """Return the connections that each sending host holds: one per piece, by host."""
        return np.bincount(self.flows.source[self.flow])

    def splits(self) -> int:
        """Return the connections beyond one per flow."""
        return len(self) - len(self.flows)
