"""Which architectures the transformer of this package can be built for; needs no torch."""

from steelyard.catalog.architecture import Architecture

__all__ = ["unsupported_traits"]


def unsupported_traits(arch: Architecture) -> list[str]:
    """Say what the transformer lacks of an architecture.

    Args:
        arch: architecture to check.

    Returns:
        The traits in words; none where it can be built.
    """
    traits = {
        f"kind = {arch.kind!r}": arch.kind != "decoder",
        f"num_experts = {arch.num_experts} (mixture of experts)": arch.num_experts > 0,
        f"kv_lora_rank = {arch.kv_lora_rank} (latent attention)": arch.kv_lora_rank > 0,
        f"position = {arch.position!r}": arch.position not in ("rope", "learned"),
        f"mlp = {arch.mlp!r}": arch.mlp not in ("swiglu", "gelu", "relu"),
        "sandwich_norm": arch.sandwich_norm,
        f"num_token_types = {arch.num_token_types}": arch.num_token_types > 0,
        "pooler": arch.pooler,
        f"odd head_dim = {arch.head_dim} with rope": arch.position == "rope"
        and arch.head_dim % 2 == 1,
        f"num_heads = {arch.num_heads} not a multiple of num_kv_heads = "
        f"{arch.num_kv_heads}": arch.num_heads % arch.num_kv_heads != 0,
    }
    return [trait for trait, present in traits.items() if present]
