"""How far each step moves each parameter, relative to its size."""

import torch
from torch import Tensor

from steelyard.errors import require
from steelyard.train.callback import Callback, StepState

__all__ = ["UpdateSizes"]


class UpdateSizes(Callback):
    """Measures |w' - w| / |w| of every parameter every few steps; about 1e-3 is healthy for Adam.

    Attributes:
        name: "update-sizes".
    """

    name = "update-sizes"

    def __init__(self, *, every: int = 10) -> None:
        """Say how often.

        Args:
            every: steps between measurements; each holds a copy of the weights during its step.

        Raises:
            ConfigError: `every` is below 1.
        """
        self.every = every
        require(self, every=(every >= 1, "at least 1"))
        self._names: list[str] = []
        self._before: list[Tensor] = []
        self._steps: list[int] = []
        self._sizes: list[Tensor] = []

    def begin(self, state: StepState, /) -> None:
        """Take the names of parameters."""
        self._names = list(state.parameters)
        self._steps, self._sizes = [], []

    def before_update(self, state: StepState, /) -> None:
        """Keep the weights."""
        if state.step % self.every == 0:
            self._before = [item.detach().clone() for item in state.parameters.values()]

    @torch.no_grad()
    def after_update(self, state: StepState, /) -> None:
        """Compare the weights with those before."""
        if not self._before:
            return
        weights: list[Tensor] = [*state.parameters.values()]
        sizes = torch.stack(torch._foreach_norm(self._before))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_sub_(self._before, weights)  # pyright: ignore[reportPrivateImportUsage]
        moved = torch.stack(torch._foreach_norm(self._before))  # pyright: ignore[reportPrivateImportUsage]
        self._before = []
        self._steps.append(state.step)
        self._sizes.append((moved / sizes).double().cpu())

    def tensors(self) -> dict[str, Tensor]:
        """Return steps and sizes so far."""
        if not self._steps:
            return {}
        return {"steps": torch.tensor(self._steps), "sizes": torch.stack(self._sizes)}

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take over earlier sizes."""
        self._steps = tensors["steps"].tolist()
        self._sizes = list(tensors["sizes"])

    def report(self) -> dict[str, object]:
        """Return the median over parameters by step, and each parameter's last size.

        A parameter of zeros has no relative size: it is None.
        """
        if not self._steps:
            return {}
        medians = [float(sizes[sizes.isfinite()].median()) for sizes in self._sizes]
        last = [float(size) if size.isfinite() else None for size in self._sizes[-1]]
        return {
            "curve": list(zip(self._steps, medians, strict=True)),
            "parameters": dict(zip(self._names, last, strict=True)),
        }
