"""Shapes of Llamas that speed is measured on; their weights are random."""

import dataclasses

from steelyard import catalog
from steelyard.catalog.architecture import Architecture

__all__ = ["SHAPES", "llama_shape"]

SHAPES = {
    "8x512": (8, 512, 1408, 4),
    "16x1024": (16, 1024, 2816, 8),
    "35M": (12, 448, 1216, 7),
    "10x640": (10, 640, 2048, 2),
}
"""Layers, width, inner width, and heads of keys and values, by name."""


def llama_shape(name: str) -> Architecture:
    """Return the shape of a Llama by its name in `SHAPES`, or "0.5B" for that of Qwen2.5."""
    if name == "0.5B":
        shape = catalog.architecture_by_name("qwen2.5-0.5b")
        return dataclasses.replace(shape, name=name, qkv_bias=False, max_positions=2048)
    layers, width, inner, kv_heads = SHAPES[name]
    return Architecture(
        name=name,
        hidden_size=width,
        num_layers=layers,
        num_heads=width // 64,
        num_kv_heads=kv_heads,
        head_dim=64,
        intermediate_size=inner,
        vocab_size=8192,
        max_positions=2048,
        tied_embeddings=False,
    )
