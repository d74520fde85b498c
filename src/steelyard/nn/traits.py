"""Which architectures the transformer of this package can be built for; needs no torch."""

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError

__all__ = [
    "attention_traits",
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
        f"kv_lora_rank = {arch.kv_lora_rank} (latent attention)": arch.kv_lora_rank > 0,
        "router_bias": arch.router_bias,
        "experts, multiway or qk_norm with kind = 'encoder-decoder'": arch.kind == "encoder-decoder"
        and (arch.num_experts > 0 or arch.multiway or arch.qk_norm),
        "mlp_bias with shared experts": arch.mlp_bias and arch.num_shared_experts > 0,
        f"mlp = {arch.mlp!r}": arch.mlp not in ("swiglu", "geglu", "gelu", "relu"),
        f"num_token_types = {arch.num_token_types}": arch.num_token_types > 0,
        "pooler": arch.pooler,
        f"windows or caps with kind = {arch.kind!r}, mixer = {arch.mixer!r} or position = "
        f"{arch.position!r}": windowed
        and (
            arch.kind != "decoder"
            or arch.mixer != "attention"
            or arch.position in ("relative", "alibi")
        ),
        f"mixer = {arch.mixer!r} with kind = {arch.kind!r} or position = "
        f"{arch.position!r}": arch.mixer != "attention"
        and (arch.kind != "decoder" or arch.position in ("relative", "alibi")),
        f"odd head_dim = {arch.head_dim} with {arch.position}": arch.position in ("rope", "xpos")
        and arch.head_dim % 2 == 1,
        "local_rope_theta with xpos": arch.position == "xpos" and arch.local_rope_theta > 0,
        f"num_heads = {arch.num_heads} not a multiple of num_kv_heads = "
        f"{arch.num_kv_heads}": arch.num_heads % arch.num_kv_heads != 0,
    }
    return [trait for trait, present in traits.items() if present]


def unserved_traits(arch: Architecture) -> list[str]:
    """Say what serving and Hugging Face folders lack of an architecture.

    Args:
        arch: architecture to check.

    Returns:
        The traits in words; none where it can be served.
    """
    traits = {
        f"kind = {arch.kind!r}": arch.kind != "decoder",
        f"num_experts = {arch.num_experts} (mixture of experts)": arch.num_experts > 0,
        f"position = {arch.position!r}": arch.position not in ("rope", "learned"),
        f"mixer = {arch.mixer!r}": arch.mixer != "attention",
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
            hint="dense decoders with rotary or learned positions can; others can be trained, and "
            "called as a model",
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
        f"sliding windows of {arch.sliding_window} tokens": 0 < arch.sliding_window < longest,
        f"attention_softcap = {arch.attention_softcap:g}": arch.attention_softcap > 0,
    }
    return [trait for trait, present in traits.items() if present]
