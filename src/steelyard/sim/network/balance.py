"""Whole flows and pieces of flows onto equal paths, so that every path carries the same."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError

__all__ = ["Split", "cut", "divide", "num_pieces"]

Split = Literal["equal", "minimal"]
"""How the flows that are left over are split: in equal pieces, or in as few pieces as can be."""


def num_pieces(num_flows: int, num_paths: int, split: Split) -> int:
    """Return how many pieces `divide` makes of what is left over.

    With r = num_flows mod num_paths and g = gcd(r, num_paths): r num_paths / g equal pieces, or
    r + num_paths - g unequal ones; 0 where nothing is left over.

    Args:
        num_flows: equal flows between two leaves.
        num_paths: paths between them.
        split: "equal" or "minimal".

    Returns:
        Pieces of the flows that are left over; whole flows are not counted.

    Source: arXiv 2407.00550, theorem 1 (equal pieces). That r + s - g pieces are the least: flows
        and paths are the ends of a graph with an edge per piece. In a part of it with a flows and b
        paths, a flows fill b paths, so a s = b r, and so a is a multiple of r / g: there are at
        most g parts, and a graph of r + s ends in at most g parts has at least r + s - g edges.
    """
    left = num_flows % num_paths
    common = math.gcd(left, num_paths)
    if not left:
        return 0
    return left * num_paths // common if split == "equal" else left + num_paths - common


def divide(
    num_flows: int, num_paths: int, split: Split = "minimal"
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divide equal flows among equal paths: each path gets num_flows / num_paths of a flow's bytes.

    Whole flows go round the paths as long as there is one for each; the rest is split.

    Args:
        num_flows: equal flows.
        num_paths: equal paths.
        split: "equal" or "minimal".

    Returns:
        Flow, path and size of each piece; a flow's size is num_paths, so all sizes are whole.

    Raises:
        ConfigError: a count is below 1, or the split is unknown.
    """
    if num_flows < 1 or num_paths < 1 or split not in ("equal", "minimal"):
        raise ConfigError(
            f"cannot divide {num_flows} flows among {num_paths} paths by split {split!r}",
            hint="counts are at least 1; split is equal or minimal",
        )
    left = num_flows % num_paths
    whole = np.arange(num_flows - left)
    if split == "equal" and left:
        size = math.gcd(left, num_paths)
        pieces = np.arange(left * num_paths // size)
        flow, path = pieces // (num_paths // size), pieces % num_paths
        sizes = np.full(len(pieces), size)
    else:
        flow, path, sizes = cut([num_paths] * left, [left] * num_paths)
    return (
        np.concatenate([whole, num_flows - left + flow]),
        np.concatenate([whole % num_paths, path]),
        np.concatenate([np.full(len(whole), num_paths), sizes]),
    )


def cut(sizes: ArrayLike, rooms: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray]:
    """Lay flows end to end and cut them where a path is full.

    Args:
        sizes: bytes of the flows, [n]; integers are divided exactly.
        rooms: what each path shall carry, [s], all sizes in sum; numbers or fractions.

    Returns:
        Flow, path and size of each piece; at most n + s - 1 pieces.
    """
    ends = np.cumsum(np.asarray(sizes))
    limits = np.cumsum(np.asarray(rooms))
    if not len(ends):
        none = np.empty(0, dtype=np.int64)
        return none, none, none
    if ends.dtype.kind == "f" or limits.dtype.kind == "f":
        # Limits that are ends but for rounding would make pieces of nothing.
        near = ends[np.abs(ends - limits[:, None]).argmin(axis=1)]
        limits = np.where(np.isclose(near, limits, rtol=1e-12, atol=0), near, limits)
        limits[-1] = ends[-1]
    marks = np.union1d(ends, limits)
    marks = marks[marks > 0]
    flow = np.searchsorted(ends, marks, side="left")
    path = np.searchsorted(limits, marks, side="left")
    return flow, path, np.diff(marks, prepend=marks.dtype.type(0))
