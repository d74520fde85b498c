"""Power and energy of serving: one curve per accelerator, one model per model and width.

`cost.energy` and `cost.bill` take the rating and the draw from here.
"""

from steelyard.cost.power.curve import PowerCurve
from steelyard.cost.power.energy_model import (
    EnergyModel,
    PhaseCost,
    prompt_features,
    token_features,
)
from steelyard.cost.power.measured import (
    PowerRow,
    fit_curve,
    fit_times,
    measured_model,
    measured_rows,
    read_rows,
)
from steelyard.cost.power.rating import rated_w, server_share, usual_draw

__all__ = [
    "EnergyModel",
    "PhaseCost",
    "PowerCurve",
    "PowerRow",
    "fit_curve",
    "fit_times",
    "measured_model",
    "measured_rows",
    "prompt_features",
    "rated_w",
    "read_rows",
    "server_share",
    "token_features",
    "usual_draw",
]
