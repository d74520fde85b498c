"""One parameter of a model and the stored tensors it is made of."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.nn.mapped import DTYPES, Weights
from steelyard.nn.stored import StoredMatrix

__all__ = ["Slot", "copied", "matrices", "split", "stored_shape", "view_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One parameter of ours and the stored tensors it is made of.

    Attributes:
        name: name in `Transformer.state_dict()`.
        parts: stored names, stacked row after row.
        rows: rows of each part.
        width: columns, 0 for a vector.
        transposed: stored with inputs as rows (GPT-2's Conv1D), so that parts lie side by side.
        experts: matrices of equally many rows that the parameter holds, 0 for one that has no such
            axis.
    """

    name: str
    parts: tuple[str, ...]
    rows: tuple[int, ...]
    width: int = 0
    transposed: bool = False
    experts: int = 0

    @property
    def is_matrix(self) -> bool:
        """Whether it is a linear map's, those of experts, or the table of tokens."""
        is_other = self.name.startswith("position_embedding") or ".router." in self.name
        return self.width > 0 and not is_other

    def dtype(self, model: torch.dtype) -> torch.dtype:
        """Return the type it is kept in: that of the model, but for what steers a choice."""
        # Biases of experts differ by less than the steps of 16 bits.
        return torch.float32 if self.name.endswith("router.bias") else model

    def shaped(self, rows: Tensor) -> Tensor:
        """Return stacked rows in the shape of the parameter."""
        return rows.unflatten(0, (self.experts, -1)) if self.experts else rows


def view_of(slot: Slot, weights: Weights, dtype: torch.dtype) -> Tensor | None:
    """Return a parameter as a view of the map.

    Args:
        slot: the parameter.
        weights: the files.
        dtype: type of the model.

    Returns:
        The parameter; None where its parts do not lie there as it needs them.
    """
    same = all(DTYPES[weights.entry(part).dtype] == slot.dtype(dtype) for part in slot.parts)
    found = weights.view(slot.parts) if same and not slot.transposed else None
    return None if found is None else slot.shaped(found)


def copied(slot: Slot, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return a parameter, copied from its parts.

    Args:
        slot: the parameter.
        weights: the files.
        dtype: type of the model.

    Returns:
        The parameter.
    """
    shape = (sum(slot.rows), slot.width) if slot.width else (sum(slot.rows),)
    made = torch.empty(shape, dtype=slot.dtype(dtype))
    for part, target in zip(slot.parts, made.split(slot.rows), strict=True):
        file = weights.files[part]
        tensor = file.read(part)
        target.copy_(tensor.T if slot.transposed else tensor)
        # Without this, memory would hold the file's pages and the copies of all parts at once.
        file.release(part)
    return slot.shaped(made)


def matrices(slot: Slot, weights: Weights) -> tuple[StoredMatrix, ...]:
    """Return the parts of a parameter, to be read later.

    Args:
        slot: the parameter.
        weights: the files.

    Returns:
        One matrix of each part.
    """
    return tuple(
        weights.files[part].matrix(part, transposed=slot.transposed) for part in slot.parts
    )


def stored_shape(slot: Slot, rows: int) -> tuple[int, ...]:
    """Return the shape in which a part is stored.

    Args:
        slot: the parameter.
        rows: rows of the part.

    Returns:
        Sizes as the file has them.
    """
    if not slot.width:
        return (rows,)
    return (slot.width, rows) if slot.transposed else (rows, slot.width)


def split(slot: Slot, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Return the parts in which a parameter is stored.

    Args:
        slot: the parameter.
        tensor: its value.

    Yields:
        Name and value of each part, contiguous.
    """
    rows = tensor.flatten(0, 1) if slot.experts else tensor
    for part, piece in zip(slot.parts, rows.split(slot.rows), strict=True):
        yield part, (piece.T if slot.transposed else piece).contiguous()
