"""What the native kernels lack of an architecture."""

from steelyard.catalog.architecture import Architecture
from steelyard.nn.traits import attention_traits

__all__ = ["missing_traits"]


def missing_traits(arch: Architecture, longest: int) -> list[str]:
    """Say what the kernels do not compute of a model.

    Args:
        arch: a decoder that `nn.transformer` builds.
        longest: tokens of the longest sequence; a window that holds it changes nothing.

    Returns:
        The traits in words; none where the kernels can run it.
    """
    local = arch.sliding_window > 0 and arch.local_rope_theta not in (0.0, arch.rope_theta)
    traits = {
        f"mlp = {arch.mlp!r}": arch.mlp == "geglu",
        "norms after attention and MLP": arch.post_norm or arch.sandwich_norm,
        "norms with an offset of 1": arch.unit_offset_norm,
        "norms over all query heads together": arch.qk_norm_across_heads,
        "layers that are not turned": arch.no_rope_every > 0,
        f"heads turned in {arch.rotary_dim} of {arch.head_dim} columns": 0
        < arch.rotary_dim
        < arch.head_dim,
        "a rotary base of windows": local,
        f"attention_scale = {arch.attention_scale:g}": arch.attention_scale > 0,
        f"embedding_scale = {arch.embedding_scale:g}": arch.embedding_scale != 1.0,
        f"residual_scale = {arch.residual_scale:g}": arch.residual_scale != 1.0,
        f"logit_divisor = {arch.logit_divisor:g}": arch.logit_divisor != 1.0,
        f"logit_softcap = {arch.logit_softcap:g}": arch.logit_softcap > 0,
    }
    found = [trait for trait, present in traits.items() if present]
    return found + attention_traits(arch, longest)
