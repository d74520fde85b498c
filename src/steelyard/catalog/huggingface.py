"""Read the `config.json` of Hugging Face models."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.huggingface_config import ConfigFields
from steelyard.catalog.huggingface_dense import (
    GEMMA3_DEFAULTS,
    gemma,
    gemma2,
    gemma3,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from steelyard.catalog.parameters import RELATIVE_BUCKETS
from steelyard.catalog.validate import validate_architecture
from steelyard.errors import CatalogError, DataError, SteelyardWarning
from steelyard.files import read_json

__all__ = ["MODEL_TYPES", "from_huggingface", "read_architecture", "rotary_kind", "text_values"]


def _qwen3_moe(config: ConfigFields) -> dict[str, Any]:
    """Read Qwen3 with experts in every layer."""
    return qwen3(config) | _qwen_experts(config)


def _qwen2_moe(config: ConfigFields) -> dict[str, Any]:
    """Read Qwen1.5 and Qwen2 with experts, of which shared ones have a gate."""
    experts = _qwen_experts(config)
    width, one = config.number("shared_expert_intermediate_size"), experts["moe_intermediate_size"]
    if not one or width % one:
        raise CatalogError(
            f"{config.where}: shared_expert_intermediate_size is {width}, not a multiple of "
            f"moe_intermediate_size = {one}",
            hint="shared experts are as wide as the others",
        )
    return (
        qwen2(config)
        | experts
        | {
            "qkv_bias": config.flag("qkv_bias", True),
            "num_shared_experts": width // one,
            "shared_expert_gate": width > 0,
        }
    )


def _qwen_experts(config: ConfigFields) -> dict[str, Any]:
    """Read the experts of Qwen's layers."""
    config.only("mlp_only_layers", ([], None))
    return {
        "num_experts": config.number("num_experts", "num_local_experts"),
        "moe_intermediate_size": config.number("moe_intermediate_size"),
        "moe_every": config.number("decoder_sparse_step", default=1),
    } | _chosen(config, config.flag("norm_topk_prob", False))


def _chosen(config: ConfigFields, normalized: bool) -> dict[str, Any]:
    """Return how many experts a token visits, and whether their gates sum to 1."""
    count = config.number("num_experts_per_tok")
    if count == 1 and normalized:
        raise CatalogError(
            f"{config.where}: num_experts_per_tok is 1 and gates sum to 1, so that each is 1",
            hint="routers of one expert whose gate is its probability are supported",
        )
    # One expert's gate is its probability in any case.
    return {"experts_per_token": count, "normalized_gates": normalized or count == 1}


def _mixtral(config: ConfigFields) -> dict[str, Any]:
    """Read Mixtral: every layer routes over experts of the full MLP width."""
    return (
        mistral(config, window=0)
        | {
            "num_experts": config.number("num_local_experts"),
            "moe_intermediate_size": config.number("intermediate_size"),
        }
        | _chosen(config, True)
    )


def _deepseek(config: ConfigFields) -> dict[str, Any]:
    """Read what DeepSeek-V2 and V3 share: latent attention, shared and routed experts."""
    config.only("moe_layer_freq", (1,))
    config.only("attention_bias", (False, None))
    rope = config.number("qk_rope_head_dim")
    return llama(config) | {
        "head_dim": config.number("qk_nope_head_dim") + rope,
        "num_experts": config.number("n_routed_experts"),
        "num_shared_experts": config.number("n_shared_experts", default=0),
        "moe_intermediate_size": config.number("moe_intermediate_size"),
        "num_dense_layers": config.number("first_k_dense_replace", default=0),
        "kv_lora_rank": config.number("kv_lora_rank"),
        "q_lora_rank": config.number("q_lora_rank", default=0),
        "qk_rope_head_dim": rope,
        "v_head_dim": config.number("v_head_dim"),
        "gate_scale": config.real("routed_scaling_factor", 1.0),
    }


def _deepseek2(config: ConfigFields) -> dict[str, Any]:
    """Read DeepSeek-V2: gates are probabilities, not divided by their sum."""
    config.only("scoring_func", ("softmax",))
    config.only("norm_topk_prob", (False, None))
    method = config.only("topk_method", ("greedy", "group_limited_greedy"))
    groups = _groups(config) if method == "group_limited_greedy" else {}
    return _deepseek(config) | _chosen(config, False) | groups


