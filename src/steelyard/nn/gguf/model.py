"""Loads the model of a GGUF file."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import DataError
from steelyard.nn.gguf.architecture import has_turned_heads, read_architecture, stored_name
from steelyard.nn.gguf.header import GgufHeader, read_header
from steelyard.nn.gguf.scaling import FACTORS, read_scaling
from steelyard.nn.gguf.tensor import StoredTensor
from steelyard.nn.hashes import identity_of
from steelyard.nn.mapped import DTYPES, Entry, MappedFile
from steelyard.nn.names import Slot, slots
from steelyard.nn.stored import keep_stored as place_stored
from steelyard.nn.transformer import Transformer
from steelyard.parallel import torch_threads

__all__ = ["load_gguf"]


def load_gguf(
    path: Path,
    *,
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
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
        keep_stored: for a model that is packed once, on the CPU: matrices that are no views of the
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
    found = slots(arch, "llama")
    _refuse_mismatch(header, found)
    kept = dtype or _main_dtype(header)
    if keep_stored and dtype is None and kept != torch.bfloat16:
        kept = torch.float32
    file = _mapped(header)
    heads = (arch.num_heads, arch.num_kv_heads)
    # The steps of unpacking last microseconds: several threads would spend more time waiting for
    # each other, seconds of it on a busy machine.
    with torch.no_grad(), torch_threads(1):
        model = Transformer(arch, read_scaling(header, _divisors(header, file, arch.head_dim)))
        state: dict[str, Tensor] = {}
        for slot in found:
            view = _view(slot, header, file, kept)
            if view is None and keep_stored and slot.is_matrix:
                parts = [
                    StoredTensor(file, header, stored_name(part), heads) for part in slot.parts
                ]
                place_stored(model, slot.name, tuple(part.matrix() for part in parts), kept)
            else:
                made = _copied(slot, header, file, kept, heads) if view is None else view
                state[slot.name] = made
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


def _divisors(header: GgufHeader, file: MappedFile, head_dim: int) -> np.ndarray | None:
    """Return the divisors of the rotary frequencies."""
    if FACTORS not in header.tensors:
        return None
    tensor = header.tensors[FACTORS]
    if tensor.kind.name != "F32" or tensor.shape != (head_dim // 2,):
        raise DataError(
            f"{header.path}: tensor {FACTORS} is {tensor.kind.name} {list(tensor.shape)}, not F32 "
            f"[{head_dim // 2}]",
            hint="convert or fetch the model again",
        )
    return file.read(FACTORS).numpy()


def _refuse_mismatch(header: GgufHeader, found: list[Slot]) -> None:
    """Refuse a file whose tensors are not just the model's, in number and shape."""
    wanted = {
        stored_name(part): (rows, slot.width) if slot.width else (rows,)
        for slot in found
        for part, rows in zip(slot.parts, slot.rows, strict=True)
    }
    hint = "its fields and its tensors must belong to the same model"
    missing = [name for name in wanted if name not in header.tensors]
    left = [name for name in header.tensors if name not in wanted and name != FACTORS]
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


def _view(slot: Slot, header: GgufHeader, file: MappedFile, dtype: torch.dtype) -> Tensor | None:
    """Return one parameter of ours as a view of the file, None where that is not possible."""
    names = [stored_name(part) for part in slot.parts]
    in_order = not any(has_turned_heads(header, name) for name in names)
    same = all(DTYPES.get(header.tensors[name].kind.name) == dtype for name in names)
    return file.view(names) if in_order and same else None


def _copied(
    slot: Slot, header: GgufHeader, file: MappedFile, dtype: torch.dtype, heads: tuple[int, int]
) -> Tensor:
    """Return one parameter of ours, made anew."""
    made = torch.empty((sum(slot.rows), slot.width) if slot.width else sum(slot.rows), dtype=dtype)
    for part, target in zip(slot.parts, made.split(slot.rows), strict=True):
        stored = StoredTensor(file, header, stored_name(part), heads)
        rows = target.view(stored.rows, -1)
        first = 0
        for found in stored.numbers():
            rows[first : first + len(found)] = found
            first += len(found)
        # Without this, memory would hold the file's pages and what is made of them at once.
        stored.release()
    return made
