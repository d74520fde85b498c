"""Seconds of collectives by ring formulas, vectorised over group sizes."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.roofline import Machine

__all__ = ["all_gather_s", "all_reduce_s", "group_bandwidth"]

HOP_LATENCY_S = 5e-6
"""Time one hop of a ring adds, in the node or out of it; tree algorithms of large groups keep the
hops few."""


def group_bandwidth(machine: Machine, size: ArrayLike, stride: ArrayLike = 1) -> NDArray[Any]:
    """Return the bytes per second one member of a group sends, each way.

    Args:
        machine: with its links; `scale_up` within a node, `injection` shared by the node's
            accelerators.
        size: members of a group.
        stride: distance between members: how many accelerators form the inner groups (tensor before
            data before pipeline).

    Returns:
        The node's links when the group fits in one; else the slower of them and this member's share
        of the network, which `stride` groups of one node use at once. Infinite for groups of one.
    """
    members, inner = np.asarray(size, dtype=float), np.asarray(stride, dtype=float)
    inside = members * inner <= machine.accelerators_per_node
    up = (
        machine.scale_up_bytes_per_s
        or machine.injection_bytes_per_s
        or machine.host_link_bytes_per_s
    )
    rings = np.minimum(inner, machine.accelerators_per_node)
    out = (machine.injection_bytes_per_s or up) / rings
    reached = machine.efficiencies.link * np.where(inside, up, np.minimum(up, out))
    return np.where(members > 1, reached, np.inf)


def _hops_s(size: ArrayLike) -> NDArray[Any]:
    """Return the latency of a collective of `size` members."""
    return HOP_LATENCY_S * np.log2(np.maximum(np.asarray(size, dtype=float), 1.0))


def all_reduce_s(
    machine: Machine, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> NDArray[Any]:
    """Time an all-reduce of `size_bytes` held by each member: 2 (p - 1) / p of them over each link.

    Source: Patarasuk and Yuan 2009 (bandwidth-optimal all-reduce).
    """
    return 2 * all_gather_s(machine, size_bytes, members, stride)


def all_gather_s(
    machine: Machine, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> NDArray[Any]:
    """Time an all-gather or reduce-scatter whose whole is `size_bytes`: (p - 1) / p of them over each link."""
    group = np.asarray(members, dtype=float)
    return (group - 1) / group * np.asarray(size_bytes, dtype=float) / group_bandwidth(
        machine, group, stride
    ) + _hops_s(group)
