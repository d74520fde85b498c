"""Which part of a tensor a process holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.train.partition_rules import ParameterAxes, Rules, mesh_axes
from steelyard.train.pieces import TensorPiece

__all__ = ["Boxes"]


@dataclass(frozen=True, slots=True)
class Boxes:
    """How the parameters of one kind are cut, and this process's place in the mesh.

    A dimension in which matrices lie one after another, such as queries, keys and values, is cut
    over "model" matrix by matrix: a process holds the same heads of each.

    Attributes:
        axes: names and counts of the parameter's dimensions.
        cuts: mesh axis of each dimension, "" for none.
        places: this process's place along each axis of the mesh.
        mesh: processes along each.
    """

    axes: ParameterAxes
    cuts: tuple[str, ...]
    places: Mapping[str, int]
    mesh: Mapping[str, int]

    @classmethod
    def of(
        cls, axes: ParameterAxes, rules: Rules, places: Mapping[str, int], mesh: Mapping[str, int]
    ) -> "Boxes":
        """Apply rules to the axes of a parameter."""
        return cls(axes, mesh_axes(axes.names, rules), places, mesh)

    def dimension(self, mesh_axis: str) -> int | None:
        """Return the dimension that is cut over a mesh axis, or None."""
        return self.cuts.index(mesh_axis) if mesh_axis in self.cuts else None

    @property
    def copies(self) -> int:
        """Processes that hold the same part."""
        whole = 1
        for axis, size in self.mesh.items():
            whole *= 1 if axis in self.cuts else size
        return whole

    def cut(self, whole: Tensor, mesh_axis: str) -> Tensor:
        """Return what this process holds of a tensor that is whole along a mesh axis so far.

        Args:
            whole: tensor of the parameter's shape, or cut over another mesh axis.
            mesh_axis: "data" or "model".

        Returns:
            The part, contiguous; the tensor itself where it is not cut.
        """
        dim = self.dimension(mesh_axis)
        if dim is None:
            return whole
        size, place = self.mesh[mesh_axis], self.places[mesh_axis]
        if mesh_axis == "data":
            return whole.chunk(size, dim)[place].contiguous()
        parts = whole.split(self._sizes(dim, whole.shape[dim]), dim)
        return torch.cat([part.chunk(size, dim)[place] for part in parts], dim)

    def pieces(self, name: str, held: Tensor) -> Iterator[TensorPiece]:
        """Say where what this process holds lies in the whole, where it is the one to write it.

        Args:
            name: name of the tensor.
            held: what both cuts left of it.

        Yields:
            One piece, or one of each matrix; none where another process writes the same.
        """
        if any(place and axis not in self.cuts for axis, place in self.places.items()):
            return
        shape = tuple(
            side * (self.mesh[axis] if axis else 1)
            for side, axis in zip(held.shape, self.cuts, strict=True)
        )
        offset = [
            side * self.places[axis] if axis else 0
            for side, axis in zip(held.shape, self.cuts, strict=True)
        ]
        dim = self.dimension("model")
        if dim is None:
            yield TensorPiece(name, held, tuple(offset), shape)
            return
        sizes = self._sizes(dim, shape[dim])
        shares = [size // self.mesh["model"] for size in sizes]
        begin = 0
        for size, share, part in zip(sizes, shares, held.split(shares, dim), strict=True):
            offset[dim] = begin + share * self.places["model"]
            yield TensorPiece(name, part, tuple(offset), shape)
            begin += size

    def _sizes(self, dim: int, whole: int) -> list[int]:
        """Return the rows of the matrices that lie one after another in a dimension."""
        counts = self.axes.counts[dim]
        return [count * whole // sum(counts) for count in counts]
