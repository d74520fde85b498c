"""Loads the model of a GGUF file."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import DataError
from steelyard.nn.gguf.architecture import has_turned_heads, read_architecture, stored_name
from steelyard.nn.gguf.blocks import unpack
from steelyard.nn.gguf.header import GgufHeader, read_header
from steelyard.nn.gguf.kinds import TensorKind
from steelyard.nn.gguf.scaling import FACTORS, read_scaling
from steelyard.nn.mapped import DTYPES, Entry, MappedFile
from steelyard.nn.names import Slot, slots
from steelyard.nn.transformer import Transformer
from steelyard.parallel import torch_threads

__all__ = ["load_gguf", "read_rows"]

_CHUNK_WEIGHTS = 2**19
"""Weights unpacked at once: their codes and float32 values stay in a processor's cache."""


def load_gguf(
    path: Path, *, dtype: torch.dtype | None = torch.float32, device: torch.device | str = "cpu"
) -> Transformer:
    """Load the model of a GGUF file; tensors are turned into numbers one after another.

    Tensors that are stored as plain numbers of `dtype` are views of the file where they stand
    alone and in our order, so that memory holds them once.

    Args:
        path: path of the file.
        dtype: type of all parameters; None for the plain type that most of the stored bytes have,
            bfloat16 where most are quantized.
        device: device of all parameters.

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
    file = _mapped(header)
    heads = (arch.num_heads, arch.num_kv_heads)
    # The steps of unpacking last microseconds: several threads would spend more time waiting for
    # each other, seconds of it on a busy machine.
    with torch.no_grad(), torch_threads(1):
        model = Transformer(arch, read_scaling(header, _divisors(header, file, arch.head_dim)))
        model.load_state_dict(
            {slot.name: _parameter(slot, header, file, kept, heads) for slot in found}, assign=True
        )
    return model.to(device=device).eval()


def read_rows(raw: Tensor, kind: TensorKind) -> Tensor:
    """Turn stored rows into numbers.

    Args:
        raw: uint8 [rows, bytes].
        kind: type of the tensor.

    Returns:
        [rows, columns], of the stored type where it is a plain one, else float32.
    """
    if kind.name in DTYPES:
        return raw.contiguous().view(DTYPES[kind.name])
    return unpack(raw, kind).dequantize()


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


def _parameter(
    slot: Slot, header: GgufHeader, file: MappedFile, dtype: torch.dtype, heads: tuple[int, int]
) -> Tensor:
    """Return one parameter of ours: a view of the file where possible, else made anew."""
    names = [stored_name(part) for part in slot.parts]
    kinds = {header.tensors[name].kind.name for name in names}
    in_order = not any(has_turned_heads(header, name) for name in names)
    if in_order and kinds <= DTYPES.keys() and all(DTYPES[kind] == dtype for kind in kinds):
        view = file.view(names)
        if view is not None:
            return view
    made = torch.empty((sum(slot.rows), slot.width) if slot.width else sum(slot.rows), dtype=dtype)
    for name, target in zip(names, made.split(slot.rows), strict=True):
        turned = heads[".attn_k." in name] if has_turned_heads(header, name) else 0
        _fill(target, file.raw(name), header.tensors[name].kind, turned)
        # Without this, memory would hold the file's pages and what is made of them at once.
        file.release(name)
    return made


def _fill(target: Tensor, raw: Tensor, kind: TensorKind, heads: int) -> None:
    """Write a tensor's numbers, some rows at a time, into their place.

    Args:
        target: [rows, columns] or [rows].
        raw: uint8, the stored bytes.
        kind: stored type.
        heads: heads whose halves alternate from row to row in the file; 0 for none.
    """
    rows = raw.view(target.shape[0], -1) if target.ndim == 2 or heads else raw.view(1, -1)
    out = target.view(rows.shape[0], -1)
    order = _order(rows.shape[0], heads)
    step = max(1, _CHUNK_WEIGHTS // out.shape[1])
    for start in range(0, rows.shape[0], step):
        stop = start + step
        taken = rows[start:stop] if order is None else rows[order[start:stop]]
        out[start:stop].copy_(read_rows(taken, kind))


def _order(rows: int, heads: int) -> Tensor | None:
    """Return which stored row stands at each of ours: the even rows of a head, then the odd."""
    if not heads:
        return None
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()
