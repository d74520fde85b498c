"""A decoder spread over a mesh of processes, and its state as whole tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.train.config import TrainConfig
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.partition.axes import axes_of, decoder_axes, unknown_traits
from steelyard.train.partition.boxes import Boxes
from steelyard.train.partition.layout import (
    cut_over_data,
    cut_over_model,
    local,
    placed_like,
    settle,
)
from steelyard.train.partition_rules import mesh_axes, violations
from steelyard.train.pieces import TensorPiece, rows_of

__all__ = ["Partition"]


class Partition:
    """Spreads the weights and moments of one decoder by rules, and knows who holds what."""

    def __init__(self, config: ParallelConfig, mesh: DeviceMesh) -> None:
        """Take the processes; nothing is spread before `spread`.

        Args:
            config: the rules.
            mesh: processes along "data" and "model".
        """
        self._rules = config.all_rules
        self._mesh = mesh
        self._sizes = {name: mesh[name].size() for name in ("data", "model")}
        self._places = {name: mesh.get_local_rank(name) for name in ("data", "model")}
        self._boxes: dict[str, Boxes] = {}
        self._parameters: dict[str, nn.Parameter] = {}
        self._unsummed: set[nn.Parameter] = set()

    def spread(self, module: nn.Module, config: EstimatorConfig) -> None:
        """Leave in this process its part of a model.

        Args:
            module: model with equal weights in all processes.
            config: the run.

        Raises:
            ConfigError: the rules cannot be met; the message lists all reasons.
        """
        wrong = _unspreadable(module, config) or self._unmet(module, config)
        if wrong:
            listed = "".join(f"\n  - {item}" for item in wrong)
            sizes = " and ".join(f"{name} = {size}" for name, size in self._sizes.items())
            raise ConfigError(
                f"the model cannot be spread over {sizes} processes:{listed}",
                hint="change parallel.partition, parallel.rules, parallel.model or the model",
            )
        assert isinstance(module, Transformer)
        axes = decoder_axes(module)
        self._boxes = {
            name: Boxes.of(axes_of(name, axes), self._rules, self._places, self._sizes)
            for name, _ in module.named_parameters()
        }
        if self._sizes["model"] > 1:
            (length,) = mesh_axes(("length",), self._rules)
            cut_over_model(module, self._boxes, self._mesh["model"], cuts_length=length == "model")
        self._unsummed = set(module.parameters())
        if self._sizes["data"] > 1:
            self._unsummed = cut_over_data(module, self._boxes, self._mesh["data"])
        self._parameters = dict(module.named_parameters())

    def _unmet(self, module: nn.Module, config: EstimatorConfig) -> list[str]:
        """Return the rules that a model's shape does not allow."""
        assert isinstance(module, Transformer) and isinstance(config, TrainConfig)
        stream = {"batch": config.accumulation, "length": config.sequence_length}
        wrong = violations(decoder_axes(module), stream, self._rules, self._sizes)
        if mesh_axes(("batch",), self._rules) != ("data",):
            wrong.append("batch is kept whole, but processes along data take parts of each step")
        return wrong

    def regroup(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Let no group of an optimizer hold weights of different meshes, which torch refuses."""
        for optimizer in optimizers:
            groups = []
            for group in optimizer.param_groups:
                by_mesh: dict[object, list[nn.Parameter]] = {}
                for item in group["params"]:
                    by_mesh.setdefault(getattr(item, "device_mesh", None), []).append(item)
                groups += [{**group, "params": items} for items in by_mesh.values()]
            optimizer.param_groups[:] = groups

    @contextmanager
    def unsummed(self, parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """Yield what this process holds of gradients that are not summed along "data" yet.

        Args:
            parameters: those that are trained.

        Yields:
            Plain stand-ins for parameters; what their `grad` becomes goes back.
        """
        for item in parameters:
            settle(item)
        rest = [item for item in parameters if item in self._unsummed and item.grad is not None]
        stands = []
        for item in rest:
            stands.append(nn.Parameter(local(item.detach())))
            assert item.grad is not None
            stands[-1].grad = local(item.grad)
        yield stands
        for stand, item in zip(stands, rest, strict=True):
            assert item.grad is not None and stand.grad is not None
            local(item.grad).copy_(stand.grad)

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        """Scale the gradients down to a norm of `largest` over all processes, if it is larger."""
        copies = {item: self._boxes[name].copies for name, item in self._parameters.items()}
        held = [(item, local(item.grad)) for item in parameters if item.grad is not None]
        total = torch.zeros((), dtype=torch.float64)
        for item, gradient in held:
            total += gradient.double().square().sum().cpu() / copies[item]
        dist.all_reduce(total)
        scale = largest / (float(total.sqrt()) + 1e-6)
        if scale < 1:
            for _, gradient in held:
                gradient.mul_(scale)

    def pieces(self, tensors: Mapping[str, Tensor]) -> list[TensorPiece]:
        """Return what this process writes of a run's state.

        Args:
            tensors: weights, moments and what else a checkpoint holds, by name.

        Returns:
            Pieces that with those of the other processes make up whole tensors.
        """
        rest, pieces = {}, []
        for name, tensor in tensors.items():
            boxes = self._boxes_of(name, tensor)
            if boxes is None:
                rest[name] = tensor
            else:
                pieces += boxes.pieces(name, local(tensor))
        return pieces + rows_of(rest, dist.get_rank(), dist.get_world_size())

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what this process holds of whole tensors, in the form of its weights.

        Args:
            tensors: whole tensors of a checkpoint, by name.

        Returns:
            The same names.
        """
        found = dict(tensors)
        for name, tensor in tensors.items():
            boxes = self._boxes_of(name, tensor)
            if boxes is not None:
                held = boxes.cut(boxes.cut(tensor, "model"), "data")
                found[name] = placed_like(held, self._parameters[name.partition(".")[2]])
        return found

    def _boxes_of(self, name: str, tensor: Tensor) -> Boxes | None:
        """Return how a named tensor of a checkpoint is cut; None for what every process holds."""
        kind, _, parameter = name.partition(".")
        boxes = self._boxes.get(parameter)
        # Beside weights and moments there are buffers, and counts of steps, which are no matrices.
        is_whole = boxes is None or kind == "buffer" or tensor.ndim != len(boxes.cuts)
        return None if is_whole else boxes


def _unspreadable(module: nn.Module, config: EstimatorConfig) -> list[str]:
    """Return what of a run does not go with spread weights."""
    if not (isinstance(module, Transformer) and isinstance(config, TrainConfig)):
        return [f"{type(module).__name__} has no named axes; those of decoders are known"]
    wrong = unknown_traits(module.architecture)
    if config.optimizer not in ("adamw", "sgd"):
        wrong.append(f"optimizer {config.optimizer!r} looks at whole matrices; use adamw or sgd")
    if config.dtype != "fp32":
        wrong.append(f"dtype {config.dtype!r} is not spread; use fp32")
    if config.device != "cpu":
        wrong.append(f"device {config.device!r} is not spread; use cpu")
    if config.averages:
        wrong.append("averages are kept of whole weights; leave them out")
    if config.measure or config.adaptive_batch:
        wrong.append("measurements read whole gradients; leave measure and adaptive_batch out")
    if config.compile:
        wrong.append("spread weights are not compiled; set compile = false")
    return wrong
