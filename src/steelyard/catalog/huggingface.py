"""Read the `config.json` of Hugging Face models."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import RELATIVE_BUCKETS
from steelyard.catalog.validate import validate_architecture
from steelyard.errors import CatalogError, DataError, SteelyardWarning
from steelyard.files import read_json

__all__ = ["MODEL_TYPES", "from_huggingface"]


class _Config:
    """A config.json with errors that name the file and the field."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the first integer field present among `names`."""
        present = [name for name in names if self.values.get(name) is not None]
        if present:
            return self._typed(present[0], int, "a whole number")
        if default is None:
            raise CatalogError(
                f"{self.where}: field {names[0]!r} is missing",
                hint="give the model's complete config.json",
            )
        return default

    def real(self, name: str, default: float) -> float:
        """Return a field that is a number."""
        return float(self._typed(name, int | float, "a number", default))

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        return self._typed(name, bool, "true or false", default)

    def _typed(self, name: str, kind: Any, words: str, default: Any = None) -> Any:
        """Return a field of a kind; JSON's true and false are no numbers, though Python's are."""
        value = self.values.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise CatalogError(f"{self.where}: field {name!r} is {value!r}, not {words}")
        return value

    def only(self, name: str, allowed: tuple[Any, ...]) -> Any:
        """Return a field whose value must be one of `allowed`; the first is the default."""
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            raise CatalogError(
                f"{self.where}: {name} = {value!r} is not supported",
                hint=f"supported: {', '.join(map(repr, allowed))}",
            )
        return value

    def rope_theta(self, default: float = 10000.0) -> float:
        """Return the rotary base; warn when the frequencies are rescaled as well."""
        nested = self.values.get("rope_parameters") or {}
        scaling = self.values.get("rope_scaling") or nested
        kind = (
            scaling.get("rope_type", scaling.get("type", "default"))
            if isinstance(scaling, dict)
            else "default"
        )
        if kind != "default":
            warnings.warn(
                f"{self.where}: rotary scaling {kind!r} is not part of the record; sizes and costs "
                f"hold, built positions differ",
                SteelyardWarning,
                stacklevel=6,  # the caller of from_huggingface
            )
        holder = nested if isinstance(nested, dict) and "rope_theta" in nested else self.values
        return _Config(holder, self.where).real("rope_theta", default)


