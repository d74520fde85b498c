"""Recipes of scaling: how a tensor's power of two is chosen each time it is cast."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from steelyard.errors import ConfigError, require
from steelyard.nn.numerics.floats import FloatFormat
from steelyard.nn.numerics.fp8 import MAX_SCALE_BIAS, scale_bias
from steelyard.nn.numerics.groups import split_groups

__all__ = ["Amax", "Block", "ConstantBias", "Delayed", "PerRow", "Recipe", "Role", "Scaler"]

Role = Literal["input", "weight", "gradient"]
Scaler = Callable[[Tensor], Tensor]
"""Takes a tensor [N, K] and returns biases, int32 [1, 1] or [N, G]."""


class Recipe(Protocol):
    """A way to choose scaling biases."""

    @property
    def block(self) -> int:
        """Neighbours of a row that share a bias; 0 for at least the whole row."""
        ...

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return what chooses the biases of one tensor, with any memory it has of its own.

        Args:
            role: what the tensor is in its layer.
            fmt: format it is cast to.
            name: the tensor's name, for errors.

        Returns:
            Takes the tensor at each cast and returns its biases.
        """
        ...


@dataclass(frozen=True, slots=True)
class Amax:
    """One bias per tensor, from its largest absolute value at each cast.

    Attributes:
        margin: powers of two kept free above the largest value.

    Source: Perez et al. 2023 (arXiv 2309.17224) (FP8-AMAX).
    """

    margin: int = 0

    @property
    def block(self) -> int:
        """0: no blocks within a row."""
        return 0

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return a scaler without memory; it refuses NaN and infinity by the tensor's name."""

        def biases(x: Tensor) -> Tensor:
            return scale_bias(_amax(x, name), fmt, margin=self.margin)

        return biases


@dataclass(frozen=True, slots=True)
class ConstantBias:
    """One bias for all tensors of all layers: no pass over a tensor before its cast.

    Nothing looks at the numbers, so NaN goes on into the products and infinity saturates.

    Attributes:
        bias: exponent bias of weights and inputs.
        gradient_bias: exponent bias of gradients; None for the same.

    Source: Perez et al. 2023 (arXiv 2309.17224) (FP8-CSCALE).
    """

    bias: int
    gradient_bias: int | None = None

    def __post_init__(self) -> None:
        """Refuse biases that no power of two in float32 has.

        Raises:
            ConfigError: a bias is outside [-126, 126].
        """
        allowed = f"in [-{MAX_SCALE_BIAS}, {MAX_SCALE_BIAS}]"
        require(
            self,
            bias=(abs(self.bias) <= MAX_SCALE_BIAS, allowed),
            gradient_bias=(abs(self.gradient_bias or 0) <= MAX_SCALE_BIAS, allowed),
        )

    @property
    def block(self) -> int:
        """0: no blocks within a row."""
        return 0

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return a scaler that looks at nothing."""
        bias = self.bias
        if role == "gradient" and self.gradient_bias is not None:
            bias = self.gradient_bias
        return lambda x: torch.full((1, 1), bias, dtype=torch.int32, device=x.device)


@dataclass(frozen=True, slots=True)
class Delayed:
    """One bias per tensor, from the largest value of its casts before; the first from its own.

    What grew since saturates. The memory is not part of checkpoints: after a resume the first cast
    takes its own largest value.

    Attributes:
        history: casts that are remembered, at least 1.
        margin: powers of two kept free above.

    Source: Micikevicius et al. 2022 (arXiv 2209.05433); delayed
        scaling as in Transformer Engine, "Using FP8".
    """

    history: int = 16
    margin: int = 0

    def __post_init__(self) -> None:
        """Refuse an empty memory.

        Raises:
            ConfigError: the history is below 1.
        """
        require(self, history=(self.history >= 1, "at least 1"))

    @property
    def block(self) -> int:
        """0: no blocks within a row."""
        return 0

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return a scaler with a memory of its own."""
        return _DelayedScaler(self, fmt, name)


class _DelayedScaler:
    """The largest values of a tensor's last casts; a copy of a model gets memories of its own."""

    def __init__(self, recipe: Delayed, fmt: FloatFormat, name: str) -> None:
        self._recipe, self._fmt, self._name = recipe, fmt, name
        self._seen: deque[Tensor] = deque(maxlen=recipe.history)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the bias of what was seen before, and remember this tensor."""
        now = _amax(x, self._name)
        largest = torch.stack(tuple(self._seen)).amax(0) if self._seen else now
        self._seen.append(now)
        return scale_bias(largest, self._fmt, margin=self._recipe.margin)


@dataclass(frozen=True, slots=True)
class PerRow:
    """One bias per row: per token of inputs and gradients, per output of weights.

    A product over rows (both of the backward pass) takes the numbers unscaled, which bfloat16 and
    float32 hold exactly; hardware would cast a second time, along the other axis.

    Attributes:
        margin: powers of two kept free above.
    """

    margin: int = 0

    @property
    def block(self) -> int:
        """0: no blocks within a row."""
        return 0

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return a scaler without memory."""
        return lambda x: scale_bias(_group_amax(x, x.shape[1], name), fmt, margin=self.margin)


@dataclass(frozen=True, slots=True)
class Block:
    """One bias per so many neighbours of a row; products take the numbers unscaled.

    Attributes:
        block: numbers that share a bias, at least 1; the last block of a row may be shorter.
        margin: powers of two kept free above.

    Source: Rouhani et al. 2023 (arXiv 2310.10537) (blocks that share a power of two);
        128 as in DeepSeek-AI 2024 (arXiv 2412.19437), section 3.3.2.
    """

    block: int = 128
    margin: int = 0

    def __post_init__(self) -> None:
        """Refuse blocks of nothing.

        Raises:
            ConfigError: the block is below 1.
        """
        require(self, block=(self.block >= 1, "at least 1"))

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return a scaler without memory."""

        def biases(x: Tensor) -> Tensor:
            amax = _group_amax(x, min(self.block, x.shape[1]), name)
            return scale_bias(amax, fmt, margin=self.margin)

        return biases


def _amax(x: Tensor, name: str) -> Tensor:
    """Return the largest absolute value, float32 [1, 1]."""
    if not x.numel():  # such as an expert that got no token
        return torch.zeros(1, 1, device=x.device)
    # One pass without a copy of absolute values.
    low, high = torch.aminmax(x.detach())
    amax = torch.maximum(-low, high).float().view(1, 1)
    _refuse_infinite(amax, name)
    return amax


def _group_amax(x: Tensor, group: int, name: str) -> Tensor:
    """Return the largest absolute value of each group of each row, float32 [N, G]."""
    amax = split_groups(x.detach(), group).abs().amax(-1).float()
    _refuse_infinite(amax, name)
    return amax


def _refuse_infinite(amax: Tensor, name: str) -> None:
    """Refuse tensors whose largest absolute values are NaN or infinite.

    Elsewhere than on the CPU the question would wait for the device: there NaN goes on into the
    loss.
    """
    if amax.device.type == "cpu" and not torch.isfinite(amax).all():
        raise ConfigError(
            f"{name} holds NaN or infinite numbers and cannot be cast to FP8",
            hint="skip the step, lower the learning rate, or leave this layer in bf16",
        )
