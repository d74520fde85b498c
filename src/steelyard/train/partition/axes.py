"""The axes of a decoder's parameters, by name."""

from collections.abc import Mapping

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer
from steelyard.train.partition_rules import ParameterAxes

__all__ = ["decoder_axes", "unknown_traits"]


def decoder_axes(model: Transformer) -> dict[str, ParameterAxes]:
    """Return the axes of every parameter, layers without their number.

    Args:
        model: a dense decoder with traits that can be cut.

    Returns:
        Axes by name; "layers.qkv.weight" stands for that of each layer.
    """
    known = _known(model.architecture)
    names = {_without_number(name) for name, _ in model.named_parameters()}
    return {name: known[name] for name in sorted(names & known.keys())}


def axes_of(name: str, axes: Mapping[str, ParameterAxes]) -> ParameterAxes:
    """Return the axes of a parameter by its full name."""
    return axes[_without_number(name)]


def _without_number(name: str) -> str:
    """Return a parameter's name without the number of its layer."""
    first, _, rest = name.partition(".")
    return f"layers.{rest.partition('.')[2]}" if first == "layers" else name


def _known(arch: Architecture) -> dict[str, ParameterAxes]:
    """Return the axes of all parameters that dense decoders may have."""
    width, vocab = (arch.hidden_size,), (arch.vocab_size,)
    heads = (arch.num_heads, arch.num_kv_heads, arch.num_kv_heads)
    inner = (arch.intermediate_size,) * (2 if arch.is_gated else 1)
    mixed, hidden = (arch.num_heads,), (arch.intermediate_size,)
    table = {
        "embedding.weight": (("vocab", "embed"), (vocab, width)),
        "output.weight": (("vocab", "embed"), (vocab, width)),
        "position_embedding.weight": (("positions", "embed"), ((1,), width)),
        "layers.qkv.weight": (("heads", "embed"), (heads, width)),
        "layers.qkv.bias": (("heads",), (heads,)),
        "layers.out.weight": (("embed", "heads"), (width, mixed)),
        "layers.up.weight": (("mlp", "embed"), (inner, width)),
        "layers.up.bias": (("mlp",), (inner,)),
        "layers.down.weight": (("embed", "mlp"), (width, hidden)),
        "layers.query_norm.weight": (("head",), ((arch.head_dim,),)),
        "layers.key_norm.weight": (("head",), ((arch.head_dim,),)),
    }
    vectors = ["layers.out.bias", "layers.down.bias"]
    norms = ["embedding_norm", "norm", *(f"layers.{name}" for name in NORMS)]
    vectors += [f"{norm}.{part}" for norm in norms for part in ("weight", "bias")]
    return {name: ParameterAxes(*value) for name, value in table.items()} | {
        name: ParameterAxes(("embed",), (width,)) for name in vectors
    }


NORMS = (
    "attention_norm",
    "attention_post_norm",
    "attention_sum_norm",
    "mlp_norm",
    "mlp_post_norm",
    "mlp_sum_norm",
)
"""Norms of the residual stream in a layer."""


def unknown_traits(arch: Architecture) -> list[str]:
    """Return the traits of an architecture whose parameters or activations cannot be cut.

    Args:
        arch: any.

    Returns:
        One sentence each; none of a dense decoder with rotary or learned positions.
    """
    wrong = {
        f"kind {arch.kind!r}": arch.kind != "decoder",
        f"{arch.num_experts} experts": bool(arch.num_experts),
        f"mixer {arch.mixer!r}": arch.mixer != "attention",
        f"position {arch.position!r}": arch.position not in ("rope", "learned", "none"),
        "norms inside of attention and MLP (subln)": arch.subln,
        "multiway layers": bool(arch.multiway),
        "norms across heads": arch.qk_norm and arch.qk_norm_across_heads,
        "layers that are left out by chance (drop_path)": arch.drop_path > 0,
    }
    return [
        f"{arch.name} has {trait}, which cannot be cut" for trait, there in wrong.items() if there
    ]
