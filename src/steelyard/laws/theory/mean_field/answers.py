"""What the random-feature model answers: curves, exponents, best splits, what binds."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.laws.fitting.terms import Array

__all__ = ["ComputeOptimal", "LossCurve", "ResourceBottleneck", "TheoryExponents"]


@dataclass(frozen=True, slots=True, eq=False)
class LossCurve:
    """Losses of one student over steps (or over ridges), from theory.

    Attributes:
        steps: [t].
        test: mean squared error on new examples without label noise, [t].
        train: mean squared error on the training examples with their noise, [t].
        truncation: largest share of the loss that may be missing because the modes end, [t]; 0
            where no tail is known.
    """

    steps: NDArray[np.int64]
    test: Array
    train: Array
    truncation: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class TheoryExponents:
    """Exponents of the falling loss, all positive, where one resource binds and the others do not.

    Attributes:
        steps: loss ~ steps^-this.
        width: loss ~ width^-this, late.
        samples: loss ~ samples^-this, late.
        early: loss excess of a finite width or sample ~ its size^-this, early.
        optimal_width: best width ~ compute^this, compute being width times steps.
        optimal_steps: best steps ~ compute^this.
        compute: least loss ~ compute^-this.
    """

    steps: float
    width: float
    samples: float
    early: float
    optimal_width: float
    optimal_steps: float
    compute: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeOptimal:
    """The best use of a budget of width times steps.

    Attributes:
        budget: width times steps.
        width: best one, not rounded.
        steps: best whole number.
        loss: test loss there.
    """

    budget: float
    width: float
    steps: int
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceBottleneck:
    """How much each resource would lower the loss: d ln loss / d ln resource.

    Slopes are negative where more helps.

    Attributes:
        steps: slope in the number of steps.
        width: slope in width; 0 where it is endless.
        samples: slope in samples; 0 where they are endless.
        binding: the resource with the most negative slope.
    """

    steps: float
    width: float
    samples: float
    binding: Literal["steps", "width", "samples"]
