"""The architecture a GGUF file describes."""

import dataclasses
from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.validate import validate_architecture
from steelyard.errors import ConfigError, DataError
from steelyard.nn.gguf.families import FAMILIES
from steelyard.nn.gguf.header import GgufHeader

__all__ = ["has_turned_heads", "read_architecture"]

_MOST_POSITIONS = 2**21
"""Bounds the tables of rotations, whose size nothing else in the file confirms."""


def read_architecture(header: GgufHeader) -> Architecture:
    """Make an architecture from a file's fields and the tensors it has.

    Args:
        header: header of the file.

    Returns:
        The architecture, named after the file.

    Raises:
        ConfigError: the family, or a trait of the model, is not supported.
        CatalogError: sizes contradict each other.
        DataError: a field is missing or of another type.
    """
    family = _family(header)
    plain = Architecture(name=header.path.stem, **_decoder_fields(header, family))
    validate_architecture(plain, where=str(header.path))
    _refuse_traits(header, family, plain.head_dim)
    arch = dataclasses.replace(plain, **FAMILIES[family].traits(header, plain))
    validate_architecture(arch, where=str(header.path))
    return arch


def _decoder_fields(header: GgufHeader, family: str) -> dict[str, Any]:
    """Read what all families have."""
    heads = _each_layer(header, f"{family}.attention.head_count")
    hidden = header.get(f"{family}.embedding_length", int)
    return {
        "hidden_size": hidden,
        "num_layers": _num_layers(header, family),
        "num_heads": heads,
        "num_kv_heads": _each_layer(header, f"{family}.attention.head_count_kv", heads),
        "head_dim": header.get(f"{family}.attention.key_length", int, hidden // max(heads, 1)),
        "intermediate_size": _each_layer(header, f"{family}.feed_forward_length"),
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "max_positions": _positions(header, family),
        "tied_embeddings": "output.weight" not in header.tensors,
        "qkv_bias": "blk.0.attn_q.bias" in header.tensors,
        "output_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
        "rope_theta": float(header.get(f"{family}.rope.freq_base", float, 10000.0)),
        "norm_eps": float(header.get(f"{family}.attention.layer_norm_rms_epsilon", float)),
    }


def has_turned_heads(header: GgufHeader, name: str) -> bool:
    """Whether rows of a query or key projection alternate between the halves of their heads.

    Llama's rotation pairs neighbouring rows in GGUF files, and rows half a head apart here.
    """
    turned = name.endswith((".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias"))
    return turned and FAMILIES[header.get("general.architecture", str)].is_turned


def _family(header: GgufHeader) -> str:
    """Return the model family, refusing those that cannot be built and files that are parts."""
    family = header.get("general.architecture", str)
    if family not in FAMILIES:
        raise ConfigError(
            f"{header.path}: architecture {family!r} cannot be loaded from GGUF",
            hint=f"architectures that can: {', '.join(FAMILIES)}",
        )
    if header.get("split.count", int, 0) > 1:
        raise ConfigError(
            f"{header.path} is one of {header.fields['split.count']} parts of a model",
            hint="join them with llama.cpp's `llama-gguf-split --merge`",
        )
    if "token_embd.weight" not in header.tensors:
        raise DataError(
            f"{header.path}: tensor token_embd.weight is missing",
            hint="give a file with a model's weights, not a vocabulary or an adapter",
        )
    return family


def _each_layer(header: GgufHeader, key: str, default: int | None = None) -> int:
    """Return a size that all layers share; files may also list it layer by layer."""
    value = header.fields.get(key)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        return int(value[0])
    if isinstance(value, np.ndarray):
        raise ConfigError(
            f"{header.path}: {key} differs from layer to layer",
            hint="models whose layers are alike can be loaded",
        )
    return header.get(key, int, default)


def _num_layers(header: GgufHeader, family: str) -> int:
    """Return the number of layers; each has tensors, so that there are fewer than those."""
    layers = header.get(f"{family}.block_count", int)
    if layers > len(header.tensors):
        raise DataError(
            f"{header.path}: {layers} layers, but {len(header.tensors)} tensors in all",
            hint="convert or fetch the model again",
        )
    return layers


def _positions(header: GgufHeader, family: str) -> int:
    """Return the longest sequence."""
    positions = header.get(f"{family}.context_length", int)
    if positions > _MOST_POSITIONS:
        raise DataError(
            f"{header.path}: context_length is {positions}, but may be at most {_MOST_POSITIONS}",
            hint="convert or fetch the model again",
        )
    return positions


def _refuse_traits(header: GgufHeader, family: str, head_dim: int) -> None:
    """Refuse what would load but compute something else."""
    get, prefix = header.get, f"{family}."
    wrong = {
        "mixture of experts": get(f"{prefix}expert_count", int, 0) > 0,
        "rotation of a part of each head": family != "phi3"
        and get(f"{prefix}rope.dimension_count", int, head_dim) != head_dim,
        "value heads of another width": get(f"{prefix}attention.value_length", int, head_dim)
        != head_dim,
        "attention to later tokens": not get(f"{prefix}attention.causal", bool, True),
    }
    found = [trait for trait, present in wrong.items() if present]
    if found:
        raise ConfigError(
            f"{header.path} cannot be loaded: {', '.join(found)}",
            hint="dense decoders of Llama's form can be loaded",
        )
