"""Watches the casts of FP8 layers: biases, ranges and what rounding loses, tensor by tensor."""

import math
from collections import Counter
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor, nn

from steelyard.errors import ConfigError
from steelyard.nn.fp8.convert import fp8_layers
from steelyard.nn.fp8.recipes import Role
from steelyard.nn.fp8.scaled import ScaledCodes, spread_factors
from steelyard.nn.numerics.fp8 import power_of_two

__all__ = ["CastRecord", "Monitor", "sqnr_db"]


@dataclass(frozen=True, slots=True)
class CastRecord:
    """One cast of one tensor.

    Attributes:
        step: step that the monitor counts.
        layer: name of the layer.
        role: what the tensor is in it.
        bias: scaling bias; of several the mean.
        amax: largest absolute value.
        underflow_fraction: part of the numbers other than 0 that became 0.
        saturated_fraction: part of the numbers other than 0 that lay beyond the largest.
        sqnr_db: signal over the noise of rounding, decibels; infinite where nothing was lost, NaN
            for a tensor of zeros.
    """

    step: int
    layer: str
    role: Role
    bias: float
    amax: float
    underflow_fraction: float
    saturated_fraction: float
    sqnr_db: float


class Monitor:
    """Records the casts of a model while it is entered.

    It decodes every cast it looks at, so a step with it takes about twice as long: look at every
    tenth or hundredth.

    Attributes:
        records: casts in the order in which they happened.
        step: number of the current step.
    """

    def __init__(self, model: nn.Module, *, every: int = 1) -> None:
        """Choose what is watched.

        Args:
            model: one that `convert` changed.
            every: steps from one that is recorded to the next.

        Raises:
            ConfigError: the model has no FP8 layer, or `every` is below 1.
        """
        self._layers = fp8_layers(model)
        if not self._layers or every < 1:
            raise ConfigError(
                f"a monitor of {len(self._layers)} FP8 layers at every {every} steps",
                hint="convert the model first, and look at every first step or fewer",
            )
        self._every = every
        self.records: list[CastRecord] = []
        self.step = 0

    def __enter__(self) -> "Monitor":
        """Begin to record."""
        for layer in self._layers:
            layer.observer = self._observe
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record no more."""
        for layer in self._layers:
            layer.observer = None

    def advance(self) -> None:
        """Count a step: what is cast from now on belongs to the next."""
        self.step += 1

    def biases(self, layer: str, role: Role) -> Counter[int]:
        """Count the biases that a tensor had over the steps, rounded where a cast had several.

        Args:
            layer: name of the layer.
            role: what the tensor is in it.

        Returns:
            Casts by bias.
        """
        return Counter(
            round(record.bias)
            for record in self.records
            if (record.layer, record.role) == (layer, role)
        )

    @torch.no_grad()
    def _observe(self, layer: str, role: Role, x: Tensor, codes: ScaledCodes) -> None:
        """Record one cast."""
        if self.step % self._every:
            return
        wide = x.detach().float()
        factors = power_of_two(codes.biases)
        scaled = wide.abs() * spread_factors(factors, codes.group, wide.shape[1])
        found = codes.dequantize()
        nonzero = wide != 0
        count = max(1, int(nonzero.sum()))
        self.records.append(
            CastRecord(
                step=self.step,
                layer=layer,
                role=role,
                bias=float(codes.biases.float().mean()),
                amax=float(wide.abs().max()),
                underflow_fraction=int((nonzero & (found == 0)).sum()) / count,
                saturated_fraction=int((scaled > codes.fmt.max).sum()) / count,
                sqnr_db=sqnr_db(wide, found),
            )
        )


def sqnr_db(wanted: Tensor, found: Tensor) -> float:
    """Return the signal over the noise of rounding.

    Args:
        wanted: numbers before rounding.
        found: numbers after it, of the same shape.

    Returns:
        10 log10 of the sum of squares over that of the errors, decibels; infinite without an error,
        NaN for zeros.
    """
    signal = float(wanted.double().square().sum())
    noise = float((wanted.double() - found.double()).square().sum())
    if signal == 0.0:
        return math.nan
    return 10 * math.log10(signal / noise) if noise else math.inf
