"""What the inputs of a layer's matrices look like on given sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steelyard.nn.quantizing.states import HiddenStates

__all__ = ["InputMoments", "input_moments"]


@dataclass(slots=True)
class InputMoments:
    """Moments of what is multiplied with one matrix.

    Attributes:
        hessian: mean of x x^T, float32 [K, K].
        mean_size: mean of |x|, float32 [K].
    """

    hessian: Tensor
    mean_size: Tensor

    def scaled(self, scales: Tensor) -> "InputMoments":
        """Return the moments of x / scales, scales float32 [K]."""
        return InputMoments(self.hessian / scales[:, None] / scales[None], self.mean_size / scales)


@torch.no_grad()
def input_moments(
    layer: nn.Module, states: HiddenStates, rows: slice, names: Sequence[str]
) -> dict[str, InputMoments]:
    """Run sequences through a layer and sum up what its matrices read.

    Args:
        layer: the one that comes next, in float32.
        states: where the sequences stand; they stay there.
        rows: the sequences.
        names: matrices of the layer.

    Returns:
        Moments by name.
    """
    sums: dict[str, InputMoments] = {}
    count = 0

    def add(name: str, given: Tensor) -> None:
        nonlocal count
        flat = given.flatten(0, -2)
        count += len(flat) if name == names[0] else 0
        if name not in sums:
            width = flat.shape[1]
            sums[name] = InputMoments(torch.zeros(width, width), torch.zeros(width))
        sums[name].hessian.addmm_(flat.T, flat)
        sums[name].mean_size += flat.abs().sum(0)

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, inputs: add(name, inputs[0])

    hooks = [layer.get_submodule(name).register_forward_pre_hook(hook(name)) for name in names]
    try:
        states.run(layer, rows, lambda _start, _passed: None)
    finally:
        for handle in hooks:
            handle.remove()
    for item in sums.values():
        item.hessian /= count
        item.mean_size /= count
    return sums
