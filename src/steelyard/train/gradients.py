"""The sum of a step's gradients in one fixed tree of micro-batches, whoever computes them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["GradientTree"]

_MOST_GROUPS = 4
"""Groups are what extra copies of the gradients are held for: one for 2, two for 4."""

_Gradients = list[Tensor | None]


class GradientTree:
    """Sums micro-batches in consecutive groups of equal size, and the groups pair by pair.

    A step of k micro-batches has 4 groups where 4 divides k, else 2 or 1. Inside a group gradients
    are added one after the other; then neighbouring groups are added, then neighbouring pairs. So
    1, 2 or 4 processes, each with the micro-batches of its groups, add the same numbers in the same
    order.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        accumulation: int,
        world_size: int = 1,
        *,
        in_one_group: bool = False,
    ) -> None:
        """Lay out the tree of one process.

        Args:
            parameters: those that are trained.
            accumulation: micro-batches of a step, over all processes.
            world_size: processes of a step; divides `accumulation`.
            in_one_group: add all micro-batches one after the other.
        """
        groups = 1
        while groups < _MOST_GROUPS and accumulation % (2 * groups) == 0 and not in_one_group:
            groups *= 2
        self.parameters = list(parameters)
        self.micro_batches = accumulation // world_size
        self.group_size = self.micro_batches // max(1, groups // world_size)
        self._ended = 0
        self._group: _Gradients | None = None
        self._sums: list[tuple[int, _Gradients]] = []

    def end_micro_batch(self, *, apart: bool) -> None:
        """Take the gradients of the micro-batch whose backward pass has ended.

        Args:
            apart: whether the next micro-batch must find no gradients, so that it leaves its own
                alone; the same throughout a step.
        """
        self._ended += 1
        is_group_whole = self._ended % self.group_size == 0
        # Where nothing has to be apart, autograd itself adds the next micro-batch to `grad`: the
        # same sum without a second copy.
        if self.group_size == self.micro_batches and not apart:
            return
        if not (is_group_whole or apart):
            return
        taken = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        self._group = taken if self._group is None else _add(self._group, taken)
        if is_group_whole:
            self._push(self._group)
            self._group = None

    def end_step(self) -> None:
        """Put the sum of the step into each parameter's `grad`."""
        self._ended = 0
        while self._sums:
            _, total = self._sums.pop()
            for parameter, gradient in zip(self.parameters, total, strict=True):
                parameter.grad = gradient

    def take(self, index: int) -> Tensor | None:
        """Return the sum of one parameter's gradients once its last micro-batch has left one.

        Other parameters may still be without theirs. `forget` must follow once all were taken.

        Args:
            index: number of the parameter.

        Returns:
            The sum that `end_step` would leave, or None where no micro-batch had a gradient.
        """
        total = self.parameters[index].grad
        for _, sums in reversed(self._sums):
            (total,) = _add([sums[index]], [total])
        return total

    def forget(self) -> None:
        """Drop the groups whose sums were taken; each `grad` now holds the sum of the step."""
        self._sums.clear()

    def _push(self, group: _Gradients) -> None:
        """Add a group's sum to the tree: like a carry in binary counting."""
        level = 0
        while self._sums and self._sums[-1][0] == level:
            group = _add(self._sums.pop()[1], group)
            level += 1
        self._sums.append((level, group))


def _add(left: _Gradients, right: _Gradients) -> _Gradients:
    """Add gradients in place of the left ones; one that is None counts as zero."""
    # Of gradients that are DTensors, each process adds what it holds.
    both = [
        (_held(one), _held(two))
        for one, two in zip(left, right, strict=True)
        if one is not None and two is not None
    ]
    if both:
        ones, twos = zip(*both, strict=True)
        torch._foreach_add_(ones, twos)  # pyright: ignore[reportPrivateImportUsage]
    return [two if one is None else one for one, two in zip(left, right, strict=True)]


def _held(gradient: Tensor) -> Tensor:
    """Return the memory that this process holds of a gradient."""
    return getattr(gradient, "to_local", lambda: gradient)()
