"""Model families of GGUF files: what each has beyond Llama, and how its tensors are called."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.nn.gguf.header import GgufHeader

__all__ = ["FAMILIES", "FileFamily", "stored_name"]


@dataclass(frozen=True, slots=True)
class FileFamily:
    """How files of one value of `general.architecture` are read.

    Attributes:
        traits: returns fields of the architecture beyond those of the Llama that it is given.
        is_turned: whether rows of query and key projections alternate between the halves of their
            heads: llama.cpp pairs neighbouring rows there, and rows half a head apart elsewhere.
        form: model type whose tensors `nn.names.slots` lists.
    """

    traits: Callable[[GgufHeader, Architecture], dict[str, Any]]
    is_turned: bool = False
    form: str = "llama"


_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored_name(part: str, arch: Architecture) -> str:
    """Return the name that a tensor has in GGUF files.

    Args:
        part: name of Hugging Face, as `nn.names.slots` lists it.
        arch: architecture of the model.

    Returns:
        The name; what has none keeps its own.
    """
    module, _, kind = part.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{kind}"
    words = module.split(".", 3)
    if len(words) < 4 or words[3] not in _INSIDE:
        return part
    inside = _INSIDE[words[3]]
    # Where a norm stands after attention, Hugging Face gives it the name that elsewhere is that of
    # the norm before the MLP.
    is_after = words[3] == "post_attention_layernorm" and (arch.post_norm or arch.sandwich_norm)
    return f"blk.{words[2]}.{'post_attention_norm' if is_after else inside}.{kind}"


def _plain(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """Read nothing more; windows only shorten the longest sequence."""
    window = _window(header)
    # Full attention and that within a window are the same up to the window.
    return {"max_positions": min(arch.max_positions, window or arch.max_positions)}


def _gemma(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """Gemma: GeGLU and scaled embeddings; files state gains with the 1 that ours are less by."""
    del header
    return {
        "mlp": "geglu",
        "unit_offset_norm": True,
        "embedding_scale": math.sqrt(arch.hidden_size),
    }


def _later_gemma(
    header: GgufHeader, arch: Architecture, *, largest: int, window: int, every: int
) -> dict[str, Any]:
    """What Gemma 2 and 3 share. Files lack the scale of the scores.

    Args:
        header: header of the file.
        arch: the model as a Llama.
        largest: layers of the one model whose scores are scaled by the mean width of a head.
        window: tokens of windows where the file does not say.
        every: each layer of this number has no window, where the file does not say.

    Returns:
        Fields of the architecture.

    Source: `load_arch_hparams` of llama.cpp (github.com/ggml-org/llama.cpp, src/models/gemma2.cpp
        and gemma3.cpp).
    """
    window = _window(header, window)
    is_largest = arch.num_layers == largest
    width = arch.hidden_size // arch.num_heads
    return _gemma(header, arch) | {
        "sandwich_norm": True,
        "sliding_window": window,
        "full_attention_every": _full_every(header, arch, every) if window else 0,
        "attention_scale": width**-0.5 if is_largest and width != arch.head_dim else 0.0,
    }


def _gemma2(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """Gemma 2: every other layer has a window, scores and logits are capped."""
    return _later_gemma(header, arch, largest=46, window=4096, every=2) | {
        "attention_softcap": _factor(header, "attn_logit_softcapping", 50.0),
        "logit_softcap": _factor(header, "final_logit_softcapping", 30.0),
    }


def _gemma3(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """Gemma 3: layers with a window have a rotary base of their own."""
    found = _later_gemma(header, arch, largest=62, window=0, every=6)
    local = _factor(header, "rope.freq_base_swa", 10000.0)
    return found | {
        "logit_softcap": _factor(header, "final_logit_softcapping", 0.0),
        "local_rope_theta": local if found["sliding_window"] else 0.0,
    }


def _phi3(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """Phi-3 and Phi-4: heads that are turned in part, windows in all layers."""
    width = header.get("phi3.rope.dimension_count", int, arch.head_dim)
    window = _window(header)
    return {
        "rotary_dim": 0 if width == arch.head_dim else width,
        "sliding_window": window if window < arch.max_positions else 0,
        "qkv_bias": "blk.0.attn_qkv.bias" in header.tensors,
    }


def _granite(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """Granite: factors on embeddings, scores, residuals and logits; 0 stands for none."""
    if not header.get("granite.rope.scaling.finetuned", bool, True):
        raise ConfigError(
            f"{header.path} cannot be loaded: positions that are not turned",
            hint="Granite models with rotary positions can be loaded",
        )
    scale = _factor(header, "attention.scale", 0.0)
    # Files state it in float32.
    is_usual = math.isclose(scale, arch.head_dim**-0.5, rel_tol=1e-6)
    return _plain(header, arch) | {
        "attention_scale": 0.0 if is_usual else scale,
        "embedding_scale": _factor(header, "embedding_scale", 0.0) or 1.0,
        "residual_scale": _factor(header, "residual_scale", 0.0) or 1.0,
        "logit_divisor": _factor(header, "logit_scale", None),
    }


def _smollm3(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """SmolLM3: every fourth layer does not turn its heads; files do not say so."""
    return _plain(header, arch) | {"no_rope_every": 4}


def _olmo2(header: GgufHeader, arch: Architecture) -> dict[str, Any]:
    """OLMo 2: norms after attention and MLP, and over all query and all key heads."""
    del arch
    if _window(header):
        raise ConfigError(
            f"{header.path} cannot be loaded: windows in an olmo2 model",
            hint="OLMo 2 can be loaded, OLMo 3 cannot",
        )
    return {"post_norm": True, "qk_norm_across_heads": True}


FAMILIES: dict[str, FileFamily] = {
    "llama": FileFamily(_plain, is_turned=True),
    "qwen2": FileFamily(_plain),
    "qwen3": FileFamily(_plain),
    "gemma": FileFamily(_gemma),
    "gemma2": FileFamily(_gemma2),
    "gemma3": FileFamily(_gemma3),
    "phi3": FileFamily(_phi3, form="phi3"),
    "granite": FileFamily(_granite, is_turned=True),
    "smollm3": FileFamily(_smollm3, is_turned=True),
    "olmo2": FileFamily(_olmo2),
}
"""By value of `general.architecture`; Mistral's files say "llama" as well."""


def _key(header: GgufHeader, name: str) -> str:
    """Return the key of a field of the model's family."""
    return f"{header.get('general.architecture', str)}.{name}"


def _window(header: GgufHeader, default: int = 0) -> int:
    """Return the tokens of sliding windows, 0 for none."""
    return header.get(_key(header, "attention.sliding_window"), int, default)


def _factor(header: GgufHeader, name: str, default: float | None) -> float:
    """Return a number of the family; None for one that has to be there."""
    return float(header.get(_key(header, name), float, default))


def _full_every(header: GgufHeader, arch: Architecture, default: int) -> int:
    """Return n where each n-th layer has no window, 0 where all have; files may list which do."""
    key = _key(header, "attention.sliding_window_pattern")
    if not isinstance(header.fields.get(key), np.ndarray):
        every = header.get(key, int, default)
        return every if every <= arch.num_layers else 0
    is_full = ~header.fields[key].astype(bool)[: arch.num_layers]
    every = int(is_full.argmax()) + 1 if is_full.any() else 0
    wanted = np.arange(1, len(is_full) + 1) % every == 0 if every else is_full
    if len(is_full) != arch.num_layers or not np.array_equal(is_full, wanted):
        raise ConfigError(
            f"{header.path}: {key} follows no rule",
            hint="models whose every n-th layer has no window can be loaded",
        )
    return every
