"""What collectives send: steps of flows that start together, each after the one before."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.network.flows import Flows

__all__ = [
    "CollectiveStep",
    "all_to_all",
    "double_binary_tree",
    "halving_doubling",
    "permutation",
    "ring_all_reduce",
    "rounds_all_to_all",
]


@dataclass(frozen=True)
class CollectiveStep:
    """Flows of one step.

    Attributes:
        flows: what is sent at once.
        repeat: times that the same step follows itself.
    """

    flows: Flows
    repeat: int = 1


def all_to_all(num_hosts: int, size_bytes: float) -> list[CollectiveStep]:
    """Return an all-to-all in which every host sends to all others at once.

    Args:
        num_hosts: hosts that take part, 0 to num_hosts - 1.
        size_bytes: bytes that each host holds; it sends 1 / num_hosts of them to each other.

    Returns:
        One step of num_hosts x (num_hosts - 1) flows.
    """
    _check(num_hosts, 2)
    source = np.repeat(np.arange(num_hosts), num_hosts - 1)
    ahead = np.tile(np.arange(1, num_hosts), num_hosts)
    return [CollectiveStep(Flows(source, (source + ahead) % num_hosts, size_bytes / num_hosts))]


def rounds_all_to_all(num_hosts: int, size_bytes: float) -> list[CollectiveStep]:
    """Return an all-to-all in rounds: in round k every host sends to the one k after it.

    Args:
        num_hosts: hosts that take part.
        size_bytes: bytes that each host holds.

    Returns:
        num_hosts - 1 steps of num_hosts flows.

    Source: Thakur et al. 2005 (pairwise exchange).
    """
    _check(num_hosts, 2)
    hosts = np.arange(num_hosts)
    return [
        CollectiveStep(Flows(hosts, (hosts + ahead) % num_hosts, size_bytes / num_hosts))
        for ahead in range(1, num_hosts)
    ]


def ring_all_reduce(num_hosts: int, size_bytes: float) -> list[CollectiveStep]:
    """Return a ring all-reduce: 2 (n - 1) equal steps in which each host sends to the next.

    Args:
        num_hosts: hosts that take part.
        size_bytes: bytes that each host holds.

    Returns:
        One step with its repeats.

    Source: Patarasuk and Yuan 2009.
    """
    _check(num_hosts, 2)
    hosts = np.arange(num_hosts)
    flows = Flows(hosts, (hosts + 1) % num_hosts, size_bytes / num_hosts)
    return [CollectiveStep(flows, repeat=2 * (num_hosts - 1))]


def halving_doubling(num_hosts: int, size_bytes: float) -> list[CollectiveStep]:
    """Return an all-reduce by recursive halving, then doubling.

    The reduce-scatter exchanges half of the bytes with the host at half the range, a quarter with
    that at a quarter, and so on; the all-gather goes the same way back.

    Args:
        num_hosts: hosts that take part, a power of 2.
        size_bytes: bytes that each host holds.

    Returns:
        2 log2(num_hosts) steps.

    Raises:
        ConfigError: the number of hosts is no power of 2.

    Source: Thakur et al. 2005 (Rabenseifner's algorithm).
    """
    _check(num_hosts, 2)
    if num_hosts & (num_hosts - 1):
        raise ConfigError(
            f"halving and doubling needs a power of 2 of hosts, but there are {num_hosts}",
            hint="take another collective, or a part of the hosts",
        )
    hosts = np.arange(num_hosts)
    distances = [num_hosts >> level for level in range(1, num_hosts.bit_length())]
    scatter = [
        CollectiveStep(Flows(hosts, hosts ^ distance, size_bytes * distance / num_hosts))
        for distance in distances
    ]
    return scatter + scatter[::-1]


def double_binary_tree(num_hosts: int, size_bytes: float) -> list[CollectiveStep]:
    """Return an all-reduce over two binary trees, pipelined: all their edges at once.

    Each tree carries half of the bytes, up and down; a host that is inside one tree is a leaf of
    the other.

    Args:
        num_hosts: hosts that take part.
        size_bytes: bytes that each host holds.

    Returns:
        One step: what the pipeline sends in its steady state.

    Source: Sanders, Speck and Träff 2009 (two-tree algorithms).
    """
    _check(num_hosts, 2)
    child, parent = _tree(num_hosts)
    # The other tree is the same one, its hosts moved on by one.
    ends = [(child, parent), ((child + 1) % num_hosts, (parent + 1) % num_hosts)]
    low = np.concatenate([item[0] for item in ends])
    high = np.concatenate([item[1] for item in ends])
    flows = Flows(np.concatenate([low, high]), np.concatenate([high, low]), size_bytes / 2)
    return [CollectiveStep(flows)]


def permutation(
    num_hosts: int, size_bytes: float, rng: np.random.Generator
) -> list[CollectiveStep]:
    """Return one step in which every host sends to one other host, drawn at random.

    Args:
        num_hosts: hosts that take part.
        size_bytes: bytes of each flow.
        rng: source of the draw.

    Returns:
        One step of num_hosts flows.
    """
    _check(num_hosts, 2)
    order = rng.permutation(num_hosts)
    # A cycle over all hosts in random order: nobody sends to itself.
    return [CollectiveStep(Flows(order, np.roll(order, 1), size_bytes))]


COLLECTIVES: dict[str, Callable[[int, float], list[CollectiveStep]]] = {
    "all-to-all": all_to_all,
    "all-to-all-rounds": rounds_all_to_all,
    "ring": ring_all_reduce,
    "halving-doubling": halving_doubling,
    "double-tree": double_binary_tree,
}
"""Collectives by the name that commands know them by."""


def _check(num_hosts: int, least: int) -> None:
    """Refuse a collective of too few hosts."""
    if num_hosts < least:
        raise ConfigError(f"a collective needs at least {least} hosts, but has {num_hosts}")


def _tree(num_hosts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return child and parent of each edge of a binary tree whose odd numbers are leaves.

    Of host h (numbered from 1) with lowest set bit b, the parent has lowest bit 2 b: it is h - b or
    h + b, and where that lies beyond the last host, h - b.
    """
    child, parent = [], []
    for number in range(1, num_hosts + 1):
        low = number & -number
        up = (number ^ low) | (low << 1)
        up = number ^ low if up > num_hosts else up
        if up:
            child.append(number - 1)
            parent.append(up - 1)
    return np.array(child), np.array(parent)
