"""Sums over all processes, made of messages between pairs of them.

Every process ends with the same bits. `halving_doubling` and `tree` add neighbours first, then
neighbouring pairs, and so on: the order in which `train.gradients.GradientTree` adds the
micro-batches of a process, so that the number of processes changes no bit. `ring` adds each part in
an order of its own.

Source: Goyal et al. 2017 (arXiv 1706.02677), section 4.1; Patarasuk and Yuan 2009 (ring).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.train.transport.config import AllReduce
from steelyard.train.transport.link import Transport

__all__ = ["bytes_sent", "check_count", "halving_doubling", "ring", "sum_over", "tree"]


def ring(transport: Transport, values: Tensor) -> None:
    """Sum a vector in 2 (n - 1) messages of 1 / n of it, each to the next process.

    Args:
        transport: connects any number n of processes.
        values: [N], summed in place; every process sends 2 (n - 1) / n of its bytes.
    """
    count, rank = transport.world_size, transport.rank
    parts = values.tensor_split(count)
    to, source = (rank + 1) % count, (rank - 1) % count
    buffer = torch.empty_like(parts[0])
    for step in range(count - 1):
        own = parts[(rank - step - 1) % count]
        incoming = buffer[: len(own)]
        transport.swap(parts[(rank - step) % count], to, incoming, source)
        own += incoming
    # Each process now holds one finished part; they go around once more.
    for step in range(count - 1):
        finished, wanted = parts[(rank + 1 - step) % count], parts[(rank - step) % count]
        transport.swap(finished, to, wanted, source)


def halving_doubling(transport: Transport, values: Tensor) -> None:
    """Sum a vector in 2 log2 n messages: pairs halve what they still hold, then go back.

    Args:
        transport: connects n processes, a power of two.
        values: [N], summed in place; every process sends 2 (n - 1) / n of its bytes.
    """
    held, rank = values, transport.rank
    # Of what a pair still holds, each keeps and sums one half. The pairs are first neighbours, then
    # their pairs: every element is added in the same order.
    halves: list[tuple[int, Tensor, Tensor]] = []
    distance = 1
    while distance < transport.world_size:
        low, high = held.tensor_split(2)
        mine, other = (high, low) if rank & distance else (low, high)
        peer, incoming = rank ^ distance, torch.empty_like(mine)
        transport.swap(other, peer, incoming, peer)
        mine += incoming
        halves.append((peer, mine, other))
        held, distance = mine, 2 * distance
    # The way back, with finished sums.
    for peer, mine, other in reversed(halves):
        transport.swap(mine, peer, other, peer)


def tree(transport: Transport, values: Tensor) -> None:
    """Sum a vector up a binary tree to process 0 and send the sum down again.

    Few messages, which pays for short vectors; the whole vector passes over each edge twice.

    Args:
        transport: connects any number of processes.
        values: [N], summed in place.
    """
    rank, count = transport.rank, transport.world_size
    distance, buffer = 1, torch.empty_like(values)
    while distance < count and not rank & distance:
        if rank + distance < count:
            transport.receive(buffer, rank + distance)
            values += buffer
        distance *= 2
    if rank:
        transport.send(values, rank - distance)
        transport.receive(values, rank - distance)
    while distance > 1:
        distance //= 2
        if rank + distance < count:
            transport.send(values, rank + distance)


_BY_NAME: dict[AllReduce, Callable[[Transport, Tensor], None]] = {
    "halving-doubling": halving_doubling,
    "ring": ring,
    "tree": tree,
    "built-in": lambda transport, values: transport.sum_built_in(values),
}


def sum_over(transport: Transport, values: Tensor, how: AllReduce) -> None:
    """Leave in a vector the sum over all processes, the same bits in each.

    Args:
        transport: connects them.
        values: [N], contiguous.
        how: "halving-doubling", "ring", "tree", or "built-in" for the all-reduce of gloo or NCCL.
    """
    _BY_NAME[how](transport, values)


def check_count(how: AllReduce, world_size: int) -> None:
    """Refuse a number of processes that a way to sum cannot have.

    Args:
        how: the way.
        world_size: processes.

    Raises:
        ConfigError: it needs pairs of pairs, and they are no power of two.
    """
    if how == "halving-doubling" and world_size & (world_size - 1):
        raise ConfigError(
            f"{world_size} processes cannot share a step: sums are made pair by pair",
            hint="start 2, 4, 8 or another power of two, or set parallel.reduce = 'ring', whose "
            "last bits depend on the number of processes",
        )


def bytes_sent(how: AllReduce, num_bytes: float, world_size: int, rank: int = 0) -> float:
    """Return the bytes that a process sends to sum a vector.

    Args:
        how: the way to sum.
        num_bytes: bytes of the vector.
        world_size: processes.
        rank: number of the process; it matters for a tree alone.

    Returns:
        2 (n - 1) / n of the vector; in a tree once the vector up, except from process 0, and once
        down to each child.
    """
    if how != "tree":
        return 2 * (world_size - 1) / world_size * num_bytes
    # A process that sends up over distance d has children at distances below d.
    reach = rank & -rank if rank else world_size
    children = sum(rank + (1 << level) < world_size for level in range((reach - 1).bit_length()))
    return (children + (rank > 0)) * num_bytes
