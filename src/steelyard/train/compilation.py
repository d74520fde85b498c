"""The forward and backward pass through torch.compile, where its compiler works."""

import warnings
from collections.abc import Callable

from torch import Tensor, nn

from steelyard.errors import SteelyardWarning
from steelyard.train.batches import Batch

__all__ = ["CompiledLoss"]


class CompiledLoss:
    """A loss that is compiled together with the modules it calls, at its first call.

    Losses agree with those of the loss itself to rounding: sums are made in another order. Two runs
    on one machine have equal bits.
    """

    def __init__(self, loss: Callable[[nn.Module, Batch], Tensor | tuple[Tensor, Tensor]]) -> None:
        """Compile nothing yet.

        Args:
            loss: what is compiled.
        """
        import torch
        import torch._inductor.config

        # Compiling in processes beside this one would leave them behind after a kill.
        torch._inductor.config.compile_threads = 1  # pyright: ignore[reportAttributeAccessIssue]
        self._loss = loss
        self._fast = torch.compile(loss, dynamic=False)

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return what the loss returns; compile failures are a warning, and the loss goes on."""
        from torch._dynamo.exc import TorchDynamoException

        if self._fast is None:
            return self._loss(module, batch)
        try:
            return self._fast(module, batch)
        except (TorchDynamoException, OSError) as error:
            self._fast = None
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            warnings.warn(
                f"torch.compile does not work here, the run goes on without it: {reason}",
                SteelyardWarning,
                stacklevel=2,
            )
            return self._loss(module, batch)
