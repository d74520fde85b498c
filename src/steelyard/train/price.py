"""What a run will take in time, energy and money, from the pace of a few of its steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.bill import bill
from steelyard.cost.past_errors import past_width
from steelyard.quantity import Check, Forecast
from steelyard.train.config import TrainConfig
from steelyard.train.pace import TIMED_STEPS, RunPace

__all__ = ["FORECASTER", "RunPrice", "price_run"]

FORECASTER = "train.price"
"""Name of these forecasts in the ledger."""

_ASSUMED_SPREAD = 0.08


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPrice:
    """What a run is forecast to take.

    Attributes:
        forecasts: run.duration, run.energy, and run.cost and run.carbon where they are known.
        unknown: quantities without a forecast, each with what is missing.
        usd_per_hour: price of an hour of the machine; None where it is unknown.
        power_w: average power, watts: measured, or derived from the record of the machine.
        is_rented: whether the money follows from the hours alone, so that a run measures it.
    """

    forecasts: tuple[Forecast, ...]
    unknown: dict[str, str]
    usd_per_hour: float | None
    power_w: float
    is_rented: bool

    def derived(self, duration_s: float) -> list[Forecast]:
        """Return energy and money that follow from a measured duration, and cannot be measured."""
        said = {item.quantity: item for item in self.forecasts}
        scale = duration_s / said["run.duration"].value
        names = [name for name in ("run.energy", "run.cost") if name in said]
        return [
            replace(
                said[name],
                value=said[name].value * scale,
                low=said[name].low * scale,
                high=said[name].high * scale,
                source=f"{said[name].source}; duration measured",
            )
            for name in names
        ]


def price_run(
    config: TrainConfig,
    pace: RunPace,
    *,
    machine: Accelerator,
    site: Site,
    past: Sequence[Check] = (),
) -> RunPrice:
    """Forecast time, energy and money of a run.

    The interval of the time is the quantile of how far earlier such forecasts on this machine were
    off (split conformal prediction, Lei et al. 2018, arXiv 1604.04173); an assumed spread stands in
    for the first few. Energy is from measured power where it can be read, else from the rated power
    of the machine's record, and then marked as derived or assumed.

    Args:
        config: the run.
        pace: a few timed steps of it.
        machine: record of the machine, with its power and prices.
        site: place with its price of electricity and its grid.
        past: checked forecasts of run.duration by this function, oldest first.

    Returns:
        The price.
    """
    duration_s = pace.seconds(config)
    width = math.expm1(past_width(past, assumed_spread=_ASSUMED_SPREAD))
    said = f"{TIMED_STEPS} timed steps, a checkpoint and an evaluation"
    duration = Forecast.about(
        "run.duration", duration_s, relative=width, provenance="derived", source=said
    )
    found = bill(
        duration_s=duration_s,
        num_accelerators=1,
        accelerator=machine,
        site=site,
        rent_usd=config.usd_per_hour or None,
        duration_relative=width,
    )
    by_name = {item.quantity: item for item in found.forecasts}
    if pace.power_w is not None:
        by_name["run.energy"] = Forecast.about(
            "run.energy",
            pace.power_w * duration_s,
            relative=1.05 * (1 + width) - 1,
            provenance="derived",
            source=f"power measured over {said}",
        )
    hour = found.hour
    return RunPrice(
        forecasts=(duration, *by_name.values()),
        unknown=found.unknown,
        usd_per_hour=hour.total_usd if hour else None,
        power_w=by_name["run.energy"].value / duration_s,
        is_rented=hour is not None and hour.method == "rented",
    )