def _deepseek3(config: ConfigFields) -> dict[str, Any]:
    """Read DeepSeek-V3: sigmoids and a bias choose within groups."""
    config.only("scoring_func", ("sigmoid",))
    config.only("topk_method", ("noaux_tc",))
    config.only("rope_interleave", (True, None))
    chosen = _chosen(config, config.flag("norm_topk_prob", True))
    traits = {"router": "sigmoid", "router_bias": True}
    return _deepseek(config) | chosen | _groups(config) | traits


def _groups(config: ConfigFields) -> dict[str, Any]:
    """Read the groups of experts; all experts in one are none."""
    count = config.number("n_group", default=1)
    if count == 1:
        return {}
    return {"num_expert_groups": count, "groups_per_token": config.number("topk_group")}


def _gpt2(config: ConfigFields) -> dict[str, Any]:
    """Read GPT-2."""
    config.only("activation_function", ("gelu_new", "gelu", "gelu_pytorch_tanh"))
    hidden = config.number("n_embd")
    return _old_style(hidden, config.number("n_head")) | {
        "num_layers": config.number("n_layer"),
        "intermediate_size": config.number("n_inner", default=4 * hidden),
        "vocab_size": config.number("vocab_size"),
        "max_positions": config.number("n_positions", "n_ctx"),
        "mlp": "gelu",
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "norm_eps": config.real("layer_norm_epsilon", 1e-5),
    }


