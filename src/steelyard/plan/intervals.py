"""How far the time of a planned step may be off: by what was fitted, and how far from it."""

import numpy as np

from steelyard.cost.roofline import Machine
from steelyard.cost.step import StepCost
from steelyard.plan.advice import PUBLISHED_BELIEFS
from steelyard.plan.beliefs import part_shares
from steelyard.quantity import Z80

__all__ = ["step_relative"]

_FITTED = ("A100", "H100")
_OTHER_CHIP = 0.15
"""Spread of the logarithm that an accelerator adds on which nothing was fitted; assumed."""


def step_relative(machine: Machine, cost: StepCost) -> float:
    """Return the half-width of the 80 % interval of a step's time.

    A layout that spends its time as the runs do on which the spreads were fitted has a narrow one;
    one that waits for links has a wide one.

    Args:
        machine: accelerator with its links.
        cost: the step of one layout.

    Returns:
        A fraction of the time; a calibrated machine's own.
    """
    if machine.provenance == "measured":
        return machine.time_relative
    spread = float(PUBLISHED_BELIEFS.doubt(part_shares(cost)).spread[0])
    if not machine.name.startswith(_FITTED):
        spread = float(np.hypot(spread, _OTHER_CHIP))
    return float(np.expm1(Z80 * spread))