def _decoder_fields(config: _Config) -> dict[str, Any]:
    """Read what every Llama-like decoder names alike."""
    hidden = config.number("hidden_size")
    heads = config.number("num_attention_heads")
    return {
        "hidden_size": hidden,
        "num_layers": config.number("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": config.number("num_key_value_heads", default=heads),
        "head_dim": config.number("head_dim", default=hidden // max(heads, 1)),
        "intermediate_size": config.number("intermediate_size"),
        "vocab_size": config.number("vocab_size"),
        "max_positions": config.number("max_position_embeddings", default=2048),
        "rope_theta": config.rope_theta(),
        "norm_eps": config.real("rms_norm_eps", 1e-6),
    }


def _llama(config: _Config) -> dict[str, Any]:
    """Read Llama, Yi, TinyLlama and their kin, and Mistral."""
    config.only("hidden_act", ("silu",))
    bias = config.flag("attention_bias", False)
    extra = {
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }
    return _decoder_fields(config) | extra | {"qkv_bias": bias, "output_bias": bias}


def _qwen2(config: _Config) -> dict[str, Any]:
    """Read Qwen2 and Qwen2.5: biases on queries, keys and values only."""
    config.only("hidden_act", ("silu",))
    return _decoder_fields(config) | {
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "qkv_bias": True,
    }


def _qwen3(config: _Config) -> dict[str, Any]:
    """Read Qwen3: normed queries and keys, a head width of its own."""
    fields = _llama(config) | {"qk_norm": True}
    return fields | {"head_dim": config.number("head_dim", default=128)}


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    """Read Qwen3 with experts in every layer."""
    config.only("decoder_sparse_step", (1,))
    config.only("mlp_only_layers", ([],))
    return _qwen3(config) | {
        "num_experts": config.number("num_experts", "num_local_experts"),
        "experts_per_token": config.number("num_experts_per_tok"),
        "moe_intermediate_size": config.number("moe_intermediate_size"),
    }


def _mixtral(config: _Config) -> dict[str, Any]:
    """Read Mixtral: every layer routes over experts of the full MLP width."""
    return _llama(config) | {
        "num_experts": config.number("num_local_experts"),
        "experts_per_token": config.number("num_experts_per_tok"),
        "moe_intermediate_size": config.number("intermediate_size"),
    }


def _deepseek(config: _Config) -> dict[str, Any]:
    """Read DeepSeek-V2: latent attention, shared and routed experts after a few dense layers."""
    config.only("moe_layer_freq", (1,))
    rope = config.number("qk_rope_head_dim")
    return _llama(config) | {
        "head_dim": config.number("qk_nope_head_dim") + rope,
        "num_experts": config.number("n_routed_experts"),
        "experts_per_token": config.number("num_experts_per_tok"),
        "num_shared_experts": config.number("n_shared_experts", default=0),
        "moe_intermediate_size": config.number("moe_intermediate_size"),
        "num_dense_layers": config.number("first_k_dense_replace", default=0),
        "kv_lora_rank": config.number("kv_lora_rank"),
        "q_lora_rank": config.number("q_lora_rank", default=0),
        "qk_rope_head_dim": rope,
        "v_head_dim": config.number("v_head_dim"),
    }


def _gemma(config: _Config) -> dict[str, Any]:
    """Read Gemma: tied, wide heads, GeGLU."""
    fields = _decoder_fields(config) | {"head_dim": config.number("head_dim", default=256)}
    return fields | {"tied_embeddings": config.flag("tie_word_embeddings", True), "mlp": "geglu"}


def _gemma3(config: _Config) -> dict[str, Any]:
    """Read the text model of Gemma 3: normed queries and keys, and another rotary base."""
    return _gemma(config) | {"qk_norm": True, "rope_theta": config.rope_theta(1e6)}


def _gpt2(config: _Config) -> dict[str, Any]:
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


def _opt(config: _Config) -> dict[str, Any]:
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


def _bert(config: _Config) -> dict[str, Any]:
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


def _t5(config: _Config) -> dict[str, Any]:
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


_READERS: dict[str, tuple[Callable[[_Config], dict[str, Any]], dict[str, Any]]] = {
    "bert": (_bert, {}),
    "deepseek_v2": (_deepseek, {}),
    "deepseek_v3": (_deepseek, {"router_bias": True}),
    "gemma": (_gemma, {}),
    "gemma2": (_gemma, {"sandwich_norm": True}),
    "gemma3_text": (_gemma3, {"sandwich_norm": True}),
    "gpt2": (_gpt2, {}),
    "llama": (_llama, {}),
    "mistral": (_llama, {}),
    "mixtral": (_mixtral, {}),
    "opt": (_opt, {}),
    "qwen2": (_qwen2, {}),
    "qwen3": (_qwen3, {}),
    "qwen3_moe": (_qwen3_moe, {}),
    "t5": (_t5, {}),
}
"""Reader of each `model_type`, and traits that its configurations do not state."""

MODEL_TYPES: tuple[str, ...] = tuple(_READERS)
"""Values of `model_type` that `from_huggingface` reads."""


def from_huggingface(config: dict[str, Any] | Path) -> Architecture:
    """Make an architecture from a Hugging Face `config.json`.

    Window sizes of sliding attention and rotary rescaling are not part of the record; rescaling
    raises a `SteelyardWarning`.

    Args:
        config: parsed file, path of the file, or folder that holds `config.json`.

    Returns:
        The architecture, named after `_name_or_path`, the folder, or the model type.

    Raises:
        CatalogError: the model type is not supported, or a field is missing or unusable; file and
            field are named.
    """
    values, where, name = _open(config)
    if values.get("model_type") == "gemma3" and isinstance(values.get("text_config"), dict):
        values = values["text_config"] | {"model_type": "gemma3_text"}
    kind = values.get("model_type")
    if kind not in _READERS:
        raise CatalogError(
            f"{where}: model_type {kind!r} is not supported",
            hint=f"supported: {', '.join(MODEL_TYPES)}",
        )
    read, traits = _READERS[kind]
    fields = read(_Config(values, where)) | traits
    label = str(values.get("_name_or_path") or name or kind).rstrip("/").rsplit("/", 1)[-1]
    arch = Architecture(
        name=label, source=f"{where} (Hugging Face, model_type {kind})", confidence="high", **fields
    )
    validate_architecture(arch, where=where)
    return arch


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
