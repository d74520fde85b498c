"""Seconds of collectives on nested levels of links, by algorithm, vectorized over groups.

Every formula is the sum of a bandwidth term, taken at the links that bind, and of a latency term,
taken over the messages that follow each other.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.host_staged import HostPath, host_staged_s
from steelyard.cost.roofline import Machine
from steelyard.cost.topology import Group, Topology
from steelyard.errors import ConfigError

__all__ = [
    "ALL_GATHERS",
    "ALL_REDUCES",
    "AllGather",
    "AllReduce",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "best_all_reduce",
    "group_bandwidth",
    "level_bytes",
]

Array = NDArray[np.float64]
AllReduce = Literal[
    "ring", "tree", "double-tree", "halving-doubling", "hierarchical", "host-staged"
]
ALL_REDUCES: tuple[AllReduce, ...] = (
    "ring",
    "tree",
    "double-tree",
    "halving-doubling",
    "hierarchical",
    "host-staged",
)
"""Algorithms of an all-reduce."""
AllGather = Literal["ring", "halving-doubling", "hierarchical"]
ALL_GATHERS: tuple[AllGather, ...] = ("ring", "halving-doubling", "hierarchical")
"""Algorithms of an all-gather and of its mirror image, the reduce-scatter."""

Where = Machine | Topology


def _topology(where: Where) -> Topology:
    """Return the links of a machine, or the topology itself."""
    return where.topology if isinstance(where, Machine) else where


def _broadcast(
    where: Where, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike
) -> tuple[Array, Group]:
    """Return sizes, and one group for each of them."""
    size, count, step = np.broadcast_arrays(
        np.asarray(size_bytes, dtype=float), np.asarray(members), np.asarray(stride)
    )
    return size, _topology(where).group(count, step)


def group_bandwidth(where: Where, size: ArrayLike, stride: ArrayLike = 1) -> Array:
    """Return the bytes per second one member of a group sends, each way.

    Args:
        where: machine or topology.
        size: members of a group.
        stride: distance between members: accelerators of the inner groups (tensor before data
            before pipeline).

    Returns:
        Rate of the slowest level that the group uses, shared with the groups of the same stride
        beside it. Infinite for groups of one.
    """
    return _topology(where).group(size, stride).slowest_bytes_per_s


def all_gather_s(
    where: Where,
    size_bytes: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    *,
    algorithm: AllGather | Literal["best"] = "best",
) -> Array:
    """Return the seconds of an all-gather or reduce-scatter.

    A ring passes (p - 1) / p of the bytes over each link in p - 1 messages. "halving-doubling"
    and "hierarchical" work level by level from the inside, with log p and p - 1 messages per level.

    Args:
        where: machine or topology.
        size_bytes: bytes of the whole.
        members: members of the group.
        stride: distance between members, as in `group_bandwidth`.
        algorithm: how; "best" takes the fastest for each size.

    Returns:
        Seconds, broadcast over the arguments.

    Raises:
        ConfigError: the algorithm is unknown.

    Source: Thakur et al. 2005 (ring, recursive doubling).
    """
    size, group = _broadcast(where, size_bytes, members, stride)
    if algorithm == "best":
        return np.min([_gather_s(group, size, name) for name in ALL_GATHERS], axis=0)
    if algorithm not in ALL_GATHERS:
        raise ConfigError(f"all-gather {algorithm!r} is not one of {', '.join(ALL_GATHERS)}, best")
    return _gather_s(group, size, algorithm)


def _gather_s(group: Group, size: Array, algorithm: AllGather) -> Array:
    """Time an all-gather by one algorithm."""
    if algorithm == "ring":
        share = (group.members - 1) / group.members
        return share * size / group.slowest_bytes_per_s + (_hops(group) * group.latency_s).sum(0)
    # Each unit gathers what its siblings hold: all of it but its own part passes its port.
    parts = group.parts
    seconds = ((parts - 1) / parts * size / group.bytes_per_s).sum(axis=0)
    messages = np.log2(parts) if algorithm == "halving-doubling" else parts - 1
    return seconds + (messages * group.latency_s).sum(axis=0)


def all_reduce_s(
    where: Where,
    size_bytes: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    *,
    algorithm: AllReduce | Literal["best"] = "best",
) -> Array:
    """Return the seconds of an all-reduce.

    Args:
        where: machine or topology; "host-staged" needs its rate to host memory.
        size_bytes: bytes that each member holds.
        members: members of the group.
        stride: distance between members, as in `group_bandwidth`.
        algorithm: how; "best" takes the fastest for each size among those on the accelerators'
            own links.

    Returns:
        Seconds, broadcast over the arguments.

    Raises:
        ConfigError: the algorithm is unknown, or the host's rate is.

    Source: Patarasuk and Yuan 2009 (ring), Sanders et al. 2009 (two trees), Thakur et al. 2005
        (halving and doubling), arXiv 2408.14158 (staged in host memory).
    """
    size, group = _broadcast(where, size_bytes, members, stride)
    if algorithm == "best":
        times = [
            _reduce_s(where, group, size, name) for name in ALL_REDUCES if name != "host-staged"
        ]
        return np.min(times, axis=0)
    return _reduce_s(where, group, size, algorithm)


def _reduce_s(where: Where, group: Group, size: Array, algorithm: AllReduce) -> Array:
    """Time an all-reduce by one algorithm."""
    if algorithm in ("ring", "halving-doubling", "hierarchical"):
        return 2 * _gather_s(group, size, algorithm)
    if algorithm in ("tree", "double-tree"):
        # A node of one tree takes in two children's bytes while its own go up, and the same down
        # again; of two trees each carries half, and the leaves of one are the nodes of the other.
        passes = 4 if algorithm == "tree" else 2
        waits = 2 * (np.ceil(np.log2(group.parts)) * group.latency_s).sum(axis=0)
        moved = np.where(group.members > 1, passes * size, 0.0)
        return moved / group.slowest_bytes_per_s + waits
    if algorithm == "host-staged":
        return _host_staged_s(_topology(where), group, size)
    raise ConfigError(f"all-reduce {algorithm!r} is not one of {', '.join(ALL_REDUCES)}, best")


def _host_staged_s(topology: Topology, group: Group, size: Array) -> Array:
    """Time a sum in host memory, by all that is known of the host."""
    if not (topology.host or topology.host_bytes_per_s):
        raise ConfigError(
            "a host-staged all-reduce needs the rate between accelerator and host memory",
            hint="give the accelerator's record host_link_bytes_per_s",
        )
    level = topology.levels[-1]
    return host_staged_s(
        topology.host or HostPath(link_bytes_per_s=topology.host_bytes_per_s),
        size,
        group.members,
        group.parts[-1],
        # One summed copy per host crosses the network: its accelerators do not share the port.
        port_bytes_per_s=level.bytes_per_s / level.oversubscription,
        latency_s=level.latency_s,
        efficiency=topology.efficiency,
    )


def best_all_reduce(
    where: Where, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> NDArray[np.str_]:
    """Name the fastest all-reduce for each size.

    Args:
        where: machine or topology.
        size_bytes: bytes that each member holds.
        members: members of the group.
        stride: distance between members, as in `group_bandwidth`.

    Returns:
        Names out of `ALL_REDUCES`, broadcast over the arguments; "host-staged" only where the
        host's rate is known.
    """
    known = bool(_topology(where).host or _topology(where).host_bytes_per_s)
    names: list[AllReduce] = [name for name in ALL_REDUCES if known or name != "host-staged"]
    times = [all_reduce_s(where, size_bytes, members, stride, algorithm=name) for name in names]
    return np.array(names)[np.argmin(times, axis=0)]


def all_to_all_s(
    where: Where, size_bytes: ArrayLike, members: ArrayLike, stride: ArrayLike = 1
) -> Array:
    """Return the seconds of an all-to-all with even shares.

    At each level a unit sends what its members have for members outside of it; the levels work at
    the same time, so the slowest binds.

    Args:
        where: machine or topology.
        size_bytes: bytes that each member sends to all members together, its own part included.
        members: members of the group.
        stride: distance between members, as in `group_bandwidth`.

    Returns:
        Seconds, broadcast over the arguments.
    """
    size, group = _broadcast(where, size_bytes, members, stride)
    below = np.cumprod(group.parts, axis=0) / group.parts
    outside = below * (1 - below / group.members)
    seconds = np.where(group.parts > 1, outside * size / group.bytes_per_s, 0.0)
    return seconds.max(axis=0) + group.longest_s


def _hops(group: Group) -> Array:
    """Count the messages of a ring's p - 1 that pass each level, [levels, *groups]."""
    units = np.cumprod(group.parts[::-1], axis=0)[::-1]
    return units - units / group.parts


def level_bytes(
    group: Group, size_bytes: ArrayLike, *, kind: Literal["gather", "exchange"] = "gather"
) -> Array:
    """Return the bytes that one member sends through each level on average.

    Args:
        group: groups on a topology.
        size_bytes: bytes of the whole that a ring gathers or scatters, or that each member sends
            in an exchange of all with all.
        kind: which of the two.

    Returns:
        Bytes, [levels, *groups]; an all-reduce sends twice what a gather does.
    """
    size: Any = np.asarray(size_bytes, dtype=float)
    if kind == "gather":
        return size * _hops(group) / group.members
    held = np.cumprod(group.parts, axis=0)
    return size * (held - held / group.parts) / group.members
