"""Write architectures as the `config.json` of the Hugging Face model class of their shape."""

import dataclasses
import warnings
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.huggingface import from_huggingface
from steelyard.errors import CatalogError, SteelyardWarning

__all__ = ["to_huggingface"]


def to_huggingface(arch: Architecture) -> dict[str, Any]:
    """Return the `config.json` of the Hugging Face model class that has an architecture's shape.

    `from_huggingface` reads the same shape back. A plain SwiGLU decoder becomes a Llama.

    Args:
        arch: architecture to export.

    Returns:
        JSON values with `model_type` and `architectures`.

    Raises:
        CatalogError: no supported model class has this combination of traits.
    """
    kind, model_class = _class_of(arch)
    old = kind in ("gpt2", "opt", "bert", "t5")
    fields = _old_values(arch, kind) if old else _decoder_values(arch) | _moe_values(arch, kind)
    values = {
        "model_type": kind,
        "architectures": [model_class],
        "vocab_size": arch.vocab_size,
    } | fields
    values["tie_word_embeddings"] = arch.tied_embeddings
    # Reading the result back finds every trait that this class cannot hold.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        shape = from_huggingface(values)
    lost = [field.name for field in dataclasses.fields(arch) if _differs(arch, shape, field.name)]
    if lost:
        wrong = ", ".join(f"{name} = {getattr(arch, name)!r}" for name in lost)
        raise CatalogError(
            f"{arch.name}: no Hugging Face class of type {kind!r} has {wrong}",
            hint="change these traits of the architecture",
        )
    return values


def _differs(arch: Architecture, other: Architecture, name: str) -> bool:
    """Return whether a trait differs."""
    # Where a record stands is no trait, nor is the base of a rotation that is not used.
    if name in ("name", "source", "confidence", "published_parameters") or (
        name == "rope_theta" and arch.position != "rope"
    ):
        return False
    return getattr(arch, name) != getattr(other, name)


_CLASSES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"kind": "encoder"}, "bert", "BertModel"),
    ({"kind": "encoder-decoder"}, "t5", "T5ForConditionalGeneration"),
    ({"latent": True, "router_bias": True}, "deepseek_v3", "DeepseekV3ForCausalLM"),
    ({"latent": True}, "deepseek_v2", "DeepseekV2ForCausalLM"),
    ({"sparse": True, "qk_norm": True}, "qwen3_moe", "Qwen3MoeForCausalLM"),
    ({"sparse": True}, "mixtral", "MixtralForCausalLM"),
    ({"position": "learned", "mlp": "relu"}, "opt", "OPTForCausalLM"),
    ({"position": "learned"}, "gpt2", "GPT2LMHeadModel"),
    ({"mlp": "geglu", "qk_norm": True}, "gemma3_text", "Gemma3ForCausalLM"),
    ({"mlp": "geglu", "sandwich_norm": True}, "gemma2", "Gemma2ForCausalLM"),
    ({"mlp": "geglu"}, "gemma", "GemmaForCausalLM"),
    ({"qk_norm": True}, "qwen3", "Qwen3ForCausalLM"),
    ({"qkv_bias": True, "output_bias": False}, "qwen2", "Qwen2ForCausalLM"),
    ({}, "llama", "LlamaForCausalLM"),
)
"""Traits, model type and class; the first row whose traits a record has is its class."""


def _class_of(arch: Architecture) -> tuple[str, str]:
    """Choose the model type and class by the traits of the record."""
    traits = dataclasses.asdict(arch)
    traits |= {"latent": arch.kv_lora_rank > 0, "sparse": arch.num_experts > 0}
    return next((kind, name) for wanted, kind, name in _CLASSES if wanted.items() <= traits.items())


def _decoder_values(arch: Architecture) -> dict[str, Any]:
    """Write the Llama-like fields."""
    return {
        "hidden_size": arch.hidden_size,
        "num_hidden_layers": arch.num_layers,
        "num_attention_heads": arch.num_heads,
        "num_key_value_heads": arch.num_kv_heads,
        "head_dim": arch.head_dim,
        "intermediate_size": arch.intermediate_size,
        "max_position_embeddings": arch.max_positions,
        "rope_theta": arch.rope_theta,
        "rms_norm_eps": arch.norm_eps,
        "hidden_act": "gelu_pytorch_tanh" if arch.mlp == "geglu" else "silu",
        "attention_bias": arch.qkv_bias and arch.output_bias,
        "mlp_bias": arch.mlp_bias,
    }


def _moe_values(arch: Architecture, kind: str) -> dict[str, Any]:
    """Write the fields of experts and latent attention."""
    common = {"num_experts_per_tok": arch.experts_per_token}
    if kind == "mixtral":
        return common | {"num_local_experts": arch.num_experts}
    if kind == "qwen3_moe":
        return common | {
            "num_experts": arch.num_experts,
            "moe_intermediate_size": arch.moe_intermediate_size,
        }
    if not arch.kv_lora_rank:
        return {}
    return common | {
        "n_routed_experts": arch.num_experts,
        "n_shared_experts": arch.num_shared_experts,
        "moe_intermediate_size": arch.moe_intermediate_size,
        "first_k_dense_replace": arch.num_dense_layers,
        "kv_lora_rank": arch.kv_lora_rank,
        "q_lora_rank": arch.q_lora_rank or None,
        "qk_nope_head_dim": arch.head_dim - arch.qk_rope_head_dim,
        "qk_rope_head_dim": arch.qk_rope_head_dim,
        "v_head_dim": arch.v_head_dim,
        "head_dim": arch.qk_rope_head_dim,
    }


def _old_values(arch: Architecture, kind: str) -> dict[str, Any]:
    """Write the fields of GPT-2, OPT, BERT and T5, each by its own names."""
    names = {
        "gpt2": ("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "layer_norm_epsilon"),
        "opt": (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "ffn_dim",
            "max_position_embeddings",
            "",
        ),
        "bert": (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "layer_norm_eps",
        ),
        "t5": ("d_model", "num_layers", "num_heads", "d_ff", "n_positions", "layer_norm_epsilon"),
    }[kind]
    sizes = (
        arch.hidden_size,
        arch.num_layers,
        arch.num_heads,
        arch.intermediate_size,
        arch.max_positions,
        arch.norm_eps,
    )
    own = {
        "gpt2": {"activation_function": "gelu_new"},
        "opt": {
            "activation_function": "relu",
            "word_embed_proj_dim": arch.hidden_size,
            "do_layer_norm_before": True,
        },
        "bert": {"hidden_act": "gelu", "type_vocab_size": arch.num_token_types},
        "t5": {
            "d_kv": arch.head_dim,
            "feed_forward_proj": "gated-gelu" if arch.mlp == "geglu" else "relu",
        },
    }[kind]
    return {name: size for name, size in zip(names, sizes, strict=True) if name} | own
