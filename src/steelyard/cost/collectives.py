"""Seconds of collectives by ring formulas, vectorized over group sizes."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.roofline import Machine

__all__ = ["all_gather_s", "all_reduce_s", "group_bandwidth"]

HOP_LATENCY_S = 5e-6
"""Time that one hop adds, within a node or between nodes."""


def group_bandwidth(machine: Machine, size: ArrayLike, stride: ArrayLike = 1) -> NDArray[Any]:
    """Return the bytes per second one member of a group sends, each way.

    Args:
        machine: accelerator with its links; `scale_up` within a node, `injection` shared by the
            node's accelerators.
        size: members of a group.
        stride: distance between members: accelerators of the inner groups (tensor before data
            before pipeline).

    Returns:
        Rate of the node's links when the group fits in one; else the slower of them and this
        member's share of the network, which `stride` groups of one node use at once. Infinite for
        groups of one.
    """
    members = np.asarray(size, dtype=float)
    inner = np.asarray(stride, dtype=float)
    inside = members * inner <= machine.accelerators_per_node
    # A record without links within the node still moves data: over its network, else over the host.
    up = (
        machine.scale_up_bytes_per_s
        or machine.injection_bytes_per_s
        or machine.host_link_bytes_per_s
    )
    # Each of a node's accelerators belongs to another ring of the same stride, and all these rings
    # leave the node over the same network card.
    rings = np.minimum(inner, machine.accelerators_per_node)
    out = (machine.injection_bytes_per_s or up) / rings
    reached = machine.efficiencies.link * np.where(inside, up, np.minimum(up, out))
    return np.where(members > 1, reached, np.inf)


def all_reduce_s(
    machine: Machine, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> NDArray[Any]:
    """Return the seconds of an all-reduce: 2 (p - 1) / p of the bytes pass over each link.

    Args:
        machine: accelerator with its links.
        size_bytes: bytes that each member holds.
        members: members of the group.
        stride: distance between members, as in `group_bandwidth`.

    Returns:
        Seconds, broadcast over the arguments.

    Source: Patarasuk and Yuan 2009 (bandwidth-optimal all-reduce).
    """
    return 2 * all_gather_s(machine, size_bytes, members, stride)


def all_gather_s(
    machine: Machine, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> NDArray[Any]:
    """Return the seconds of an all-gather or reduce-scatter.

    (p - 1) / p of the bytes pass over each link.

    Args:
        machine: accelerator with its links.
        size_bytes: bytes of the whole.
        members: members of the group.
        stride: distance between members, as in `group_bandwidth`.

    Returns:
        Seconds, broadcast over the arguments.
    """
    group = np.asarray(members, dtype=float)
    sent = (group - 1) / group * np.asarray(size_bytes, dtype=float)
    # Logarithmic, although the traffic is a ring's: libraries choose trees where latency matters.
    hops_s = HOP_LATENCY_S * np.log2(np.maximum(group, 1.0))
    return sent / group_bandwidth(machine, group, stride) + hops_s