def _opt(config: ConfigFields) -> dict[str, Any]:
    """Read OPT, except the 350M model, whose embeddings are factored and whose norms come last."""
    hidden = config.number("hidden_size")
    config.only("activation_function", ("relu",))
    config.only("word_embed_proj_dim", (hidden,))
    config.only("do_layer_norm_before", (True,))
    return _old_style(hidden, config.number("num_attention_heads")) | {
        "num_layers": config.number("num_hidden_layers"),
        "intermediate_size": config.number("ffn_dim"),
        "vocab_size": config.number("vocab_size"),
        "max_positions": config.number("max_position_embeddings"),
        "position_offset": 2,
        "mlp": "relu",
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _bloom(config: ConfigFields) -> dict[str, Any]:
    """Read BLOOM; its class has no field for a feed-forward width other than four times its own."""
    hidden = config.number("hidden_size", "n_embed")
    config.only("apply_residual_connection_post_layernorm", (False, None))
    return _old_style(hidden, config.number("n_head", "num_attention_heads")) | {
        "num_layers": config.number("n_layer", "num_hidden_layers"),
        "intermediate_size": 4 * hidden,
        "vocab_size": config.number("vocab_size"),
        # Slopes of ALiBi end nowhere: this is the length that it was trained on.
        "max_positions": config.number("seq_length", default=2048),
        "position": "alibi",
        "embedding_norm": True,
        "mlp": "gelu",
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "norm_eps": config.real("layer_norm_epsilon", 1e-5),
    }


def _bert(config: ConfigFields) -> dict[str, Any]:
    """Read the bare BERT encoder with its pooler."""
    config.only("hidden_act", ("gelu",))
    config.only("position_embedding_type", ("absolute",))
    return _old_style(config.number("hidden_size"), config.number("num_attention_heads")) | {
        "kind": "encoder",
        "num_layers": config.number("num_hidden_layers"),
        "intermediate_size": config.number("intermediate_size"),
        "vocab_size": config.number("vocab_size"),
        "max_positions": config.number("max_position_embeddings"),
        "num_token_types": config.number("type_vocab_size", default=2),
        "mlp": "gelu",
        "residual_norm": True,
        "embedding_norm": True,
        "pooler": True,
        "norm_eps": config.real("layer_norm_eps", 1e-12),
    }


def _old_style(hidden: int, heads: int) -> dict[str, Any]:
    """Return the fields of LayerNorm models with learned positions and biases everywhere."""
    shape = {
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": hidden // max(heads, 1),
    }
    return shape | {
        "norm": "layernorm",
        "position": "learned",
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
    }


def _t5(config: ConfigFields) -> dict[str, Any]:
    """Read T5 and its gated version 1.1."""
    config.only("relative_attention_num_buckets", (RELATIVE_BUCKETS,))
    layers = config.number("num_layers")
    heads = config.number("num_heads")
    feed_forward = config.only("feed_forward_proj", ("relu", "gated-gelu"))
    config.only("num_decoder_layers", (layers, None))
    return {
        "kind": "encoder-decoder",
        "hidden_size": config.number("d_model"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": config.number("d_kv"),
        "intermediate_size": config.number("d_ff"),
        "vocab_size": config.number("vocab_size"),
        "max_positions": config.number("n_positions", default=512),
        "position": "relative",
        "mlp": "relu" if feed_forward == "relu" else "geglu",
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "norm_eps": config.real("layer_norm_epsilon", 1e-6),
    }


_READERS: dict[str, Callable[[ConfigFields], dict[str, Any]]] = {
    "bert": _bert,
    "bloom": _bloom,
    "deepseek_v2": _deepseek2,
    "deepseek_v3": _deepseek3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gpt2": _gpt2,
    "granite": granite,
    "llama": llama,
    "mistral": mistral,
    "mixtral": _mixtral,
    "olmo2": olmo2,
    "opt": _opt,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": smollm3,
    "t5": _t5,
}
"""Reader of each `model_type`."""

MODEL_TYPES: tuple[str, ...] = tuple(_READERS)
"""Values of `model_type` that `from_huggingface` reads."""


def from_huggingface(config: dict[str, Any] | Path) -> Architecture:
    """Make an architecture from a Hugging Face `config.json`.

    Rotary rescaling is not part of the record; it raises a `SteelyardWarning`.

    Args:
        config: parsed file, path of the file, or folder that holds `config.json`.

    Returns:
        The architecture, named after `_name_or_path`, the folder, or the model type.

    Raises:
        CatalogError: the model type is not supported, a field is missing or unusable, or the model
            has a trait that models of its type lack; file and field are named.
    """
    values, where, name = _open(config)
    arch = read_architecture(values, where, name)
    kind = rotary_kind(ConfigFields(text_values(values), where).rope())
    if kind != "default":
        warnings.warn(
            f"{where}: rotary scaling {kind!r} is not part of the record; sizes and costs hold, "
            f"built positions differ",
            SteelyardWarning,
            stacklevel=2,
        )
    return arch


def rotary_kind(rope: ConfigFields) -> Any:
    """Return how rotary positions are rescaled, "default" for not at all.

    Args:
        rope: rotation settings from `ConfigFields.rope`.

    Returns:
        The value of `rope_type`, or of `type` in older files.
    """
    return rope.get("rope_type", rope.get("type", "default"))


def read_architecture(values: dict[str, Any], where: str, name: str = "") -> Architecture:
    """Make an architecture from a parsed `config.json`; a rotary rescaling is left to the caller.

    Args:
        values: parsed file.
        where: the file, for messages.
        name: name of the model where the file has none.

    Returns:
        The architecture.

    Raises:
        CatalogError: as `from_huggingface`.
    """
    values = text_values(values)
    kind = values.get("model_type")
    if kind not in _READERS:
        raise CatalogError(
            f"{where}: model_type {kind!r} is not supported",
            hint=f"supported: {', '.join(MODEL_TYPES)}",
        )
    config = ConfigFields(values, where)
    fields = _READERS[kind](config)
    config.refuse_unread()
    label = str(values.get("_name_or_path") or name or kind).rstrip("/").rsplit("/", 1)[-1]
    arch = Architecture(
        name=label, source=f"{where} (Hugging Face, model_type {kind})", confidence="high", **fields
    )
    validate_architecture(arch, where=where)
    return arch


def text_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the text model inside a multimodal Gemma 3, else all."""
    if values.get("model_type") == "gemma3" and isinstance(values.get("text_config"), dict):
        # Released files leave out what is the default of the model class.
        text = GEMMA3_DEFAULTS | values["text_config"] | {"model_type": "gemma3_text"}
        return {"_name_or_path": values.get("_name_or_path")} | text
    return values


def _open(config: dict[str, Any] | Path) -> tuple[dict[str, Any], str, str]:
    """Return the values, where they stand, and a name after the folder."""
    if isinstance(config, dict):
        return config, "config", ""
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        values = read_json(path)
    except DataError as error:
        raise CatalogError(str(error), hint="give a model's folder or its config.json") from error
    if not isinstance(values, dict):
        raise CatalogError(f"{path} holds no JSON object", hint="give a model's config.json")
    return values, str(path), path.resolve().parent.name
