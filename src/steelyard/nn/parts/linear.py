"""Linear maps that are filled later."""

from torch import nn

__all__ = ["linear"]


class _Unfilled(nn.Linear):
    """A linear map that draws nothing from the global generator when it is made.

    `skip_init` reaches the same over the meta device, for which torch imports its compiler: five
    seconds at the start of every process.
    """

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


def linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """Make a linear map whose memory is not yet filled."""
    # torch's own constructor would draw weights from the global generator and change its state.
    return _Unfilled(inputs, outputs, bias=bias)
