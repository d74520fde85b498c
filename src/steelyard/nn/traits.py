"""Which architectures the transformer of this package can be built for; needs no torch."""

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError

__all__ = [
    "attention_traits",
    "beyond_kernels",
    "refuse_beyond_kernels",
    "refuse_unserved",
    "unserved_traits",
    "unsupported_traits",
]


def unsupported_traits(arch: Architecture) -> list[str]:
    """Say what the transformer lacks of an architecture.

    Args:
        arch: architecture to check.

    Returns:
        The traits in words; none where it can be built.
    """
    windowed = arch.sliding_window > 0 or arch.attention_softcap > 0
    traits = {
        f"kv_lora_rank = {arch.kv_lora_rank} (latent attention) with {_beside_latents(arch)}": bool(
            arch.kv_lora_rank and _beside_latents(arch)
        ),
        "experts, multiway or qk_norm with kind = 'encoder-decoder'": arch.kind == "encoder-decoder"
        and (arch.num_experts > 0 or arch.multiway or arch.qk_norm),
        "mlp_bias with shared experts": arch.mlp_bias and arch.num_shared_experts > 0,
        f"mlp = {arch.mlp!r}": arch.mlp not in ("swiglu", "geglu", "gelu", "gelu-erf", "relu"),
        f"num_token_types = {arch.num_token_types}": arch.num_token_types > 0,
        "pooler": arch.pooler,
        f"windows or caps with kind = {arch.kind!r}, mixer = {arch.mixer!r} or position = "
        f"{arch.position!r}": windowed
        and (
            arch.kind != "decoder"
            or arch.mixer != "attention"
            or arch.position in ("relative", "alibi")
        ),
        # Biases by distance are added to a whole row of scores before its softmax: retention has
        # none, dilated attention several.
        f"mixer = {arch.mixer!r} with kind = {arch.kind!r} or position = "
        f"{arch.position!r}": arch.mixer != "attention"
        and (arch.kind != "decoder" or arch.position in ("relative", "alibi")),
        # Rotation turns columns in pairs.
        f"odd head_dim = {arch.turned_dim} with {arch.position}": arch.position in ("rope", "xpos")
        and arch.turned_dim % 2 == 1,
        "local_rope_theta with xpos": arch.position == "xpos" and arch.local_rope_theta > 0,
        f"num_heads = {arch.num_heads} not a multiple of num_kv_heads = "
        f"{arch.num_kv_heads}": arch.num_heads % arch.num_kv_heads != 0,
    }
    return [trait for trait, present in traits.items() if present]


def _beside_latents(arch: Architecture) -> str:
    """Return what latent attention does not go together with, in words; empty for nothing."""
    traits = {
        f"kind = {arch.kind!r}": arch.kind == "encoder-decoder",
        f"position = {arch.position!r}": arch.position != "rope",
        f"mixer = {arch.mixer!r}": arch.mixer != "attention",
        "biases": arch.qkv_bias or arch.output_bias,
        "qk_norm": arch.qk_norm,
        "subln": arch.subln,
        "multiway": arch.multiway,
        # Its rotary columns are a part of their own; all of them are turned in every layer.
        "rotary_dim, no_rope_every or local_rope_theta": arch.rotary_dim > 0
        or arch.no_rope_every > 0
        or arch.local_rope_theta > 0,
        "windows or caps": arch.sliding_window > 0 or arch.attention_softcap > 0,
        # Heads share one latent already: there are none to group.
        f"num_kv_heads = {arch.num_kv_heads}": arch.num_kv_heads != arch.num_heads,
    }
    return " and ".join(trait for trait, present in traits.items() if present)


def unserved_traits(arch: Architecture) -> list[str]:
    """Say what serving lacks of an architecture.

    Args:
        arch: architecture to check.

    Returns:
        The traits in words; none where it can be served.
    """
    traits = {
        f"kind = {arch.kind!r}": arch.kind != "decoder",
        f"position = {arch.position!r}": arch.position not in ("rope", "learned"),
        f"mixer = {arch.mixer!r}": arch.mixer != "attention",
        f"mlp = {arch.mlp!r}": arch.mlp == "gelu-erf",
        "norms after the residual add": arch.norms_sums,
        "subln": arch.subln,
        "embedding_norm": arch.embedding_norm,
        "multiway": arch.multiway,
    }
    return unsupported_traits(arch) + [trait for trait, present in traits.items() if present]


def refuse_unserved(arch: Architecture) -> None:
    """Refuse an architecture that the serving engine does not run.

    Args:
        arch: architecture to check.

    Raises:
        ConfigError: names every trait that it does not have.
    """
    wrong = unserved_traits(arch)
    if wrong:
        raise ConfigError(
            f"{arch.name} cannot be served: {', '.join(wrong)}",
            hint="decoders with rotary or learned positions can, dense or with experts, and with "
            "latent attention; others can be trained, and called as a model",
        )


def beyond_kernels(arch: Architecture) -> list[str]:
    """Say what the compiled kernels of serving lack of an architecture that can be served.

    PyTorch's packed products run such models, and forecasts of those kernels do not hold for them.

    Args:
        arch: architecture to check.

    Returns:
        The traits in words; none where the kernels have all.
    """
    traits = {"experts": arch.num_experts > 0, "latent attention": arch.kv_lora_rank > 0}
    return [trait for trait, present in traits.items() if present]


def refuse_beyond_kernels(arch: Architecture, what: str) -> None:
    """Refuse an architecture that only dense models' tools are asked for.

    Args:
        arch: architecture to check.
        what: what is asked, in a word such as "quantized".

    Raises:
        ConfigError: it has experts or latent attention.
    """
    beyond = beyond_kernels(arch)
    if beyond:
        raise ConfigError(
            f"{arch.name} cannot be {what}: it has {' and '.join(beyond)}",
            hint="dense models can; `serve --weights int8` rounds this one as it is loaded",
        )


def attention_traits(arch: Architecture, longest: int) -> list[str]:
    """Say what attention does beyond a softmax over all tokens before.

    Args:
        arch: architecture to check.
        longest: tokens of the longest sequence; a window that holds it changes nothing.

    Returns:
        The traits in words; none where causal attention is all.
    """
    traits = {
        f"latent attention (kv_lora_rank = {arch.kv_lora_rank})": arch.kv_lora_rank > 0,
        # A window that holds the longest sequence is none.
        f"sliding windows of {arch.sliding_window} tokens": 0 < arch.sliding_window < longest,
        f"attention_softcap = {arch.attention_softcap:g}": arch.attention_softcap > 0,
    }
    return [trait for trait, present in traits.items() if present]
