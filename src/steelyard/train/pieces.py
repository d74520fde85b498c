"""Parts of tensors as processes hold them, and whole tensors from parts."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from steelyard.errors import DataError

__all__ = ["TensorPiece", "assemble", "read_places", "rows_of", "write_places"]

_LEAST_BYTES = 64 * 1024
_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A box of a tensor.

    Attributes:
        name: name of the tensor.
        values: contents of the box.
        offset: where it begins along each axis.
        shape: shape of the whole tensor.
    """

    name: str
    values: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    """Where a piece lies, as a shard's header tells it."""

    name: str
    offset: list[int]
    shape: list[int]


def rows_of(tensors: Mapping[str, Tensor], rank: int, world_size: int) -> list[TensorPiece]:
    """Return what one of several processes with equal tensors writes: an equal part of the rows.

    Args:
        tensors: tensors by name; those of less than 64 KiB, and those of the history, whose times
            differ from process to process, are the first process's.
        rank: number of the process.
        world_size: processes.

    Returns:
        Views of the tensors.
    """
    pieces = []
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        is_small = tensor.numel() * tensor.element_size() < _LEAST_BYTES
        if is_small or name.startswith("history.") or shape[0] < world_size:
            if not rank:
                pieces.append(TensorPiece(name, tensor, (0,) * len(shape), shape))
            continue
        parts = tensor.tensor_split(world_size)
        first = sum(len(part) for part in parts[:rank])
        pieces.append(TensorPiece(name, parts[rank], (first, *[0] * (len(shape) - 1)), shape))
    return pieces


def write_places(pieces: Iterable[TensorPiece]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return pieces as a safetensors file takes them.

    Args:
        pieces: any number of each tensor.

    Returns:
        Contents by key, contiguous, and the header's fields.
    """
    tensors, places = {}, {}
    for number, piece in enumerate(pieces):
        tensors[str(number)] = piece.values.contiguous()
        places[str(number)] = _Place(piece.name, list(piece.offset), list(piece.shape))
    return tensors, {"places": msgspec.json.encode(places).decode()}


def read_places(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> list[TensorPiece]:
    """Return the pieces of a file.

    Args:
        tensors: contents by key.
        header: the header's fields.

    Returns:
        What `write_places` was given.

    Raises:
        DataError: the header does not tell where the contents belong.
    """
    try:
        places = msgspec.json.decode(header.get("places", ""), type=dict[str, _Place])
    except msgspec.DecodeError as error:
        raise DataError(f"its header does not tell where its tensors belong: {error}") from error
    if places.keys() != tensors.keys():
        raise DataError("its header tells of other tensors than it holds")
    pieces = []
    for key, place in places.items():
        values = tensors[key]
        fits = len(place.offset) == len(place.shape) == values.ndim <= _MOST_AXES and all(
            0 <= first <= first + size <= whole
            for first, size, whole in zip(place.offset, values.shape, place.shape, strict=True)
        )
        if not fits:
            raise DataError(f"a part of {place.name} lies outside of it")
        pieces.append(TensorPiece(place.name, values, tuple(place.offset), tuple(place.shape)))
    return pieces


def assemble(pieces: Iterable[TensorPiece]) -> dict[str, Tensor]:
    """Put pieces together.

    Args:
        pieces: pieces of all tensors, in any order.

    Returns:
        Whole tensors by name.

    Raises:
        DataError: pieces of a tensor overlap, leave a hole, or contradict each other.
    """
    by_name: dict[str, list[TensorPiece]] = {}
    for piece in pieces:
        by_name.setdefault(piece.name, []).append(piece)
    return {name: _joined(name, parts) for name, parts in by_name.items()}


def _joined(name: str, parts: list[TensorPiece]) -> Tensor:
    """Put the pieces of one tensor together."""
    shape, dtype = parts[0].shape, parts[0].values.dtype
    boxes = [
        tuple(
            (first, first + size)
            for first, size in zip(part.offset, part.values.shape, strict=True)
        )
        for part in parts
    ]
    overlap = any(
        all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one, other, strict=True))
        for one, other in itertools.combinations(boxes, 2)
    )
    same = all(part.shape == shape and part.values.dtype == dtype for part in parts)
    # The sizes are compared before any memory is taken: a header cannot ask for more than there is.
    if overlap or not same or sum(part.values.numel() for part in parts) != math.prod(shape):
        raise DataError(f"the parts of {name} do not make up a tensor of shape {shape}")
    if len(parts) == 1:
        return parts[0].values
    whole = torch.empty(shape, dtype=dtype)
    for part, box in zip(parts, boxes, strict=True):
        whole[tuple(slice(*side) for side in box)] = part.values
    return whole
