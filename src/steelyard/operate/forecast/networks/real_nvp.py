"""A normalizing flow of affine couplings: one dense law of several numbers, exact both ways."""

import torch
from torch import Tensor, nn

__all__ = ["RealNVP"]


class _Coupling(nn.Module):
    """Shifts and stretches some of the numbers by what the others are."""

    mask: Tensor

    def __init__(self, mask: Tensor, width: int, context: int) -> None:
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)
        self.stretch = _network(len(mask), width, context)
        self.shift = _network(len(mask), width, context)

    def moves(self, values: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-stretch and shift [B, D], 0 for the numbers that are read."""
        read = torch.cat((values * self.mask, context), -1)
        # The tangent holds every stretch within [1/e, e], so no layer alone can explode.
        return (1 - self.mask) * self.stretch(read).tanh(), (1 - self.mask) * self.shift(read)


def _network(size: int, width: int, context: int) -> nn.Sequential:
    """Make a map of three layers that begins at 0: an untrained flow changes nothing."""
    last = nn.Linear(width, size)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        nn.Linear(size + context, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        last,
    )


class RealNVP(nn.Module):
    """An invertible map of D numbers, steered by a context.

    Attributes:
        couplings: the layers, in the order of `forward`.

    Source: Dinh et al. 2017 (arXiv 1605.08803), section 3; two blocks of two couplings with
        alternating masks as in Luo et al. 2024 (arXiv 2408.01000).
    """

    def __init__(self, size: int, width: int, context: int, *, blocks: int = 2) -> None:
        """Lay out the couplings; weights are drawn from torch's generator.

        Args:
            size: numbers D, at least 2: a coupling moves some by what the others are.
            width: width of the maps within a coupling.
            context: numbers that every coupling reads besides.
            blocks: pairs of couplings.
        """
        super().__init__()
        assert size >= 2
        even = (torch.arange(size) % 2).float()
        masks = (even, 1 - even) * blocks
        self.couplings = nn.ModuleList(_Coupling(mask, width, context) for mask in masks)

    def forward(self, base: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Map from the base law to the data's.

        Args:
            base: [B, D].
            context: [B, C].

        Returns:
            Values [B, D], and the logarithm of the determinant of their derivative [B].
        """
        total = base.new_zeros(len(base))
        for layer in self.couplings:
            stretch, shift = layer.moves(base, context)  # pyright: ignore[reportCallIssue]
            base = base * stretch.exp() + shift
            total = total + stretch.sum(-1)
        return base, total

    def inverse(self, values: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Map from the data's law to the base.

        Args:
            values: [B, D].
            context: [B, C].

        Returns:
            Base [B, D], and the logarithm of the determinant of its derivative [B].
        """
        total = values.new_zeros(len(values))
        for layer in reversed(self.couplings):
            stretch, shift = layer.moves(values, context)  # pyright: ignore[reportCallIssue]
            values = (values - shift) * (-stretch).exp()
            total = total - stretch.sum(-1)
        return values, total
