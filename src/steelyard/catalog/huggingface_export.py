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
    old = kind in ("gpt2", "opt", "bert", "t5", "bloom")
    fields = (
        _old_values(arch, kind)
        if old
        else _decoder_values(arch) | _moe_values(arch, kind) | _family_values(arch, kind)
    )
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
    ({"latent": True, "router": "sigmoid"}, "deepseek_v3", "DeepseekV3ForCausalLM"),
    ({"latent": True}, "deepseek_v2", "DeepseekV2ForCausalLM"),
    ({"sparse": True, "shared_expert_gate": True}, "qwen2_moe", "Qwen2MoeForCausalLM"),
    ({"sparse": True, "qk_norm": True}, "qwen3_moe", "Qwen3MoeForCausalLM"),
    ({"sparse": True}, "mixtral", "MixtralForCausalLM"),
    ({"position": "alibi", "embedding_norm": True}, "bloom", "BloomForCausalLM"),
    ({"position": "learned", "mlp": "relu"}, "opt", "OPTForCausalLM"),
    ({"position": "learned"}, "gpt2", "GPT2LMHeadModel"),
    ({"mlp": "geglu", "qk_norm": True}, "gemma3_text", "Gemma3ForCausalLM"),
    ({"mlp": "geglu", "sandwich_norm": True}, "gemma2", "Gemma2ForCausalLM"),
    ({"mlp": "geglu"}, "gemma", "GemmaForCausalLM"),
    ({"post_norm": True}, "olmo2", "Olmo2ForCausalLM"),
    ({"skips_rope": True}, "smollm3", "SmolLM3ForCausalLM"),
    ({"scaled": True}, "granite", "GraniteForCausalLM"),
    ({"partly_turned": True}, "phi3", "Phi3ForCausalLM"),
    ({"qk_norm": True}, "qwen3", "Qwen3ForCausalLM"),
    ({"qkv_bias": True, "output_bias": False}, "qwen2", "Qwen2ForCausalLM"),
    ({"windowed": True}, "mistral", "MistralForCausalLM"),
    ({}, "llama", "LlamaForCausalLM"),
)
"""Traits, model type and class; the first row whose traits a record has is its class."""


def _class_of(arch: Architecture) -> tuple[str, str]:
    """Choose the model type and class by the traits of the record."""
    traits = dataclasses.asdict(arch)
    scales = (arch.embedding_scale, arch.residual_scale, arch.logit_divisor)
    traits |= {
        "latent": arch.kv_lora_rank > 0,
        "sparse": arch.num_experts > 0,
        "skips_rope": arch.no_rope_every > 0,
        "scaled": arch.attention_scale > 0 or any(scale != 1.0 for scale in scales),
        "partly_turned": arch.rotary_dim > 0,
        "windowed": arch.sliding_window > 0,
    }
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
    # One expert's gate is its probability, which those classes have without the division.
    common |= {"norm_topk_prob": arch.normalized_gates and arch.experts_per_token > 1}
    if kind in ("qwen2_moe", "qwen3_moe"):
        width = arch.num_shared_experts * arch.moe_intermediate_size
        return common | {
            "num_experts": arch.num_experts,
            "moe_intermediate_size": arch.moe_intermediate_size,
            "decoder_sparse_step": arch.moe_every,
            **({"shared_expert_intermediate_size": width} if kind == "qwen2_moe" else {}),
            **({"qkv_bias": arch.qkv_bias} if kind == "qwen2_moe" else {}),
        }
    if not arch.kv_lora_rank:
        return {}
    # The third version always has groups; one of them holds all experts.
    groups = {"n_group": arch.num_expert_groups or 1, "topk_group": arch.groups_per_token or 1}
    if kind == "deepseek_v2":
        is_grouped = arch.num_expert_groups > 0
        groups = (groups if is_grouped else {}) | {
            "topk_method": "group_limited_greedy" if is_grouped else "greedy"
        }
    return (
        common
        | groups
        | {
            "routed_scaling_factor": arch.gate_scale,
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
    )


def _family_values(arch: Architecture, kind: str) -> dict[str, Any]:
    """Write what only some dense families have."""
    if kind in ("gemma2", "gemma3_text"):
        return _gemma_values(arch, kind)
    if kind == "granite":
        return {
            "embedding_multiplier": arch.embedding_scale,
            "attention_multiplier": arch.attention_scale or arch.head_dim**-0.5,
            "residual_multiplier": arch.residual_scale,
            "logits_scaling": arch.logit_divisor,
        }
    if kind == "smollm3":
        turned = [int(arch.is_turned(layer)) for layer in range(arch.num_layers)]
        # Its class has a padding token beyond the vocabulary of a small model.
        padding = {"pad_token_id": None}
        return padding | {"no_rope_layers": turned, "no_rope_layer_interval": arch.no_rope_every}
    if kind == "phi3":
        return {
            "pad_token_id": None,
            "partial_rotary_factor": (arch.rotary_dim or arch.head_dim) / arch.head_dim,
            # Otherwise the class takes 4,096 for the length of training.
            "original_max_position_embeddings": arch.max_positions,
            "sliding_window": arch.sliding_window or None,
        }
    if kind in ("mistral", "mixtral"):
        return {"sliding_window": arch.sliding_window or None}
    if kind in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe") and arch.sliding_window:
        return _window_values(arch) | {"use_sliding_window": True, "max_window_layers": 0}
    return {}


def _window_values(arch: Architecture) -> dict[str, Any]:
    """Write the window and which layers have it."""
    kinds = [
        "sliding_attention" if arch.window_of(layer) else "full_attention"
        for layer in range(arch.num_layers)
    ]
    return {"sliding_window": arch.sliding_window or None, "layer_types": kinds}


def _gemma_values(arch: Architecture, kind: str) -> dict[str, Any]:
    """Write the fields of Gemma 2 and 3."""
    scalar = arch.attention_scale**-2 if arch.attention_scale else arch.head_dim
    # The class takes whole numbers only, and 144 ** -0.5 squared is not one.
    whole = round(scalar)
    values = _window_values(arch) | {
        "query_pre_attn_scalar": whole if abs(scalar / whole - 1) < 1e-9 else scalar,
        "attn_logit_softcapping": arch.attention_softcap or None,
        "final_logit_softcapping": arch.logit_softcap or None,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    if kind == "gemma3_text":
        values["rope_local_base_freq"] = arch.local_rope_theta or arch.rope_theta
    return values


def _old_values(arch: Architecture, kind: str) -> dict[str, Any]:
    """Write the fields of GPT-2, OPT, BERT, T5 and BLOOM, each by its own names."""
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
        # Its class makes the feed-forward part four times as wide, and has no field for it.
        "bloom": ("hidden_size", "n_layer", "n_head", "", "seq_length", "layer_norm_epsilon"),
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
        "bloom": {"apply_residual_connection_post_layernorm": False},
        "bert": {"hidden_act": "gelu", "type_vocab_size": arch.num_token_types},
        "t5": {
            "d_kv": arch.head_dim,
            "feed_forward_proj": "gated-gelu" if arch.mlp == "geglu" else "relu",
        },
    }[kind]
    return {name: size for name, size in zip(names, sizes, strict=True) if name} | own
