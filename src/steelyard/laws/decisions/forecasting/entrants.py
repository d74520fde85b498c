"""What takes part in a forecast: forms of the literature, fitted in two ways, and a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.chinchilla import chinchilla, kaplan
from steelyard.laws.forms.powers import monomial, power_law
from steelyard.laws.forms.rectified import rectified
from steelyard.laws.forms.shapes import broken, coupled, saturating, shifted

__all__ = ["LARGEST_RUN", "SAME_LOG", "Entrant", "default_laws", "entrants"]

LARGEST_RUN = "largest run"
"""Name of the rule without a law: the loss of the largest run."""

_FALL = 0.5
"""Exponent of size in the weights of "recent" fits: a run of a tenth of the compute counts a third.
Early runs tell least about where a law goes on, above all near the plateau of untrained models."""

SAME_LOG = 0.05
"""Spread of the log of a column below which it is no axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """One way to a forecast.

    Attributes:
        law: form that is fitted; None for the loss of the largest run.
        fall: exponent of size in the weights of the runs; 0 for equal ones.
    """

    law: Law | None
    fall: float = 0.0

    @property
    def name(self) -> str:
        """Name of the form, or of the rule."""
        return self.law.name if self.law else LARGEST_RUN


def default_laws(points: Mapping[str, Array]) -> list[Law]:
    """List the forms for a table by its axes.

    Args:
        points: columns by name, [n]; those that do not vary are no axes.

    Returns:
        Forms of parameters and tokens where both vary, else forms of the one axis that does.

    Raises:
        FitError: nothing varies, or several axes that the forms do not read together.
    """
    axes = [name for name, column in points.items() if np.ptp(np.log(column)) > SAME_LOG]
    if {"parameters", "tokens"} <= {*axes}:
        return [
            chinchilla(),
            kaplan(),
            coupled(),
            saturating(),
            monomial("parameters", "tokens"),
        ]
    if len(axes) != 1:
        raise FitError(
            f"no forms are known for the axes {', '.join(axes) or 'none'}",
            hint="give parameters and tokens (other data is read by --tokens COLUMN), one axis "
            "alone, or laws of your own (--law)",
        )
    of = axes[0]
    return [power_law(of), power_law(of, floor=False), rectified(of), shifted(of), broken(of)]


def entrants(laws: Sequence[Law]) -> list[Entrant]:
    """Pair each form with both weightings, and add the rule without a law.

    Args:
        laws: forms with different names.

    Returns:
        Two entrants per form, then the loss of the largest run.

    Raises:
        FitError: no laws, or two of one name.
    """
    names = [law.name for law in laws]
    if not names or len(set(names)) != len(names):
        raise FitError(
            f"a forecast needs laws with different names, given {', '.join(names) or 'none'}"
        )
    pairs = [Entrant(law=law, fall=fall) for law in laws for fall in (0.0, _FALL)]
    return [*pairs, Entrant(law=None)]
