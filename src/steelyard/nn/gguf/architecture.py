"""The architecture a GGUF file describes, and how its tensors are called and laid out."""

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.validate import validate_architecture
from steelyard.errors import ConfigError, DataError
from steelyard.nn.gguf.header import GgufHeader

__all__ = ["FAMILIES", "has_turned_heads", "read_architecture", "stored_name"]

FAMILIES = ("llama", "qwen2", "qwen3")
"""Values of `general.architecture` that can be loaded; Mistral's files say "llama" as well."""

_MOST_POSITIONS = 2**21
"""Bounds the tables of rotations, whose size nothing else in the file confirms."""

_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


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
    heads = _each_layer(header, f"{family}.attention.head_count")
    hidden = header.get(f"{family}.embedding_length", int)
    head_dim = header.get(f"{family}.attention.key_length", int, hidden // max(heads, 1))
    rows = header.tensors["token_embd.weight"].shape[0]
    _refuse_traits(header, family, head_dim)
    arch = Architecture(
        name=header.path.stem,
        hidden_size=hidden,
        num_layers=_num_layers(header, family),
        num_heads=heads,
        num_kv_heads=_each_layer(header, f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=_each_layer(header, f"{family}.feed_forward_length"),
        vocab_size=rows,
        max_positions=_positions(header, family),
        tied_embeddings="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_down.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        rope_theta=float(header.get(f"{family}.rope.freq_base", float, 10000.0)),
        norm_eps=float(header.get(f"{family}.attention.layer_norm_rms_epsilon", float)),
    )
    validate_architecture(arch, where=str(header.path))
    return arch


def stored_name(part: str) -> str:
    """Return the name in GGUF files of a tensor of a Hugging Face Llama, or the name itself."""
    module, _, kind = part.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{kind}"
    words = module.split(".", 3)
    if len(words) == 4 and words[3] in _INSIDE:
        return f"blk.{words[2]}.{_INSIDE[words[3]]}.{kind}"
    return part


def has_turned_heads(header: GgufHeader, name: str) -> bool:
    """Whether rows of a query or key projection alternate between the halves of their heads.

    Llama's rotation pairs neighbouring rows in GGUF files, and rows half a head apart here.
    """
    turned = name.endswith((".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias"))
    return turned and header.get("general.architecture", str) == "llama"


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
    """Return the longest sequence, within a sliding window if there is one."""
    positions = header.get(f"{family}.context_length", int)
    if positions > _MOST_POSITIONS:
        raise DataError(
            f"{header.path}: context_length is {positions}, but may be at most {_MOST_POSITIONS}",
            hint="convert or fetch the model again",
        )
    # Full attention and that within a window are the same up to the window.
    return min(positions, header.get(f"{family}.attention.sliding_window", int, 0) or positions)


def _refuse_traits(header: GgufHeader, family: str, head_dim: int) -> None:
    """Refuse what would load but compute something else."""
    get, prefix = header.get, f"{family}."
    wrong = {
        "mixture of experts": get(f"{prefix}expert_count", int, 0) > 0,
        "rotation of a part of each head": get(f"{prefix}rope.dimension_count", int, head_dim)
        != head_dim,
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
