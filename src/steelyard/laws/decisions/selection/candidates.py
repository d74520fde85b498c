"""Candidate models, the cost of an example with each, and the losses measured so far."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.terms import Array

__all__ = ["Candidate", "LossAt", "Measurements"]

LossAt = Callable[[str, int], float] | Mapping[str, Mapping[int, float]]
"""Source of the loss of a model after tuning on a number of examples: a function that trains, or a
table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A pretrained model.

    Attributes:
        name: name under which `losses` knows it.
        parameters: number of parameters; ranks models by size, and prices an example when
            `flops_per_example` is not given.
        tokens_per_example: tokens of an example, which price it.
        flops_per_example: FLOP of one tuning step on one example; 0 for 6 * parameters *
            tokens_per_example.
        tokenizer: name of its vocabulary; losses per token compare only within one.
    """

    name: str
    parameters: float
    tokens_per_example: float = 1.0
    flops_per_example: float = 0.0
    tokenizer: str = ""

    def __post_init__(self) -> None:
        """Refuse counts that are not positive."""
        if not (
            math.isfinite(self.parameters)
            and self.parameters > 0
            and self.tokens_per_example > 0
            and self.flops_per_example >= 0
        ):
            raise FitError(
                f"candidate {self.name}: parameters and tokens per example must be positive and "
                f"FLOP not negative"
            )

    @property
    def cost_flops(self) -> float:
        """FLOP of tuning on one example, a forward and a backward pass."""
        return self.flops_per_example or 6.0 * self.parameters * self.tokens_per_example


@dataclass(slots=True)
class Measurements:
    """Losses by model and data size, filled on demand.

    Remembers what they cost and which models failed.

    Attributes:
        candidates: candidate by name.
        losses: the function that trains, or the table.
        known: losses measured so far, by model and size.
        failed: reason why a model was given up, by name.
    """

    candidates: Mapping[str, Candidate]
    losses: LossAt
    known: dict[str, dict[int, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> list[str]:
        """Models that have not failed, in the order given."""
        return [name for name in self.candidates if name not in self.failed]

    def measure(self, names: Iterable[str], examples: int) -> None:
        """Get the loss of some models at one size.

        One that diverged is marked failed and the others go on.

        Args:
            names: names of models; those that failed are left out.
            examples: data size, 0 for the model before tuning.
        """
        for name in names:
            own = self.known.setdefault(name, {})
            if name in self.failed or examples in own:
                continue
            value = (
                self.losses(name, examples)
                if callable(self.losses)
                else self.losses[name].get(examples)
            )
            if value is None:  # the table has no such size
                continue
            own[examples] = float(value)
            if not (math.isfinite(value) and value > 0):
                self.failed[name] = f"loss {value:g} at {examples} examples"

    def curve(self, name: str) -> tuple[Array, Array]:
        """Return a model's tuned sizes, rising, and its losses, [n] each."""
        sizes = sorted(size for size in self.known.get(name, {}) if size > 0)
        return np.array(sizes, dtype=np.float64), np.array(
            [self.known[name][size] for size in sizes]
        )

    def flops(self, names: Sequence[str] | None = None) -> float:
        """Return the FLOP of the measured sizes of the named models, or of all."""
        chosen = self.known if names is None else names
        return sum(
            self.candidates[name].cost_flops * sum(self.known.get(name, {})) for name in chosen
        )
