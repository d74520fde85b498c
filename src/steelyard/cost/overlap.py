"""Reads hidden behind work: what a prefetch has time for, and how long both take together.

One formula for all that fetches ahead: documents behind the search for candidates, parameters or
keys and values behind the layers before them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.storage import StorageTier
from steelyard.errors import ConfigError

__all__ = ["Prefetched", "PrefetchedTime", "hidden_items", "read_busy_s", "read_ready_s"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefetchedTime:
    """Where the time goes when reads begin amid work.

    Attributes:
        total_s: from the start of the work to the end of the late reads.
        stall_s: waiting for early reads after the work is done.
        hidden_s: share of the early reads' time that the work covers.
    """

    total_s: float
    stall_s: float
    hidden_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefetched:
    """Work during which reads run: some begin early by a guess, what the guess missed comes late.

    Attributes:
        before_s: work before the early reads can begin.
        beside_s: work that runs beside them.
        read_s: early reads, with what is done to each item as it arrives.
        late_s: reads of what was not guessed, with what is done to it.
        after_s: work that waits for everything.

    Source: Shrestha et al. 2023 (ESPN, arXiv 2312.05417), prefetch budget.
    """

    before_s: float
    beside_s: float
    read_s: float
    late_s: float = 0.0
    after_s: float = 0.0

    def time(self) -> PrefetchedTime:
        """Return how long all of it takes: work and early reads beside each other."""
        stall_s = max(self.read_s - self.beside_s, 0.0)
        return PrefetchedTime(
            total_s=self.before_s + self.beside_s + stall_s + self.late_s + self.after_s,
            stall_s=stall_s,
            hidden_s=min(self.read_s, self.beside_s),
        )


def hidden_items(
    beside_s: float, bytes_per_s: float, item_bytes: float, first_s: float = 0.0
) -> int:
    """Return how many items can be read while other work runs, so that none is waited for.

    Args:
        beside_s: the other work.
        bytes_per_s: rate of reads at the depth that is used.
        item_bytes: bytes of an item.
        first_s: time to the first byte.

    Returns:
        Whole items; 0 where not even the first arrives.

    Raises:
        ConfigError: a rate or size is not above 0.
    """
    if not (bytes_per_s > 0 and item_bytes > 0):
        raise ConfigError(
            f"items of {item_bytes:g} bytes at {bytes_per_s:g} bytes/s",
            hint="give numbers above 0",
        )
    return int(max(beside_s - first_s, 0.0) * bytes_per_s / item_bytes)


def read_busy_s(sizes: NDArray[np.int64], drive: StorageTier) -> Floats:
    """Return how long a drive is busy with each random read, latency apart.

    Args:
        sizes: bytes of each read [N].
        drive: its rate of bytes and of random reads; a rate of 0 does not limit.

    Returns:
        Seconds [N].
    """
    per_read_s = 1 / drive.reads_per_s if drive.reads_per_s else 0.0
    per_byte_s = 1 / drive.bytes_per_s if drive.bytes_per_s else 0.0
    return np.maximum(per_read_s, np.asarray(sizes, np.float64) * per_byte_s)


def read_ready_s(
    sizes: NDArray[np.int64],
    drive: StorageTier,
    depth: int,
    *,
    is_kept: NDArray[np.bool_] | None = None,
    dropped_s: float = math.inf,
) -> Floats:
    """Return when each of some random reads is done, from the moment the first is asked for.

    At most `depth` reads are under way. Each takes the drive's latency, and the drive ends no more
    reads, and no more bytes, per second than it can. At some moment reads may turn out to be
    wanted no more: those that are not under way by then are not made.

    Args:
        sizes: bytes of each read, in the order they are asked for [N].
        drive: its latency, rate of bytes and rate of random reads; a rate of 0 does not limit.
        depth: reads under way at once, 1 or more.
        is_kept: reads that are wanted to the end [N]; all without it.
        dropped_s: the moment at which the others are given up.

    Returns:
        Seconds, ascending [N]; NaN for reads that were not made.

    Raises:
        ConfigError: the depth is below 1.
    """
    if depth < 1:
        raise ConfigError(f"a queue of {depth} reads", hint="give a depth of 1 or more")
    busy_s = read_busy_s(sizes, drive)
    if len(busy_s) <= depth:
        # Nothing waits for its turn: the drive's latency once, then one read after the other.
        return drive.first_byte_s + np.cumsum(busy_s)
    kept = [True] * len(busy_s) if is_kept is None else is_kept.tolist()
    found = np.full(len(busy_s), np.nan)
    done_s: list[float] = []
    last_s = 0.0
    for place, took_s in enumerate(busy_s.tolist()):
        begin_s = done_s[-depth] if len(done_s) >= depth else 0.0
        if begin_s >= dropped_s and not kept[place]:
            continue
        last_s = max(begin_s + drive.first_byte_s, last_s) + took_s
        done_s.append(last_s)
        found[place] = last_s
    return found
