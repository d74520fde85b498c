"""Writes models of random codes layer by layer: compressed-tensors' folders, and GGUF files."""

from pathlib import Path

import numpy as np
import torch

from steelyard.catalog import to_huggingface
from steelyard.catalog.architecture import Architecture
from steelyard.files import write_json
from steelyard.nn.gguf.families import stored_name
from steelyard.nn.mapped import write_tensors
from steelyard.nn.names import slots
from steelyard.nn.slot import Slot

__all__ = ["write_blocks", "write_coded"]

_GROUP = 128
_FORMATS = {4: "pack-quantized", 8: "int-quantized"}


def write_coded(folder: Path, arch: Architecture, bits: int) -> int:
    """Write a Llama with random codes; embeddings, norms and head are in bfloat16.

    One layer is held in memory at a time.

    Args:
        folder: where; made if missing.
        arch: its shape.
        bits: 4, in groups of 128 weights, or 8, with a scale per output.

    Returns:
        Bytes of all tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    layers: dict[str, list[Slot]] = {}
    for slot in slots(arch, "llama"):
        parts = slot.name.split(".")
        layers.setdefault(parts[1] if parts[0] == "layers" else "rest", []).append(slot)
    places, total = {}, 0
    for number, found in enumerate(layers.values(), 1):
        name = f"model-{number:05d}-of-{len(layers):05d}.safetensors"
        tensors: dict[str, torch.Tensor] = {}
        for slot in found:
            for part, rows in zip(slot.parts, slot.rows, strict=True):
                tensors |= _tensors(part, rows, slot.width, bits, generator)
        write_tensors(folder / name, tensors, {"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    write_json(folder / "model.safetensors.index.json", index)
    settings = {"quant_method": "compressed-tensors", "format": _FORMATS[bits]}
    write_json(
        folder / "config.json",
        to_huggingface(arch) | {"torch_dtype": "bfloat16", "quantization_config": settings},
    )
    return total


def _tensors(
    part: str, rows: int, columns: int, bits: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Draw the tensors of one stored weight."""
    if not part.endswith("_proj.weight"):
        shape = (rows, columns) if columns else (rows,)
        made = torch.randn(shape, generator=generator) * 0.02 if columns else torch.ones(shape)
        return {part: made.bfloat16()}
    module, spread = part.removesuffix("weight"), columns**-0.5
    if bits == 8:
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, generator=generator)
        scales = torch.full((rows, 1), spread / 73, dtype=torch.bfloat16)
        return {part: codes, f"{module}weight_scale": scales}
    low, high = -(2**31), 2**31
    words = torch.randint(low, high, (rows, columns // 8), dtype=torch.int32, generator=generator)
    return {
        f"{module}weight_packed": words,
        f"{module}weight_scale": torch.full(
            (rows, columns // _GROUP), spread / 4.6, dtype=torch.bfloat16
        ),
        f"{module}weight_shape": torch.tensor((rows, columns)),
    }


_SCALES = {"Q4_0": 1 / 4.6, "Q8_0": 1 / 74, "Q4_K": 1 / 150, "Q6_K": 1 / 1400}
"""Scale of a block of random codes that gives numbers of spread 1, about."""


def write_blocks(path: Path, arch: Architecture, name: str) -> int:
    """Write a GGUF file whose matrices are random blocks of a type, the table of tokens too.

    Args:
        path: the file.
        arch: shape of a Llama.
        name: one of `_SCALES`.

    Returns:
        Bytes of the file.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(arch.max_positions)
    writer.add_embedding_length(arch.hidden_size)
    writer.add_block_count(arch.num_layers)
    writer.add_feed_forward_length(arch.intermediate_size)
    writer.add_head_count(arch.num_heads)
    writer.add_head_count_kv(arch.num_kv_heads)
    writer.add_layer_norm_rms_eps(arch.norm_eps)
    generator, kind = np.random.default_rng(0), gguf.GGMLQuantizationType[name]
    length, size = gguf.GGML_QUANT_SIZES[kind]
    # Q6_K ends with its scale; behind that of Q4_K stands the scale of its minimums.
    first, count = (size - 2, 1) if name == "Q6_K" else (0, 2 if name == "Q4_K" else 1)
    for slot in slots(arch, "llama"):
        for part, rows in zip(slot.parts, slot.rows, strict=True):
            if not slot.width:
                writer.add_tensor(stored_name(part, arch), np.ones(rows, dtype=np.float32))
                continue
            raw = generator.integers(0, 256, (rows, slot.width // length, size), dtype=np.uint8)
            scale = np.array([slot.width**-0.5 * _SCALES[name]] * count, dtype=np.float16)
            raw[..., first : first + 2 * count] = scale.view(np.uint8)
            writer.add_tensor(stored_name(part, arch), raw.reshape(rows, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size
