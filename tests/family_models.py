"""Folders of tiny models of every family, whose weights follow from the names of the tensors."""

import json
import zlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

_GOLDEN = Path(__file__).parent / "golden" / "transformers_logits.json"
"""What `transformers` computes; made by golden/_transformers_logits.py, which says how."""


def drawn(name: str, shape: list[int], gain: float) -> np.ndarray:
    """Return the tensor of a name: bits of a generator whose stream numpy never changes."""
    bits = np.random.PCG64(zlib.crc32(name.encode())).random_raw(int(np.prod(shape)))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).reshape(shape)
    is_gain = len(shape) == 1 and name.endswith("weight")
    return (uniform * 0.45 + (gain if is_gain else 0.0)).astype(np.float32)


def write_folder(entry: dict, folder: Path) -> Path:
    """Write a family's config.json and model.safetensors."""
    tensors = {name: drawn(name, shape, entry["gain"]) for name, shape in entry["shapes"].items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(entry["config"]))
    return folder


def golden() -> dict:
    """Return the stored results."""
    return json.loads(_GOLDEN.read_text())
