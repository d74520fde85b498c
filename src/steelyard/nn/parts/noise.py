"""Random draws within layers, which a trainer can repeat: no global generator is used."""

import zlib

import torch
from torch import Tensor, nn

__all__ = ["Noise", "drop_path", "reseed"]


class Noise(nn.Module):
    """A source of random numbers of one layer, on the CPU, so that devices draw alike."""

    def __init__(self) -> None:
        """Begin with seed 0."""
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)

    def reseed(self, seed: int) -> None:
        """Begin anew.

        Args:
            seed: any whole number of 64 bits.
        """
        self._generator.manual_seed(seed)

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        """Draw numbers in [0, 1).

        Args:
            *shape: shape of the result.
            device: device of the result.

        Returns:
            float32.
        """
        return torch.rand(*shape, generator=self._generator).to(device)


def reseed(model: nn.Module, seed: int) -> None:
    """Set all random draws of a model's layers.

    Called before each forward pass in training with a seed that follows from run and step, it makes
    a resumed run draw what the interrupted one would have drawn.

    Args:
        model: any module; one without `Noise` is left alone.
        seed: seed of the noise, at least 0.
    """
    for name, module in model.named_modules():
        if isinstance(module, Noise):
            module.reseed(zlib.crc32(f"{seed} {name}".encode()))


def drop_path(update: Tensor, probability: float, noise: Noise) -> Tensor:
    """Leave out what a layer adds to some sequences, and add more to the others.

    Args:
        update: [B, ...], added to the residual stream of each sequence.
        probability: probability of leaving a sequence out, in [0, 1).
        noise: where the draws come from.

    Returns:
        The update with the same expectation.

    Source: Huang et al. 2016 (arXiv 1603.09382), section 3.
    """
    shape = (len(update),) + (1,) * (update.ndim - 1)
    kept = noise.uniform(*shape, device=update.device) >= probability
    return update * (kept / (1 - probability)).to(update.dtype)
