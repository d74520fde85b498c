"""A transformer whose linear layers are packed, sharing everything else."""

import copy
import warnings
from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from steelyard.errors import SteelyardWarning
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.mixers.latent import LatentAttention
from steelyard.nn.moe.experts import MixtureOfExperts
from steelyard.nn.moe.separate import SeparateExperts
from steelyard.nn.stored import StoredLinear
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.latent import CachedLatent
from steelyard.serve.running.linear import PackedLinear, can_pack, require_packing
from steelyard.serve.running.rounded import RoundedLinear
from steelyard.serve.running.shallow import shallow
from steelyard.serve.running.sources import LinearTypes, head_of, release
from steelyard.serve.running.weights import ComputedIn, chosen_weights

__all__ = ["model_with", "packable", "packed_model", "without_capacity"]

_WITH_MAPS = (DecoderLayer, LatentAttention, CachedLatent, SeparateExperts, nn.ModuleList)
"""Parts that have linear maps inside."""


class _PackedTransformer(Transformer):
    """A transformer whose head is packed too."""

    packed_head: PackedLinear | RoundedLinear

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., C]."""
        return self.finish(self.packed_head(hidden))


class _WideEmbedding(nn.Module):
    """Rows of a table in float32, whatever its type."""

    def __init__(self, table: nn.Module) -> None:
        """Share the table."""
        super().__init__()
        self._table = table

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 [..., C] of int64 [...]."""
        return self._table(tokens).float()


def packed_model(model: Transformer, weights: ComputedIn = "fp32") -> tuple[Transformer, int]:
    """Return a model that shares everything with another but its linear layers, which are packed.

    Activations are float32. Later changes of weights do not reach it.

    Args:
        model: model in float32 or bfloat16 on the CPU.
        weights: type of the products.

    Returns:
        The model, for inference only, and the bytes of its packed copies. Where PyTorch cannot pack
        float32, the model itself and 0.

    Raises:
        BackendError: this PyTorch has no products of the type.
    """
    if weights == "fp32" and not can_pack("fp32"):
        is_wide = next(model.parameters()).dtype.itemsize == 4
        return model if is_wide else copy.deepcopy(model).float(), 0
    require_packing(weights)
    return model_with(PackedLinear, model, weights)


def packable(model: Transformer, weights: ComputedIn) -> ComputedIn:
    """Return the type in which PyTorch can compute a model: that of its codes, or float32.

    Args:
        model: a decoder.
        weights: type of the products that is wanted.

    Returns:
        The same type; "fp32" for a model that has codes which this PyTorch has no products for,
        with a warning.
    """
    # A type that the caller asked for and the file does not have is refused later, not replaced.
    if weights != chosen_weights(model, "auto") or weights in ("fp32", "bf16"):
        return weights
    if all(can_pack(kind) for kind in ("int8", weights)):
        return weights
    warnings.warn(
        f"this PyTorch has no products with {weights} weights on this processor: the codes of "
        f"{model.architecture.name} are turned into float32, several times as large",
        SteelyardWarning,
        stacklevel=2,
    )
    return "fp32"


def model_with(
    kind: type[PackedLinear] | type[RoundedLinear], model: Transformer, weights: ComputedIn
) -> tuple[Transformer, int]:
    """Return a model that shares everything with another but its linear maps.

    Args:
        kind: class of its linear maps.
        model: model in float32 or bfloat16 on the CPU.
        weights: type of the products.

    Returns:
        The model, for inference only, and the bytes that the maps hold.
    """
    twin = cast(_PackedTransformer, shallow(model))
    twin.__class__ = _PackedTransformer
    types = LinearTypes(model, weights)

    def packed(item: nn.Module, *, is_head: bool = False) -> PackedLinear | RoundedLinear:
        made = kind(
            types.source(item), getattr(item, "bias", None), types.of(item, is_head=is_head)
        )
        release(item)
        return made

    twin.layers = nn.ModuleList(_packed_part(layer, packed) for layer in model.layers)
    for name in ("embedding", "position_embedding"):
        table = getattr(model, name)
        if table is not None:
            twin._modules[name] = _WideEmbedding(table)
    twin.norm = _widened(model.norm)
    twin.packed_head = packed(head_of(model), is_head=True)
    return twin, sum(item.num_bytes for item in twin.modules() if isinstance(item, kind))


def without_capacity(model: Transformer) -> Transformer:
    """Return a model whose experts take every visit, sharing everything with another.

    Args:
        model: model with experts that were trained with a capacity.

    Returns:
        The model, for inference only: what a token gets does not depend on those beside it.
    """
    twin = cast(Transformer, shallow(model))
    twin.layers = nn.ModuleList(shallow(layer) for layer in model.layers)
    for layer in twin.layers:
        if isinstance(layer.experts, MixtureOfExperts):
            layer._modules["experts"] = SeparateExperts(layer.experts)
    return twin


def _packed_part(part: nn.Module, packed: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Pack the linear maps of a layer or of a part of one; what else it has is shared."""
    if isinstance(part, (nn.Linear, StoredLinear)):
        return packed(part)
    if isinstance(part, MixtureOfExperts):
        # Products are packed matrix by matrix; the experts' weights are one tensor.
        part = SeparateExperts(part)
    if not isinstance(part, _WITH_MAPS):
        return _widened(part)
    twin = shallow(part)
    for name, inner in part.named_children():
        twin._modules[name] = _packed_part(inner, packed)
    return twin


def _widened(part: nn.Module) -> nn.Module:
    """Return a small part in float32: itself, or a copy."""
    return (
        part
        if all(item.dtype.itemsize == 4 for item in part.parameters())
        else (copy.deepcopy(part).float())
    )
