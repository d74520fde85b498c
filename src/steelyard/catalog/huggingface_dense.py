"""Read the `config.json` of dense decoders that descend from Llama."""

import math
from typing import Any

from steelyard.catalog.huggingface_config import ConfigFields
from steelyard.errors import CatalogError

__all__ = [
    "GEMMA3_DEFAULTS",
    "gemma",
    "gemma2",
    "gemma3",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
]

GEMMA3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}
"""What multimodal files leave out. Source: class Gemma3TextConfig of `transformers`."""


def _decoder_fields(
    config: ConfigFields, *, eps: float = 1e-6, theta: float = 10000.0
) -> dict[str, Any]:
    """Read what every Llama-like decoder names alike, with the defaults of its class."""
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
        "rope_theta": config.rope().real("rope_theta", theta),
        "norm_eps": config.real("rms_norm_eps", eps),
    }


def _plain(
    config: ConfigFields, *, tied: bool = False, eps: float = 1e-6, theta: float = 10000.0
) -> dict[str, Any]:
    """Read a SwiGLU decoder whose heads are turned as a whole."""
    config.only("hidden_act", ("silu",))
    config.rope().only("partial_rotary_factor", (1,))
    return _decoder_fields(config, eps=eps, theta=theta) | {
        "tied_embeddings": config.flag("tie_word_embeddings", tied)
    }


def _attention_bias(config: ConfigFields) -> dict[str, Any]:
    """Read whether all four projections of attention carry biases."""
    bias = bool(config.only("attention_bias", (False, True, None)))
    return {"qkv_bias": bias, "output_bias": bias}


def _mlp_bias(config: ConfigFields) -> dict[str, Any]:
    """Read whether the matrices of the MLP carry biases."""
    return {"mlp_bias": config.flag("mlp_bias", False)}


def _windows(config: ConfigFields, window: int, full: list[bool]) -> dict[str, Any]:
    """Return the fields of sliding attention.

    Args:
        config: the file; its `layer_types` go before what the class would choose.
        window: tokens, 0 for none.
        full: whether the class leaves the window out, for each layer.

    Returns:
        Fields of the record.

    Raises:
        CatalogError: `layer_types` is not such a list, or follows no rule the record knows.
    """
    kinds = config.get("layer_types")
    if kinds is not None:
        if not set(kinds) <= {"full_attention", "sliding_attention"} or len(kinds) != len(full):
            raise CatalogError(
                f"{config.where}: layer_types has {len(kinds)} entries of kinds "
                f"{sorted(set(kinds))} for {len(full)} layers",
                hint="each layer is of type 'full_attention' or 'sliding_attention'",
            )
        full = [kind == "full_attention" for kind in kinds]
    if all(full):
        return {}
    if not window:
        if kinds is None:
            return {}
        raise CatalogError(
            f"{config.where}: layer_types has sliding attention, but sliding_window is not set",
            hint="give the model's complete config.json",
        )
    return {
        "sliding_window": window,
        "full_attention_every": config.period("layer_types", full),
    }


def llama(config: ConfigFields) -> dict[str, Any]:
    """Read Llama, Yi, TinyLlama, SmolLM 1 and 2 and their kin."""
    return _plain(config) | _attention_bias(config) | _mlp_bias(config)


def mistral(config: ConfigFields, *, window: int = 4096) -> dict[str, Any]:
    """Read Mistral: all layers have the window.

    Args:
        config: the file.
        window: tokens where the file does not say.

    Returns:
        Fields of the record.
    """
    fields = _plain(config)
    window = config.number(
        "sliding_window", default=0 if "sliding_window" in config.values else window
    )
    return fields | _windows(config, window, [False] * fields["num_layers"])


def _optional_windows(config: ConfigFields, layers: int) -> dict[str, Any]:
    """Read the window of Qwen, which is mostly switched off, and then from some layer on."""
    window = config.number("sliding_window", default=4096)
    first = config.number("max_window_layers", default=28)
    if not config.flag("use_sliding_window", False):
        window = 0
    return _windows(config, window, [not window or layer < first for layer in range(layers)])


def qwen2(config: ConfigFields) -> dict[str, Any]:
    """Read Qwen2 and Qwen2.5: biases on queries, keys and values only."""
    fields = _plain(config)
    return fields | _optional_windows(config, fields["num_layers"]) | {"qkv_bias": True}


def qwen3(config: ConfigFields) -> dict[str, Any]:
    """Read Qwen3: normed queries and keys, a head width of its own."""
    fields = _plain(config) | _attention_bias(config) | {"qk_norm": True}
    fields |= _optional_windows(config, fields["num_layers"])
    return fields | {"head_dim": config.number("head_dim", default=128)}


def gemma(config: ConfigFields) -> dict[str, Any]:
    """Read Gemma: tied, wide heads, GeGLU, scaled embeddings, gains stored less 1."""
    # The first files say "gelu" and mean its tanh form, as their class takes it.
    config.only("hidden_act", ("gelu_pytorch_tanh", "gelu"))
    config.only("hidden_activation", ("gelu_pytorch_tanh", None))
    config.only("use_bidirectional_attention", (False, None))
    config.rope().only("partial_rotary_factor", (1,))
    fields = _decoder_fields(config) | _attention_bias(config)
    return fields | {
        "head_dim": config.number("head_dim", default=256),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
        "mlp": "geglu",
        "unit_offset_norm": True,
        "embedding_scale": math.sqrt(fields["hidden_size"]),
    }


