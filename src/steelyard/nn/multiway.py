"""Layers with two sets of weights, for two kinds of tokens that attend each other."""

from typing import cast

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.attention import Attend
from steelyard.nn.layer import DecoderLayer, Rotation, SideInputs

__all__ = ["MultiwayLayer"]


class MultiwayLayer(nn.Module):
    """Two layers that share one attention over all tokens.

    The first computes the tokens before `SideInputs.split`, the second the others.

    Attributes:
        branches: the two layers.

    Source: Wang et al. 2022 (arXiv 2208.10442), section 2.1; Ma et al. 2022 (arXiv 2211.13184).
    """

    def __init__(self, arch: Architecture, index: int, part: str = "decoder") -> None:
        """Lay out the parameters, not yet filled.

        Args:
            arch: what `nn.transformer` can build.
            index: place in the stack, from 0.
            part: "encoder" or "decoder".
        """
        super().__init__()
        self.index = index
        self.branches = nn.ModuleList(DecoderLayer(arch, index, part) for _ in range(2))

    def forward(
        self,
        hidden: Tensor,
        rotation: Rotation | None,
        attend: Attend,
        wanted: Tensor | None,
        sides: SideInputs,
    ) -> Tensor:
        """Apply the layer to whole sequences.

        Args:
            hidden: residual stream [B, T, C].
            rotation: rotation that `DecoderLayer` takes.
            attend: attention over this layer's queries, keys and values.
            wanted: None; rows of sequences cannot be left out.
            sides: where the sequences are split, and the rest.

        Returns:
            The new residual stream [B, T, C].
        """
        assert wanted is None
        length, split = hidden.shape[1], sides.split
        spans = [slice(0, split), slice(split, length)]
        branches = [cast(DecoderLayer, branch) for branch in self.branches]
        normed = [
            layer.before_attention(hidden[:, span])
            for layer, span in zip(branches, spans, strict=True)
        ]
        projected = [
            layer.project(rows, None if rotation is None else _rows(rotation, span))
            for layer, rows, span in zip(branches, normed, spans, strict=True)
        ]
        joint = (torch.cat(parts, dim=1) for parts in zip(*projected, strict=True))
        attended = attend(self.index, *joint)
        return torch.cat(
            [
                layer.after_attention(
                    hidden[:, span], rows, attended[:, span], _within(sides, span)
                )
                for layer, rows, span in zip(branches, normed, spans, strict=True)
            ],
            dim=1,
        )


def _rows(rotation: Rotation, span: slice) -> Rotation:
    """Return the rotation [T, H, R] of some positions."""
    return rotation[0][span], rotation[1][span]


def _within(sides: SideInputs, span: slice) -> SideInputs:
    """Return what the tokens of a span read besides."""
    tokens = None if sides.tokens is None else sides.tokens[:, span]
    return SideInputs(tokens, sides.memory, sides.split)
