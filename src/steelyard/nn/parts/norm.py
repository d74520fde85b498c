"""Norms of the residual stream, and of query and key heads."""

from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture

__all__ = ["UnitOffsetNorm", "make_norm", "rms_norm"]


class UnitOffsetNorm(nn.RMSNorm):
    """An RMSNorm whose stored gain is less by 1, computed in float32 as the models that have it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed rows in the type of `x`."""
        # 1 plus a small gain in bfloat16 would round the gain away.
        gain = 1.0 + self.weight.float()
        return F.rms_norm(x.float(), self.normalized_shape, gain, self.eps).type_as(x)


def make_norm(arch: Architecture, width: int) -> nn.Module:
    """Make the architecture's norm over `width` values."""
    if arch.norm == "layernorm":
        return nn.LayerNorm(width, eps=arch.norm_eps)
    return rms_norm(arch, width)


def rms_norm(arch: Architecture, width: int) -> nn.RMSNorm:
    """Make an RMSNorm; queries and keys have one whatever the norm of the layer."""
    kind = UnitOffsetNorm if arch.unit_offset_norm else nn.RMSNorm
    return kind(width, eps=arch.norm_eps)
