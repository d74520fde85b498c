"""Layers of codes as the tensors and settings that compressed-tensors names."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.mapped import Weights
from steelyard.nn.numerics.int4 import pack_nibbles
from steelyard.nn.numerics.int8 import Int8Rows
from steelyard.nn.quantized.folder import PackedModules
from steelyard.nn.quantizing.layer import Record
from steelyard.nn.slot import Slot

__all__ = ["fill_layer", "layer_tensors", "quantization_config"]


def layer_tensors(
    layer: DecoderLayer, codes: dict[str, Record], slots: list[Slot], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the tensors of a layer by the names under which they are stored.

    Args:
        layer: layer in float32, with the parameters that are stored as they are.
        codes: codes of the matrices that are not, by name.
        slots: the layer's parameters, by their names in the layer.
        dtype: type of what is stored as it is, and of scales of int8 rows.

    Returns:
        Contiguous tensors.

    Source: compressed-tensors (github.com/vllm-project/compressed-tensors), format
        "pack-quantized".
    """
    found: dict[str, Tensor] = {}
    for slot in slots:
        record = codes.get(slot.name.removesuffix(".weight"))
        first = 0
        for part, rows in zip(slot.parts, slot.rows, strict=True):
            chosen = slice(first, first + rows)
            first += rows
            if record is None:
                found[part] = layer.get_parameter(slot.name)[chosen].to(dtype).contiguous()
                continue
            module = part.removesuffix("weight")
            found |= {module + end: item for end, item in _packed(record, chosen, dtype).items()}
    return found


def _packed(record: Record, rows: slice, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of some rows of a record by the ends of their names."""
    if isinstance(record, Int8Rows):
        codes = record.codes[rows]
        # Codes are stored from 0 on: the sign bit turns.
        words = (codes.view(torch.uint8) ^ 128).contiguous()
        scales, zeros, width = record.scales[rows, None].to(dtype), None, codes.shape[1]
    else:
        words, width = record.packed[rows], record.width
        scales = record.scales[rows]
        zeros = None if record.zeros is None else record.zeros[rows]
    found = {
        "weight_packed": _words(words),
        "weight_scale": scales.contiguous(),
        "weight_shape": torch.tensor([len(words), width]),
    }
    if zeros is not None:
        # Zero points are packed along outputs.
        even = F.pad(zeros.T, (0, len(zeros) % 2))
        found["weight_zero_point"] = _words(pack_nibbles(even)).T.contiguous()
    return found


def _words(octets: Tensor) -> Tensor:
    """Return rows of bytes as words of four, int32 [rows, words], filled up with zeros."""
    even = F.pad(octets, (0, -octets.shape[1] % 4))
    # A single row passes for contiguous whatever its strides; a copy has plain ones.
    return even.clone(memory_format=torch.contiguous_format).view(torch.int32)


def fill_layer(layer: DecoderLayer, slots: list[Slot], path: Path) -> None:
    """Copy into a layer the weights that its stored tensors stand for, as the loader reads them.

    Args:
        layer: layer in float32; it is changed in place.
        slots: the layer's parameters, by their names in the layer.
        path: safetensors file of what `layer_tensors` returned.
    """
    weights = Weights(path.parent, path.name, "")
    packed = PackedModules(weights, "compressed-tensors", {}, path.parent)
    with torch.no_grad():
        for slot in slots:
            parts = [
                packed.read(part) if part in packed.entries else weights.files[part].read(part)
                for part in slot.parts
            ]
            layer.get_parameter(slot.name).copy_(torch.cat(parts))


def quantization_config(modules: dict[str, tuple[int, int]], zero_points: bool) -> dict[str, Any]:
    """Return the settings that tell a reader how modules are stored.

    Args:
        modules: bits and group of each linear module of the model but its head, by its stored name;
            0 bits for those that are stored as they are, group 0 for a scale per output.
        zero_points: whether int4 groups have zero points.

    Returns:
        `quantization_config` of `config.json`.
    """
    schemes = sorted({scheme for scheme in modules.values() if scheme[0]})
    is_one = len(schemes) == 1
    groups = {
        f"group_{index}": {
            "targets": ["Linear"]
            if is_one
            else [name for name, found in modules.items() if found == scheme],
            "weights": _scheme(*scheme, zero_points),
            "input_activations": None,
            "output_activations": None,
        }
        for index, scheme in enumerate(schemes)
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ["lm_head", *(name for name, (bits, _) in modules.items() if not bits)],
        "kv_cache_scheme": None,
    }


def _scheme(bits: int, group: int, zero_points: bool) -> dict[str, Any]:
    """Return how the weights of a group of modules are stored."""
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": bits == 8 or not zero_points,
        "strategy": "group" if group else "channel",
        "group_size": group or None,
        "dynamic": False,
    }
