"""A linear map whose three matrix products take eight-bit floats."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.nn.fp8.hardware import multiplies_codes, scaled_product
from steelyard.nn.fp8.recipes import Recipe, Role
from steelyard.nn.fp8.scaled import ScaledCodes, quantize
from steelyard.nn.numerics.floats import E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, FloatFormat
from steelyard.nn.numerics.fp8 import MAX_SCALE_BIAS

__all__ = ["FNUZ", "OCP", "Float8Linear", "Formats", "Observer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Formats:
    """Formats of the three tensors that a linear map's products take.

    Attributes:
        input: format of what the map is applied to.
        weight: format of its weights.
        gradient: format of its results' gradients, which need range more than precision.
    """

    input: FloatFormat = E4M3
    weight: FloatFormat = E4M3
    gradient: FloatFormat = E5M2


OCP = Formats()
"""Formats of NVIDIA, Arm and Intel."""
FNUZ = Formats(input=E4M3FNUZ, weight=E4M3FNUZ, gradient=E5M2FNUZ)
"""Formats of Graphcore, AMD and Qualcomm."""

Observer = Callable[[str, Role, Tensor, ScaledCodes], None]
"""Takes the layer's name, the role of a tensor, the tensor before its cast and its codes."""


class Float8Linear(nn.Linear):
    """A linear map that casts inputs, weights and gradients to eight bits before its products.

    Master weights, the bias, sums and results keep their types: results are unscaled before the
    bias is added. On the CPU products are emulated: bfloat16 and float32 hold every number of the
    formats, so that only the order of sums differs from hardware. The backward pass takes the codes
    of the forward one, so that a byte per input is kept for it. In inference (`eval`, without
    gradients) weights are cast once, until they change.

    Attributes:
        recipe: how scaling biases are chosen.
        formats: formats of the three tensors.
        name: where the layer stands in its model, for errors and observers.
        observer: called after each cast, or None.
    """

    def __init__(
        self, inner: nn.Linear, recipe: Recipe, *, formats: Formats = OCP, name: str = "linear"
    ) -> None:
        """Take over a linear map's parameters: the same objects, so that optimizers keep them.

        Args:
            inner: the map.
            recipe: how scaling biases are chosen.
            formats: formats of the three tensors.
            name: where the layer stands in its model.
        """
        # The constructor of nn.Linear would make parameters of its own.
        nn.Module.__init__(self)
        self.in_features, self.out_features = inner.in_features, inner.out_features
        self.weight, self.bias = inner.weight, inner.bias
        self.recipe, self.formats, self.name = recipe, formats, name
        self.observer: Observer | None = None
        self._kept: tuple[tuple[int, int, torch.dtype], ScaledCodes, Tensor] | None = None
        self._scalers = {
            role: recipe.scaler(role, fmt, f"{name}.{role}") for role, fmt in self._roles().items()
        }
        self.train(inner.training)

    def _roles(self) -> dict[Role, FloatFormat]:
        """Return the format of each role."""
        formats = self.formats
        return {
            "input": formats.input,
            "weight": formats.weight,
            "gradient": formats.gradient,
        }

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map.

        Args:
            x: floating point [..., K].

        Returns:
            [..., O] in the type of `x`, or that of autocast inside of it.

        Raises:
            ConfigError: `x` or the weights hold NaN or infinity and the recipe looks at them.
        """
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        rows = x.reshape(-1, x.shape[-1])
        keep = not self.training and not torch.is_grad_enabled()
        y: Any = _Float8Product.apply(rows, self.weight, self, dtype, keep)
        if self.bias is not None:
            y = y + self.bias.to(dtype)
        return y.view(*x.shape[:-1], self.out_features)

    def cast(self, role: Role, x: Tensor, dtype: torch.dtype) -> tuple[ScaledCodes, Tensor]:
        """Cast a tensor of this layer.

        Args:
            role: what it is.
            x: [N, K].
            dtype: type of the products.

        Returns:
            Codes, and the numbers that go into products.
        """
        fmt, width = self._roles()[role], x.shape[1]
        group = min(self.recipe.block or width, width)
        codes, numbers = quantize(x, fmt, self._scalers[role](x), group, dtype)
        if self.observer is not None:
            self.observer(self.name, role, x, codes)
        return codes, numbers

    def cast_weight(self, dtype: torch.dtype, keep: bool) -> tuple[ScaledCodes, Tensor]:
        """Cast the weights, or return those of an earlier cast.

        Args:
            dtype: type of the products.
            keep: whether a cast is kept until the weights change.

        Returns:
            Codes, and the numbers that go into products.
        """
        if not keep:
            self._kept = None
            return self.cast("weight", self.weight, dtype)
        # A change in place raises the version, a replaced tensor lies elsewhere.
        version = 0 if self.weight.is_inference() else self.weight._version
        key = (self.weight.data_ptr(), version, dtype)
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, *self.cast("weight", self.weight, dtype))
        return self._kept[1:]


class _Float8Product(torch.autograd.Function):
    """x W^T, and its two products of the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, layer: Float8Linear, dtype: torch.dtype, keep: bool
    ) -> Tensor:
        """Cast both sides, multiply, unscale."""
        left, x_numbers = layer.cast("input", x, dtype)
        right, w_numbers = layer.cast_weight(dtype, keep)
        ctx.save_for_backward(left.codes, left.biases, right.codes, right.biases)
        ctx.layer, ctx.dtype, ctx.types = layer, dtype, (x.dtype, weight.dtype)
        ctx.groups = (left.group, right.group)
        if multiplies_codes(left, right):
            return scaled_product(left, right, dtype)
        return _unscaled(x_numbers @ w_numbers.t(), left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Cast the gradient and multiply it with the codes of the forward pass."""
        codes, biases, weight_codes, weight_biases = ctx.saved_tensors
        formats, dtype = ctx.layer.formats, ctx.dtype
        gradient, numbers = ctx.layer.cast("gradient", gradients[0].contiguous(), dtype)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            weight = ScaledCodes(weight_codes, weight_biases, formats.weight, ctx.groups[1])
            grad_x = _product(gradient, numbers, weight, dtype).to(ctx.types[0])
        if ctx.needs_input_grad[1]:
            x = ScaledCodes(codes, biases, formats.input, ctx.groups[0])
            grad_weight = _product(_turned(gradient), numbers.t(), x, dtype).to(ctx.types[1])
        return grad_x, grad_weight, None, None, None


def _product(left: ScaledCodes, numbers: Tensor, right: ScaledCodes, dtype: torch.dtype) -> Tensor:
    """Return left [M, K] times right [K, N], unscaled; `numbers` are those of the left side."""
    if multiplies_codes(left, right):
        return scaled_product(left, _turned(right), dtype)
    return _unscaled(numbers @ right.numbers(dtype), left, right)


def _turned(side: ScaledCodes) -> ScaledCodes:
    """Return codes [K, N] as [N, K]; only biases of the whole matrix turn with them."""
    return ScaledCodes(side.codes.t(), side.biases, side.fmt, side.group)


def _unscaled(product: Tensor, *sides: ScaledCodes) -> Tensor:
    """Divide a product by the powers of two of those sides that are still scaled."""
    total = sum(int(side.biases) for side in sides if side.is_whole)
    # Two biases of one sign may be beyond what a power of two in float32 has.
    while total:
        part = max(-MAX_SCALE_BIAS, min(MAX_SCALE_BIAS, total))
        product = product.mul_(2.0**-part)
        total -= part
    return product
