"""Seconds in which one copy of some bytes reaches many receivers."""

import math

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError

__all__ = ["chain_arrivals_s"]


def chain_arrivals_s(
    size_bytes: float,
    members: int,
    bytes_per_s: float,
    *,
    piece_bytes: float = 64 * 2**20,
    busy_fraction: float = 0.0,
    hop_s: float = 0.0,
) -> NDArray[np.float64]:
    """Return when each receiver of a chain has everything.

    The source sends pieces to the first receiver, which hands each on as soon as it is whole. Links
    are alike and used in one direction each, so a receiver waits for one piece more than the one
    before it, however many follow.

    Args:
        size_bytes: bytes that each receives, at least 0.
        members: receivers, at least 1.
        bytes_per_s: rate of every link, above 0.
        piece_bytes: bytes that are handed on at once, above 0; the last piece may be smaller.
        busy_fraction: share of the source's link that other work takes, in [0, 1); links between
            receivers are idle, as those serve nobody yet.
        hop_s: latency of a piece on each link, seconds, at least 0.

    Returns:
        Seconds [members], rising.

    Raises:
        ConfigError: a value is out of range.

    Source: Patarasuk and Yuan 2009 (pipelined broadcast on a linear array).
    """
    for name, value, good, allowed in (
        ("size_bytes", size_bytes, size_bytes >= 0, "at least 0"),
        ("members", members, members >= 1, "at least 1"),
        ("bytes_per_s", bytes_per_s, bytes_per_s > 0, "above 0"),
        ("piece_bytes", piece_bytes, piece_bytes > 0, "above 0"),
        ("busy_fraction", busy_fraction, 0 <= busy_fraction < 1, "in [0, 1)"),
        ("hop_s", hop_s, hop_s >= 0, "at least 0"),
    ):
        if not good:
            raise ConfigError(f"{name} is {value}, but must be {allowed}")
    pieces = max(math.ceil(size_bytes / piece_bytes), 1)
    last_bytes = size_bytes - (pieces - 1) * piece_bytes
    hops = np.arange(1, members + 1)
    first_s = size_bytes / (bytes_per_s * (1 - busy_fraction))
    # Behind the source the last piece alone is waited for where the source is the slower sender;
    # where it is as fast, a whole piece is still on its way ahead of the smaller last one.
    slow_s = first_s + (hops - 1) * last_bytes / bytes_per_s
    full_s = first_s - last_bytes / (bytes_per_s * (1 - busy_fraction)) if pieces > 1 else 0.0
    even_s = full_s + ((hops - 1) * min(piece_bytes, size_bytes) + last_bytes) / bytes_per_s
    found = np.maximum(slow_s, even_s if pieces > 1 else slow_s) + hops * hop_s
    return found.astype(np.float64)
