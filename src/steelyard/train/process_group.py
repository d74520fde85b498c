"""Processes of torch.distributed that share each step, with sums of equal bits in each."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steelyard.errors import BackendError, ConfigError
from steelyard.train.reducer import AloneReducer, Reducer

__all__ = ["GroupReducer", "launched"]


class GroupReducer:
    """Sums gradients by recursive halving and doubling; neighbours first, as `GradientTree` does.

    Attributes:
        rank: number of this process, from 0.
        world_size: processes, a power of two.
        sent_bytes: bytes of gradients sent so far.

    Source: Goyal et al. 2017 (arXiv 1706.02677), section 4.1: 2 (p - 1) / p of the gradients are
        sent by each of p processes, in 2 log2 p messages.
    """

    def __init__(self) -> None:
        """Join the default group, which must have been made.

        Raises:
            ConfigError: the processes are no power of two.
        """
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.sent_bytes = 0
        if self.world_size & (self.world_size - 1):
            raise ConfigError(
                f"{self.world_size} processes cannot share a step: sums are made pair by pair",
                hint="start 2, 4, 8 or another power of two",
            )

    def sum_gradients(self, parameters: Sequence[nn.Parameter], /) -> None:
        """Leave in each `grad` the sum over all processes."""
        device = parameters[0].device
        present = torch.tensor([item.grad is not None for item in parameters], device=device).int()
        dist.all_reduce(present, dist.ReduceOp.MAX)
        chosen = [item for item, there in zip(parameters, present.tolist(), strict=True) if there]
        if not chosen:
            return
        parts = [torch.zeros_like(item) if item.grad is None else item.grad for item in chosen]
        sizes = [part.numel() for part in parts]
        padding = -sum(sizes) % self.world_size
        flat = torch.cat([part.flatten() for part in parts] + [parts[0].new_zeros(padding)])
        self._sum(flat)
        for item, total in zip(chosen, flat.split([*sizes, padding]), strict=False):
            item.grad = total.view_as(item)

    def _sum(self, flat: Tensor) -> None:
        """Sum a vector, whose length is a multiple of the processes, over all of them."""
        held = flat
        # Halving: of what a pair still holds, each keeps and sums one half. The pairs are first
        # neighbours, then their pairs: every element is added in the same order.
        halves: list[tuple[int, Tensor, Tensor]] = []
        distance = 1
        while distance < self.world_size:
            low, high = held.chunk(2)
            mine, other = (high, low) if self.rank & distance else (low, high)
            mine += self._exchange(other, mine, self.rank ^ distance)
            halves.append((self.rank ^ distance, mine, other))
            held, distance = mine, 2 * distance
        # Doubling: the way back, with finished sums.
        for peer, mine, other in reversed(halves):
            other.copy_(self._exchange(mine, other, peer))

    def _exchange(self, outgoing: Tensor, like: Tensor, peer: int) -> Tensor:
        """Send a tensor to a process and return what it sends, of the shape of `like`."""
        incoming = torch.empty_like(like)
        requests = [dist.isend(outgoing, peer), dist.irecv(incoming, peer)]
        for request in requests:
            assert request is not None
            request.wait()
        self.sent_bytes += outgoing.numel() * outgoing.element_size()
        return incoming

    def gather(self, values: Tensor, /) -> Tensor:
        """Return the values [n] of all processes by rank, [world_size * n]."""
        found = [torch.empty_like(values) for _ in range(self.world_size)]
        dist.all_gather(found, values)
        return torch.cat(found)

    def wait(self) -> None:
        """Return when every process has come here."""
        dist.barrier()


@contextmanager
def launched() -> Iterator[Reducer]:
    """Join the processes that a launcher such as torchrun started with this one.

    Yields:
        A reducer over them; the one for a process alone where there is no launcher.

    Raises:
        BackendError: the other processes were not reached.
        ConfigError: their number is no power of two.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield AloneReducer()
        return
    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        raise BackendError(
            f"the processes of this run do not reach one another: {error}",
            hint="start them with torchrun --nproc-per-node 2 -m steelyard train run ...",
        ) from error
    try:
        yield GroupReducer()
    finally:
        dist.destroy_process_group()
