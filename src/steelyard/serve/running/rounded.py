"""Linear maps that round as the packed products do, in plain PyTorch: the reference of those."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.nn.numerics.bf16 import to_bf16
from steelyard.nn.numerics.int8 import quantize_int8
from steelyard.nn.stored import Codes
from steelyard.serve.running.sources import Source, as_codes, as_numbers
from steelyard.serve.running.weights import ComputedIn

__all__ = ["RoundedLinear"]


class RoundedLinear(nn.Module):
    """A linear map of float32 rows, weights and rows rounded as a type rounds them.

    Attributes:
        num_bytes: bytes of the weights, which stand here in float32.
    """

    def __init__(self, weight: Source, bias: Tensor | None, kind: ComputedIn) -> None:
        """Round a weight.

        Args:
            weight: [N, K]: numbers, or codes, whose own type counts.
            bias: [N], or None.
            kind: type of the product.
        """
        super().__init__()
        if isinstance(weight, Codes) or kind in ("int8", "int4"):
            self._weight = as_codes(weight, kind).dequantize()
        else:
            wide = as_numbers(weight, torch.float32)
            self._weight = wide if kind == "fp32" else to_bf16(wide).float()
        self._kind = kind
        self._bias = None if bias is None else bias.detach().float()
        self.num_bytes = self._weight.nbytes

    def forward(self, rows: Tensor) -> Tensor:
        """Return [..., N] of rows [..., K], float32."""
        flat = rows.float().flatten(0, -2)
        if self._kind == "bf16":
            flat = to_bf16(flat).float()
        elif self._kind != "fp32":
            flat = quantize_int8(flat).dequantize()
        return F.linear(flat, self._weight, self._bias).unflatten(0, rows.shape[:-1])
