"""The tool's own record for forecasts about this machine, shown beside them."""

from typing import Literal

from steelyard.catalog.stored import THIS_MACHINE
from steelyard.runs.track import track_record

__all__ = ["records_of"]

_FORECASTERS = {
    "train": ("cost.training_step", "cost.eager_training_memory"),
    "serve": ("serve.simulate",),
    "loss": ("laws.forecast",),
}
"""Who the ledger knows the forecasts of a kind by."""


def records_of(machine: str, *kinds: Literal["train", "serve", "loss"]) -> dict[str, str]:
    """Return the record of some kinds of forecasts, by quantity.

    Args:
        machine: machine that the answer is about; only this one was measured.
        *kinds: what is forecast.

    Returns:
        Such as "within 12 % in 9 of 10 so far"; empty where nothing was checked yet.
    """
    if machine != THIS_MACHINE:
        return {}
    found: dict[str, str] = {}
    for kind in kinds:
        for forecaster in _FORECASTERS[kind]:
            found |= track_record(forecaster)
    return found
