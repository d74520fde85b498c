"""Several averages of the weights in one run, and evaluation with one of them swapped in."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from steelyard.errors import ConfigError
from steelyard.train.callback import Callback, StepState
from steelyard.train.weight_average import WeightAverage

__all__ = ["Averages", "swapped"]


class Averages(Callback):
    """Keeps averages of all weights and of running statistics, updated after every step.

    Attributes:
        name: "averages".
    """

    name = "averages"

    def __init__(self, kinds: Sequence[WeightAverage]) -> None:
        """Say which averages are kept.

        Args:
            kinds: each with a name of its own.
        """
        self._kinds = {kind.name: kind for kind in kinds}
        self._live: list[Tensor] = []
        self._kept: dict[str, list[list[Tensor]]] = {}
        self._updates = 0

    @property
    def names(self) -> list[str]:
        """Names of the averages."""
        return list(self._kinds)

    def begin(self, state: StepState, /) -> None:
        """Start every average at the weights as they are."""
        # Statistics belong to the weights: batch norms would see other activations with averages.
        buffers = [item for item in state.module.buffers() if item.is_floating_point()]
        self._live = [*state.module.parameters(), *buffers]
        self._updates = 0
        self._kept = {
            name: [] if kind.kind == "lawa" else [_copies(self._live)]
            for name, kind in self._kinds.items()
        }

    def after_update(self, state: StepState, /) -> None:
        """Take the new weights in."""
        for name, kind in self._kinds.items():
            kept = self._kept[name]
            if kind.kind == "lawa":
                if (self._updates + 1) % kind.window == 0:
                    kept.append(_copies(self._live))
                    del kept[: -kind.count]
            else:
                _mix(kept[0], self._live, self._share(kind))
        self._updates += 1

    def _share(self, kind: WeightAverage) -> float:
        """Return how much of the average the new weights become."""
        if kind.kind == "swa":
            return 1 / (self._updates % kind.window + 1)
        # Less inertia in the first steps: the weights of the very start would stay too long.
        return 1 - min(kind.decay, (1 + self._updates) / (10 + self._updates))

    @contextmanager
    def swapped(self, name: str) -> Iterator[None]:
        """Put an average in the place of the weights, without a copy.

        Args:
            name: one of `names`.

        Yields:
            Nothing.

        Raises:
            ConfigError: there is no such average, or nothing was averaged yet.
        """
        kept = self._kept.get(name, [])
        if not kept:
            raise ConfigError(
                f"there is no average {name!r} of these weights yet; the run keeps {self.names}",
                hint="name one of them, and evaluate a lawa average after its first window",
            )
        average = kept[0] if len(kept) == 1 else _mean(kept)
        with swapped(self._live, average):
            yield

    def has(self, name: str) -> bool:
        """Whether an average has taken in any weights yet."""
        return bool(self._kept[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return averages and the count of updates."""
        named = {
            f"{name}.{index}.{place}": tensor
            for name, kept in self._kept.items()
            for index, tensors in enumerate(kept)
            for place, tensor in enumerate(tensors)
        }
        return named | {"updates": torch.tensor(self._updates)}

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take over what `tensors` returned."""
        self._updates = int(tensors["updates"])
        for name in self._kept:
            count = sum(f"{name}.{index}.0" in tensors for index in range(self._kinds[name].count))
            self._kept[name] = [
                [
                    tensors[f"{name}.{index}.{place}"].to(live.device)
                    for place, live in enumerate(self._live)
                ]
                for index in range(count)
            ]


@contextmanager
def swapped(live: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[None]:
    """Exchange the memory of two lists of tensors for a block.

    Args:
        live: weights.
        others: tensors of the same shapes.

    Yields:
        Nothing.
    """
    _exchange(live, others)
    try:
        yield
    finally:
        _exchange(live, others)


def _exchange(ones: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Exchange the memory behind tensors, pair by pair."""
    for one, other in zip(ones, others, strict=True):
        one.data, other.data = other.data, one.data


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors."""
    return [item.detach().clone() for item in tensors]


@torch.no_grad()
def _mix(average: list[Tensor], live: list[Tensor], share: float) -> None:
    """Move an average towards the weights by `share` of the way."""
    torch._foreach_lerp_(average, live, share)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def _mean(kept: list[list[Tensor]]) -> list[Tensor]:
    """Average several copies."""
    total = _copies(kept[0])
    for number, tensors in enumerate(kept[1:], start=2):
        _mix(total, tensors, 1 / number)
    return total