def _later_gemma(
    config: ConfigFields, *, every: int, attention_cap: float, logit_cap: float
) -> dict[str, Any]:
    """Read what Gemma 2 and 3 share: windows, caps, norms on both sides, a scale of the scores."""
    fields = gemma(config)
    scalar = config.real("query_pre_attn_scalar", 256.0)
    if scalar <= 0:
        raise CatalogError(
            f"{config.where}: query_pre_attn_scalar is {scalar:g}, but must be positive"
        )
    layers = range(fields["num_layers"])
    fields |= _windows(
        config,
        config.number("sliding_window", default=4096),
        [(layer + 1) % every == 0 for layer in layers],
    )
    return fields | {
        "sandwich_norm": True,
        "attention_scale": _scale(scalar**-0.5, fields),
        "attention_softcap": _cap(config, "attn_logit_softcapping", attention_cap),
        "logit_softcap": _cap(config, "final_logit_softcapping", logit_cap),
    }


def _scale(scale: float, fields: dict[str, Any]) -> float:
    """Return a scale of scores as the record has it: 0 where it is the usual one."""
    return 0.0 if scale == fields["head_dim"] ** -0.5 else scale


def _cap(config: ConfigFields, name: str, default: float) -> float:
    """Read a soft cap; null says that there is none."""
    return 0.0 if name in config.values and config.get(name) is None else config.real(name, default)


def gemma2(config: ConfigFields) -> dict[str, Any]:
    """Read Gemma 2: every other layer has a window, scores and logits are capped."""
    return _later_gemma(config, every=2, attention_cap=50.0, logit_cap=30.0)


def gemma3(config: ConfigFields) -> dict[str, Any]:
    """Read the text model of Gemma 3: normed queries and keys, two rotary bases."""
    every = config.number("sliding_window_pattern", "_sliding_window_pattern", default=6)
    nested = config.get("rope_parameters")
    if isinstance(nested, dict) and isinstance(nested.get("sliding_attention"), dict):
        rope = config.rope("sliding_attention")
        rope.only("rope_type", ("default",))
        local = rope.real("rope_theta", 1e4)
    else:
        local = config.real("rope_local_base_freq", 1e4)
    fields = _later_gemma(config, every=max(every, 1), attention_cap=0.0, logit_cap=0.0)
    theta = config.rope().real("rope_theta", 1e6)
    if fields.get("sliding_window"):
        fields["local_rope_theta"] = local
    return fields | {"qk_norm": True, "rope_theta": theta}


def phi3(config: ConfigFields) -> dict[str, Any]:
    """Read Phi-3 and Phi-4: heads that are turned in part."""
    config.only("hidden_act", ("silu",))
    fields = _decoder_fields(config, eps=1e-5)
    width = int(fields["head_dim"] * config.rope().real("partial_rotary_factor", 1.0))
    window = config.number("sliding_window", default=0)
    return (
        fields
        | _windows(config, window, [False] * fields["num_layers"])
        | {
            "tied_embeddings": config.flag("tie_word_embeddings", False),
            "rotary_dim": 0 if width == fields["head_dim"] else width,
        }
    )


def smollm3(config: ConfigFields) -> dict[str, Any]:
    """Read SmolLM3: every fourth layer does not turn its heads."""
    fields = _plain(config, tied=True, theta=2e6) | _attention_bias(config) | _mlp_bias(config)
    count = fields["num_layers"]
    every = config.number("no_rope_layer_interval", default=4)
    # In the file 1 stands for a layer with rotary positions, whatever its name says.
    turned = config.get("no_rope_layers") or [(layer + 1) % max(every, 1) for layer in range(count)]
    if not isinstance(turned, list) or len(turned) < count:
        raise CatalogError(
            f"{config.where}: no_rope_layers is {turned!r}, not a list of {count} layers",
            hint="give the model's complete config.json",
        )
    slides = config.flag("use_sliding_window", False)
    window = config.number("sliding_window", default=0) if slides else 0
    # With a window the layers without rotary positions have it.
    full = [bool(turn) or not window for turn in turned[:count]]
    return (
        fields
        | _windows(config, window, full)
        | {"no_rope_every": config.period("no_rope_layers", [not turn for turn in turned[:count]])}
    )


def granite(config: ConfigFields) -> dict[str, Any]:
    """Read Granite: Llama with factors on embeddings, scores, residuals and logits."""
    fields = llama(config)
    return fields | {
        "embedding_scale": config.real("embedding_multiplier", 1.0),
        "attention_scale": _scale(config.real("attention_multiplier", 1.0), fields),
        "residual_scale": config.real("residual_multiplier", 1.0),
        "logit_divisor": config.real("logits_scaling", 1.0),
    }


def olmo2(config: ConfigFields) -> dict[str, Any]:
    """Read OLMo 2: norms after attention and MLP, and over all query and all key heads."""
    return (
        _plain(config, eps=1e-5)
        | _attention_bias(config)
        | {"post_norm": True, "qk_norm": True, "qk_norm_across_heads": True}
    )
