"""A decoder whose weights are DTensors, and messages where its layers need more than they hold.

Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3 (columns, then rows); Korthikanti et al.
    2022 (arXiv 2205.05198), section 4.2 (the residual stream cut along its length).
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.transformer import Transformer
from steelyard.train.partition.axes import NORMS
from steelyard.train.partition.boxes import Boxes

__all__ = ["cut_over_data", "cut_over_model", "local"]

_WHOLE = Replicate()


def local(tensor: Tensor) -> Tensor:
    """Return the memory that this process holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def cut_over_model(
    model: Transformer, boxes: Mapping[str, Boxes], mesh: DeviceMesh, *, cuts_length: bool
) -> None:
    """Keep this process's part of each weight, and let layers exchange activations.

    Args:
        model: decoder with equal weights in all processes.
        boxes: how each parameter is cut, by its name.
        mesh: the processes along "model".
        cuts_length: whether the residual stream is cut along its length.
    """
    for name, parameter in list(model.named_parameters()):
        dim = boxes[name].dimension("model")
        placement = _WHOLE if dim is None else Shard(dim)
        held = boxes[name].cut(parameter.detach(), "model")
        placed = DTensor.from_local(held, mesh, [placement], run_check=False)
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, nn.Parameter(placed))
    stream: Placement = Shard(1) if cuts_length else _WHOLE
    _wrap(model.embedding, mesh, _WHOLE, stream)
    if model.position_embedding is not None:
        _wrap(model.position_embedding, mesh, _WHOLE, Shard(0) if cuts_length else _WHOLE)
    if model.embedding_norm is not None:
        _wrap(model.embedding_norm, mesh, stream, stream)
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        _cut_layer(layer, mesh, stream)
    # The head reads its weight as it is: it is to find a DTensor, and no part of the length.
    _wrap(model.norm, mesh, stream, _WHOLE, stays=True)
    model.register_forward_hook(
        lambda _, __, logits: logits.redistribute(mesh, [_WHOLE]).to_local()
    )


def _cut_layer(layer: DecoderLayer, mesh: DeviceMesh, stream: Placement) -> None:
    """Let the parts of a layer exchange what they need."""
    for name in NORMS:
        norm = getattr(layer, name)
        if norm is not None:
            _wrap(norm, mesh, stream, stream)
    for columns, rows in ((layer.qkv, layer.out), (layer.up, layer.down)):
        inner = _columns(columns)
        _wrap(columns, mesh, stream, inner, whole_input=True)
        _wrap(rows, mesh, inner, stream)
    if isinstance(_columns(layer.qkv), Shard):
        queries, keys, values = (count // mesh.size() for count in layer.heads)
        layer.heads = queries, keys, values
        heads: Placement = Shard(2)
    else:
        heads = _WHOLE
    for norm in (layer.query_norm, layer.key_norm):
        if norm is not None:
            _wrap(norm, mesh, heads, heads)


def _columns(linear: nn.Linear) -> Placement:
    """Return how the results of a map are cut whose columns may be."""
    assert isinstance(linear.weight, DTensor)
    return Shard(-1) if linear.weight.placements[0].is_shard(0) else _WHOLE


def _wrap(
    module: nn.Module,
    mesh: DeviceMesh,
    given: Placement,
    wanted: Placement,
    *,
    whole_input: bool = False,
    stays: bool = False,
) -> None:
    """Turn what a module reads into a DTensor, and what it computes into what the next one reads.

    Args:
        module: its parameters are DTensors.
        mesh: the processes along "model".
        given: how its input is cut.
        wanted: how its output shall be cut.
        whole_input: whether it needs all of its input.
        stays: whether the output stays a DTensor.
    """

    def read(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        placed = DTensor.from_local(inputs[0], mesh, [given], run_check=False)
        return (placed.redistribute(mesh, [_WHOLE]) if whole_input else placed,)

    def give(_: nn.Module, __: tuple[Tensor, ...], output: DTensor) -> Tensor:
        placed = output.redistribute(mesh, [wanted])
        return placed if stays else placed.to_local()

    module.register_forward_pre_hook(read)
    module.register_forward_hook(give)


def cut_over_data(
    model: Transformer, boxes: Mapping[str, Boxes], mesh: DeviceMesh
) -> set[nn.Parameter]:
    """Let FSDP keep a part of the weights of each layer, and bring them together for its use.

    Args:
        model: decoder with equal weights along "data".
        boxes: how each parameter is cut, by its name.
        mesh: the processes along "data".

    Returns:
        Parameters that the rules leave whole along "data", whose gradients are not yet summed.
    """
    named = dict(model.named_parameters())
    whole = {item for name, item in named.items() if boxes[name].dimension("data") is None}
    if len(whole) == len(named):
        return whole
    dims = {item: boxes[name].dimension("data") for name, item in named.items()}
    shard = partial(
        fully_shard,
        mesh=mesh,
        shard_placement_fn=lambda item: Shard(dims[item] or 0),
        ignored_params=whole,
    )
    for module in [*model.layers, model]:
        shard(module)
        assert isinstance(module, FSDPModule)
        # Losses are shares of the whole batch's: gradients are added, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return whole


def settle(parameter: nn.Parameter) -> None:
    """Finish a gradient that still is one of several parts to be added along "model"."""
    gradient = parameter.grad
    if (
        isinstance(gradient, DTensor)
        and isinstance(parameter, DTensor)
        and gradient.placements != parameter.placements
    ):
        parameter.grad = gradient.redistribute(gradient.device_mesh, parameter.placements)


def placed_like(held: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of a tensor in the form of a parameter."""
    if not isinstance(parameter, DTensor):
        return held
    mesh = parameter.device_mesh
    return DTensor.from_local(
        held.to(parameter.device), mesh, parameter.placements, run_check=False
    )
