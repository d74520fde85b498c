"""A transformer whose linear layers are packed, sharing everything else."""

import copy
from typing import cast

from torch import Tensor, nn

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.linear import PackedLinear, can_pack, require_packing
from steelyard.serve.running.pages import let_go
from steelyard.serve.running.weights import ComputedIn, head_type

__all__ = ["packed_model"]


class _PackedTransformer(Transformer):
    """A transformer whose head is packed too."""

    packed_head: PackedLinear

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., C]."""
        return self.packed_head(hidden)


class _WideEmbedding(nn.Module):
    """Rows of a table in float32, whatever its type."""

    def __init__(self, table: nn.Embedding) -> None:
        """Share the table."""
        super().__init__()
        self._table = table
        self.weight = table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 [..., C] of int64 [...]."""
        return self._table(tokens).float()


def packed_model(model: Transformer, weights: ComputedIn = "fp32") -> tuple[Transformer, int]:
    """Return a model that shares everything with another but its linear layers, which are packed.

    Activations are float32. Later changes of weights do not reach it.

    Args:
        model: in float32 or bfloat16 on the CPU.
        weights: type of the products.

    Returns:
        The model, for inference only, and the bytes of its packed copies. Where PyTorch cannot pack
        float32, the model itself and 0.

    Raises:
        BackendError: this PyTorch has no products of the type.
    """
    if weights == "fp32" and not can_pack("fp32"):
        is_wide = model.embedding.weight.dtype.itemsize == 4
        return model if is_wide else copy.deepcopy(model).float(), 0
    require_packing(weights)
    twin = cast(_PackedTransformer, _shallow(model))
    twin.__class__ = _PackedTransformer
    twin.layers = nn.ModuleList(_packed_layer(layer, weights) for layer in model.layers)
    for name in ("embedding", "position_embedding"):
        table = getattr(model, name)
        if table is not None:
            twin._modules[name] = _WideEmbedding(table)
    twin.norm = _widened(model.norm)
    head = model.embedding.weight if model.output is None else model.output.weight
    twin.packed_head = PackedLinear(head, kind=head_type(weights))
    let_go(head)
    return twin, sum(item.num_bytes for item in twin.modules() if isinstance(item, PackedLinear))


def _packed_layer(layer: nn.Module, weights: ComputedIn) -> DecoderLayer:
    """Pack a layer's linear maps; norms are shared."""
    twin = cast(DecoderLayer, _shallow(layer))
    for name, part in layer.named_children():
        if isinstance(part, nn.Linear):
            twin._modules[name] = PackedLinear(part.weight, part.bias, weights)
            let_go(part.weight)
        else:
            twin._modules[name] = _widened(part)
    return twin


def _widened(part: nn.Module) -> nn.Module:
    """Return a small part in float32: itself, or a copy."""
    return (
        part
        if all(item.dtype.itemsize == 4 for item in part.parameters())
        else (copy.deepcopy(part).float())
    )


def _shallow(module: nn.Module) -> nn.Module:
    """Copy a module so that replacing a part leaves the original alone."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
