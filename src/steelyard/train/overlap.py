"""Gradients that travel while the backward pass makes the next ones."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError
from steelyard.train.gradients import GradientTree

__all__ = ["OverlappedSum", "bucket_limit", "lay_out", "num_bytes", "pack", "unpack"]

_LEAST_BYTES, _MOST_BYTES = 256 * 1024, 25 * 1024 * 1024
_BUCKETS = 16

SumVector = Callable[[Tensor], None]
"""Leaves in a vector the sum over all processes; every process calls it for the same vectors in the
same order."""


class OverlappedSum:
    """Sums buckets of gradients in a thread of its own, each as soon as it is whole.

    Buckets hold gradients in the order in which the first process's first backward pass made them;
    until that is known in the reverse of the parameters' order. They travel in that order in every
    process. How gradients are laid into buckets changes no bit where the way to sum adds every
    element in the same order.

    Source: Goyal et al. 2017 (arXiv 1706.02677), section 4.1; Li et al. 2020 (arXiv 2006.15704),
        section 3.2 (buckets in ready order).
    """

    def __init__(self, tree: GradientTree, sum_vector: SumVector, *, is_first: bool) -> None:
        """Lay the parameters into buckets.

        Args:
            tree: sums the micro-batches of this process.
            sum_vector: sums over the processes.
            is_first: whether the order of this process counts; true in exactly one.
        """
        self._is_first = is_first
        self._tree = tree
        self._sum_vector = sum_vector
        self._thread = ThreadPoolExecutor(1, "gradients")
        self._is_agreed = False
        self._lay(list(reversed(range(len(tree.parameters)))))

    def is_for(self, tree: GradientTree) -> bool:
        """Whether it was made for a tree."""
        return tree is self._tree

    @contextmanager
    def around_backward(self) -> Iterator[None]:
        """Surround the last backward pass of a step; gradients are sums over all when it ends.

        Yields:
            Nothing.

        Raises:
            ConfigError: a parameter was given its gradient twice.
            BackendError: another process was lost.
        """
        self._missing = [len(bucket) for bucket in self._buckets]
        self._seen: dict[int, None] = {}
        self._sums: list[Future[Tensor]] = []
        hooks = [
            item.register_post_accumulate_grad_hook(partial(self._take, index))
            for index, item in enumerate(self._tree.parameters)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self._finish()

    def _lay(self, order: Sequence[int]) -> None:
        """Lay parameters into buckets, in this order."""
        parameters = self._tree.parameters
        self._buckets = lay_out(parameters, order, bucket_limit(parameters))
        self._place = {
            index: number for number, bucket in enumerate(self._buckets) for index in bucket
        }

    def _take(self, index: int, parameter: nn.Parameter) -> None:
        """Note that a gradient is there; begin to sum the buckets that are whole."""
        if index in self._seen:
            raise ConfigError(
                f"a parameter of shape {tuple(parameter.shape)} was given its gradient twice in "
                f"one backward pass, so it cannot be summed during the pass",
                hint="set parallel.overlap = false",
            )
        self._seen[index] = None
        self._missing[self._place[index]] -= 1
        while len(self._sums) < len(self._buckets) and not self._missing[len(self._sums)]:
            self._begin()

    def _begin(self) -> None:
        """Begin to sum the next bucket."""
        self._sums.append(self._thread.submit(self._sum, self._buckets[len(self._sums)]))

    def _sum(self, bucket: list[int]) -> Tensor:
        """Sum one bucket over micro-batches and processes."""
        parameters = [self._tree.parameters[index] for index in bucket]
        values = pack(parameters, [self._tree.take(index) for index in bucket])
        self._sum_vector(values)
        return values

    def _finish(self) -> None:
        """Sum the buckets that were not whole, as some gradients did not come; store the sums."""
        while len(self._sums) < len(self._buckets):
            self._begin()
        for bucket, values in zip(self._buckets, self._sums, strict=True):
            unpack([self._tree.parameters[index] for index in bucket], values.result())
        self._tree.forget()
        if not self._is_agreed:
            self._agree()

    def _agree(self) -> None:
        """Lay the buckets anew, in the order in which the first process saw the gradients."""
        count = len(self._tree.parameters)
        rest = (index for index in reversed(range(count)) if index not in self._seen)
        order = torch.tensor([*self._seen, *rest])
        # All processes share a sum and nothing else: those but the first add nothing.
        order *= self._is_first
        self._sum_vector(order)
        self._lay(order.tolist())
        self._is_agreed = True


def bucket_limit(parameters: Sequence[nn.Parameter]) -> int:
    """Return the bytes of a bucket: a sixteenth of all gradients, from 256 KiB to 25 MiB.

    Args:
        parameters: those that are trained.

    Returns:
        Bytes; less would leave latency to be waited for, more would leave the last one uncovered.
    """
    return min(max(num_bytes(parameters) // _BUCKETS, _LEAST_BYTES), _MOST_BYTES)


def lay_out(
    parameters: Sequence[nn.Parameter], order: Sequence[int], limit_bytes: int
) -> list[list[int]]:
    """Cut an order of parameters into buckets.

    Args:
        parameters: those that are trained.
        order: their numbers.
        limit_bytes: most bytes of a bucket; a larger parameter has a bucket of its own.

    Returns:
        Numbers of the parameters of each bucket, which have one type and one device.
    """
    buckets: list[list[int]] = []
    held, kind = 0, None
    for index in order:
        item = parameters[index]
        if kind != (item.dtype, item.device) or held + num_bytes([item]) > limit_bytes:
            buckets.append([])
            held, kind = 0, (item.dtype, item.device)
        buckets[-1].append(index)
        held += num_bytes([item])
    return buckets


def num_bytes(parameters: Sequence[nn.Parameter]) -> int:
    """Return the bytes that the gradients of parameters have."""
    return sum(item.numel() * item.element_size() for item in parameters)


def pack(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> Tensor:
    """Return gradients as one vector, which ends with a 1 for each that is there."""
    parts = [
        torch.zeros_like(item) if gradient is None else gradient
        for item, gradient in zip(parameters, gradients, strict=True)
    ]
    there = parts[0].new_tensor([float(gradient is not None) for gradient in gradients])
    return torch.cat([*(part.flatten() for part in parts), there])


def unpack(parameters: Sequence[nn.Parameter], values: Tensor) -> None:
    """Put the sum of what `pack` returned into each `grad`; None where no process had one."""
    sizes = [item.numel() for item in parameters]
    *parts, there = values.split([*sizes, len(parameters)])
    for item, part, count in zip(parameters, parts, there.tolist(), strict=True):
        item.grad = part.view_as(item) if count else None
