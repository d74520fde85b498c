"""Messages from process to process, counted, and as slow as an emulated link."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from steelyard.errors import BackendError
from steelyard.train.transport.shaper import Shaper

__all__ = ["GroupTransport", "Transport"]


class Transport(Protocol):
    """Carries tensors between processes that take part in the same exchange.

    Tensors are contiguous; those of no elements are not sent. Both sides know the size.

    Attributes:
        rank: number of this process, from 0.
        world_size: processes.
        sent_bytes: bytes this process has sent.
        sent_messages: messages it has sent.
    """

    rank: int
    world_size: int
    sent_bytes: int
    sent_messages: int

    def send(self, values: Tensor, peer: int, /) -> None:
        """Send a tensor to a process; return when its memory may be changed."""
        ...

    def receive(self, values: Tensor, peer: int, /) -> None:
        """Fill a tensor with what a process sends."""
        ...

    def swap(self, outgoing: Tensor, to: int, incoming: Tensor, source: int, /) -> None:
        """Send one tensor and receive another at the same time."""
        ...

    def sum_built_in(self, values: Tensor, /) -> None:
        """Leave in a tensor the sum over all processes, by the library's own all-reduce."""
        ...


class GroupTransport:
    """Messages over a group of torch.distributed.

    Attributes:
        rank: number of this process in the group, from 0.
        world_size: processes of the group.
        sent_bytes: bytes this process has sent; of the built-in all-reduce what the bandwidth-
            optimal one sends, as the library does not tell.
        sent_messages: messages it has sent, of the built-in all-reduce those of a ring.
        shaper: emulates a slower link; None sends as fast as it goes.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, shaper: Shaper | None = None
    ) -> None:
        """Join a group, which must have been made.

        Args:
            group: the processes; the default group when left out.
            shaper: emulates a slower link.
        """
        self._group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.sent_bytes = self.sent_messages = 0
        self.shaper = shaper

    def send(self, values: Tensor, peer: int, /) -> None:
        """Send a tensor to a process; return when its memory may be changed."""
        if values.numel():
            self._count(values.numel() * values.element_size())
            with reaching_others():
                dist.send(values, group=self._group, group_dst=peer)

    def receive(self, values: Tensor, peer: int, /) -> None:
        """Fill a tensor with what a process sends."""
        if values.numel():
            with reaching_others():
                dist.recv(values, group=self._group, group_src=peer)

    def swap(self, outgoing: Tensor, to: int, incoming: Tensor, source: int, /) -> None:
        """Send one tensor and receive another at the same time."""
        if outgoing.numel():
            self._count(outgoing.numel() * outgoing.element_size())
        with reaching_others():
            requests = [
                dist.isend(outgoing, group=self._group, group_dst=to) if outgoing.numel() else None,
                dist.irecv(incoming, group=self._group, group_src=source)
                if incoming.numel()
                else None,
            ]
            for request in filter(None, requests):
                request.wait()

    def sum_built_in(self, values: Tensor, /) -> None:
        """Leave in a tensor the sum over all processes, by gloo or NCCL."""
        steps = 2 * (self.world_size - 1)
        num_bytes = values.numel() * values.element_size()
        self._count(steps * num_bytes // self.world_size, steps)
        with reaching_others():
            dist.all_reduce(values, group=self._group)

    def _count(self, num_bytes: int, messages: int = 1) -> None:
        """Count what is about to be sent, and wait until an emulated link has carried it."""
        self.sent_bytes += num_bytes
        self.sent_messages += messages
        if self.shaper is not None:
            self.shaper.hold(num_bytes, messages)


@contextmanager
def reaching_others() -> Iterator[None]:
    """Say plainly that another process is gone, where a message fails.

    Yields:
        Nothing.

    Raises:
        BackendError: a message was not sent or did not come.
    """
    try:
        yield
    except RuntimeError as error:
        # What gloo adds after its first sentence is for its own developers.
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise BackendError(
            f"another process of this run was lost: {reason}",
            hint="start the same line again: the run goes on from its newest checkpoint",
        ) from error
