"""Loads the model of a GGUF file."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.errors import DataError
from steelyard.nn.gguf.architecture import read_architecture
from steelyard.nn.gguf.families import FAMILIES, stored_name
from steelyard.nn.gguf.header import GgufHeader, read_header
from steelyard.nn.gguf.scaling import FACTORS, read_scaling
from steelyard.nn.gguf.tensor import StoredTensor
from steelyard.nn.hashes import identity_of
from steelyard.nn.mapped import DTYPES, Entry, MappedFile
from steelyard.nn.names import slots
from steelyard.nn.rotary_config import within_factors
from steelyard.nn.slot import Slot
from steelyard.nn.stored import keep_stored as place_stored
from steelyard.nn.transformer import Transformer
from steelyard.parallel import torch_threads

__all__ = ["load_gguf"]


def load_gguf(
    path: Path,
    *,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
    max_positions: int | None = None,
    keep_stored: bool = False,
) -> Transformer:
    """Load the model of a GGUF file; tensors are turned into numbers one after another.

    Tensors that are stored as plain numbers of `dtype` are views of the file where they stand
    alone and in our order, so that memory holds them once.

    Args:
        path: path of the file.
        dtype: type of all parameters; None for the plain type that most of the stored bytes have,
            bfloat16 where most are quantized.
        device: device of all parameters.
        max_positions: longest sequence that will be run, as for `checkpoint.load`.
        keep_stored: whether the model is packed once, on the CPU: matrices that are no views of the
            file stay there as `nn.stored` modules, with the codes they have.

    Returns:
        The model, in evaluation mode.

    Raises:
        DataError: the file is missing, truncated or malformed, or its tensors are not the model's;
            each is named.
        ConfigError: the model is of a family, or has a trait, that is not supported.
        CatalogError: its sizes contradict each other.
    """
    header = read_header(path)
    arch = read_architecture(header)
    found = slots(arch, FAMILIES[header.get("general.architecture", str)].form)
    _refuse_mismatch(header, found, arch)
    kept = dtype or _main_dtype(header)
    if keep_stored and dtype is None and kept != torch.bfloat16:
        kept = torch.float32
    file = _mapped(header)
    # The steps of unpacking last microseconds: several threads would spend more time waiting for
    # each other, seconds of it on a busy machine.
    with torch.no_grad(), torch_threads(1):
        factors = _factors(header, file, arch.rotary_dim or arch.head_dim)
        scaling = read_scaling(header, factors, arch.max_positions)
        arch = within_factors(arch, scaling, max_positions, str(path))
        model = Transformer(arch, scaling)
        state: dict[str, Tensor] = {}
        for slot in found:
            parts = [
                StoredTensor(file, header, stored_name(name, arch), arch) for name in slot.parts
            ]
            view = _view(parts, file, kept)
            if view is None and keep_stored and slot.is_matrix:
                place_stored(model, slot.name, tuple(part.matrix() for part in parts), kept)
            else:
                state[slot.name] = _copied(slot, parts, kept) if view is None else view
        model.load_state_dict(state, assign=True)
    model.identity = identity_of(path) if keep_stored else ""
    return model.to(device=device).eval()


def _mapped(header: GgufHeader) -> MappedFile:
    """Map the file."""
    entries = {
        name: Entry(tensor.kind.name, tensor.shape, tensor.start, tensor.stop)
        for name, tensor in header.tensors.items()
    }
    return MappedFile(header.path, entries)


def _factors(header: GgufHeader, file: MappedFile, width: int) -> dict[str, np.ndarray]:
    """Return what the tensors of the rotation hold."""
    found = {name: header.tensors[name] for name in FACTORS if name in header.tensors}
    for name, tensor in found.items():
        if tensor.kind.name != "F32" or tensor.shape != (width // 2,):
            raise DataError(
                f"{header.path}: tensor {name} is {tensor.kind.name} {list(tensor.shape)}, not F32 "
                f"[{width // 2}]",
                hint="convert or fetch the model again",
            )
    return {name: file.read(name).numpy() for name in found}


def _refuse_mismatch(header: GgufHeader, found: list[Slot], arch: Architecture) -> None:
    """Refuse a file whose tensors are not just the model's, in number and shape."""
    wanted = {
        stored_name(part, arch): (rows, slot.width) if slot.width else (rows,)
        for slot in found
        for part, rows in zip(slot.parts, slot.rows, strict=True)
    }
    hint = "its fields and its tensors must belong to the same model"
    missing = [name for name in wanted if name not in header.tensors]
    left = [name for name in header.tensors if name not in wanted and name not in FACTORS]
    for names, words in (
        (missing, "missing tensors"),
        (left, "tensors that the model does not have"),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            shown = ", ".join(names[:5]) + more
            raise DataError(f"{header.path}: {words}: {shown}", hint=hint)
    for name, shape in wanted.items():
        if header.tensors[name].shape != shape:
            message = (
                f"{header.path}: tensor {name} has shape {list(header.tensors[name].shape)}, but "
                f"its fields ask for {list(shape)}"
            )
            raise DataError(message, hint=hint)


def _main_dtype(header: GgufHeader) -> torch.dtype:
    """Return the plain type of most stored bytes, bfloat16 for quantized ones."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.kind.name] += tensor.stop - tensor.start
    return DTYPES.get(sizes.most_common(1)[0][0], torch.bfloat16)


def _view(parts: list[StoredTensor], file: MappedFile, dtype: torch.dtype) -> Tensor | None:
    """Return one parameter of ours as a view of the file, None where that is not possible."""
    return file.view([part.name for part in parts]) if all(p.holds(dtype) for p in parts) else None


def _copied(slot: Slot, parts: list[StoredTensor], dtype: torch.dtype) -> Tensor:
    """Return one parameter of ours, made anew."""
    made = torch.empty((sum(slot.rows), slot.width) if slot.width else sum(slot.rows), dtype=dtype)
    for part, target in zip(parts, made.split(slot.rows), strict=True):
        rows = target.view(part.rows, -1)
        first = 0
        for found in part.numbers():
            rows[first : first + len(found)] = found
            first += len(found)
        # Without this, memory would hold the file's pages and what is made of them at once.
        part.release()
    return made
