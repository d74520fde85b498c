"""A learning curve whose plateau bends smoothly into the power law."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.terms import Array, Derivatives, Term, Transform

__all__ = ["smooth_transition"]

_NEWTON_STEPS = 40
_LARGEST_STEP = 4.0
_LEAST_BEND = 0.02
_FARTHEST = 600.0
"""Logit beyond which the error is the plateau or the floor to double precision."""


@dataclass(frozen=True)
class _SmoothTransition(Term):
    """The error e that solves e - E = B samples^-c (E + G - e)^a.

    Newton's method finds the logit of (e - E) / G.

    Attributes:
        of: name of the input.
    """

    of: str

    transforms: ClassVar[dict[str, Transform]] = {
        "E": "log",
        "G": "log",
        "B": "log",
        "c": "identity",
        "a": "identity",
    }

    @property
    def inputs(self) -> tuple[str, ...]:
        """The one input."""
        return (self.of,)

    def evaluate(
        self, theta: Mapping[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, Derivatives]:
        """Return the log error, [S, n]; see `Term.evaluate`."""
        log_input, bend, height = np.log(inputs[self.of]), theta["a"], theta["G"]
        wanted = theta["B"] - theta["c"] * log_input + (bend - 1) * height
        logit = np.where(wanted < 0, wanted, wanted / np.maximum(bend, _LEAST_BEND)).clip(
            -_FARTHEST, _FARTHEST
        )
        for _ in range(_NEWTON_STEPS):
            log_share, log_rest = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
            slope = np.exp(log_rest) + bend * np.exp(log_share)
            step = (log_share - bend * log_rest - wanted) / slope
            logit = np.clip(
                logit - np.clip(step, -_LARGEST_STEP, _LARGEST_STEP), -_FARTHEST, _FARTHEST
            )
        log_share, log_rest = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
        slope = np.exp(log_rest) + bend * np.exp(log_share)
        above = height + log_share
        total = np.logaddexp(theta["E"], above)
        part = np.exp(above - total)
        moved = part * np.exp(log_rest) / slope
        return total, {
            "E": 1 - part,
            "G": part + moved * (bend - 1),
            "B": moved,
            "c": -moved * log_input,
            "a": moved * (height + log_rest),
        }


def smooth_transition(of: str = "samples") -> Law:
    """Error e with e - E = B samples^-c (E + G - e)^a.

    A plateau E + G, a power law and a floor E, joined smoothly.

    Args:
        of: name of the input.

    Returns:
        The law with one input and 5 parameters; a near 0 is the power law with floor.

    Source: Alabdulmohsin et al. 2022 (arXiv 2209.06640), estimator M4.
    """
    parameters = (
        Parameter(name="E", transform="log", low=-12.0, high=5.0, starts=(-4.0, -0.5)),
        Parameter(name="G", transform="log", low=-12.0, high=8.0, starts=(0.0, 1.5)),
        Parameter(name="B", transform="log", low=-20.0, high=60.0, starts=(1.0, 4.0, 8.0)),
        Parameter(name="c", transform="identity", low=0.01, high=4.0, starts=(0.2, 0.6)),
        Parameter(name="a", transform="identity", low=_LEAST_BEND, high=8.0, starts=(0.3, 1.5)),
    )
    formula = "e - E = B m^-c (E + G - e)^a"
    return Law(
        name=f"smooth_transition:{of}",
        term=_SmoothTransition(of),
        parameters=parameters,
        formula=formula,
    )
