"""The named quantities, and what can be said of one: a Forecast before, a Measurement after.

Planner, simulator, engine and benchmark use the same names, so a forecast and a measurement of one
name are comparable.
"""

import difflib
import math
from dataclasses import dataclass, field
from typing import Literal

from steelyard.errors import ConfigError
from steelyard.quantity_table import QUANTITIES, Quantity

__all__ = [
    "QUANTITIES",
    "Z80",
    "Check",
    "Forecast",
    "Measurement",
    "Provenance",
    "Quantity",
    "check",
    "quantity",
]

Provenance = Literal["measured", "fitted", "simulated", "derived", "published", "assumed"]
Z80 = 1.2815515594
"""Standard deviations either side of the mean that hold 80 % of a normal distribution."""
_PROVENANCES = ("measured", "fitted", "simulated", "derived", "published", "assumed")


def quantity(name: str) -> Quantity:
    """Look a quantity up by its name.

    Args:
        name: dotted, such as "train.step_time".

    Returns:
        Its definition, unit and direction.

    Raises:
        ConfigError: no quantity has this name; near names are listed.
    """
    if name not in QUANTITIES:
        near = difflib.get_close_matches(name, QUANTITIES, n=3, cutoff=0.4)
        raise ConfigError(
            f"unknown quantity {name!r}", hint=f"near names: {', '.join(near) or 'none'}"
        )
    return QUANTITIES[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A quantity forecast before it is measured, with an 80 % interval.

    Attributes:
        quantity: name from `QUANTITIES`.
        value: central value in the quantity's unit.
        low: lower end of the 80 % interval, at most `value`.
        high: upper end, at least `value`.
        provenance: how the number came to be.
        source: model, fit, record or paper that it comes from.
        pace_s: seconds that a fixed piece of work took on the machine whose speed the forecast is
            for; 0 where that was not measured.
    """

    quantity: str
    value: float
    low: float
    high: float
    provenance: Provenance
    source: str
    pace_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse unknown names, unknown provenance and intervals that miss their own value."""
        quantity(self.quantity)
        if self.provenance not in _PROVENANCES:
            raise ConfigError(
                f"{self.quantity}: provenance {self.provenance!r} is not one of "
                f"{', '.join(_PROVENANCES)}"
            )
        if not (math.isfinite(self.value) and self.low <= self.value <= self.high):
            raise ConfigError(
                f"{self.quantity}: interval [{self.low}, {self.high}] must hold the finite value "
                f"{self.value}"
            )

    @property
    def unit(self) -> str:
        """SI base unit of the value."""
        return QUANTITIES[self.quantity].unit

    @classmethod
    def about(
        cls, name: str, value: float, *, relative: float, provenance: Provenance, source: str
    ) -> "Forecast":
        """Make a forecast whose 80 % interval is `value` times or divided by (1 + relative).

        Args:
            name: quantity.
            value: central value; an interval about 0 is empty.
            relative: half-width of the interval as a fraction of the value, 0 or more.
            provenance: how the number came to be.
            source: model, fit, record or paper that it comes from.

        Returns:
            The forecast.

        Raises:
            ConfigError: `relative` is negative or not finite, or the forecast itself is refused.
        """
        if not (math.isfinite(relative) and relative >= 0):
            raise ConfigError(
                f"{name}: relative half-width {relative} must be finite and 0 or more"
            )
        low, high = sorted((value / (1 + relative), value * (1 + relative)))
        return cls(
            quantity=name, value=value, low=low, high=high, provenance=provenance, source=source
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A quantity measured on a real run; simulations never make one.

    Attributes:
        quantity: name from `QUANTITIES`.
        value: central value in the quantity's unit, a median or mean as its definition says.
        spread: standard deviation of the samples, 0 for a single one.
        count: number of samples.
        machine: name of the machine it was taken on.
        time_s: when, seconds since 1970 (UTC).
        pace_s: seconds that the forecast's fixed piece of work took meanwhile; 0 where nobody
            measured it.
    """

    quantity: str
    value: float
    spread: float = 0.0
    count: int = 1
    machine: str = field(default="this-machine")
    time_s: float = 0.0
    pace_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse unknown names and values that are not finite."""
        quantity(self.quantity)
        if not math.isfinite(self.value):
            raise ConfigError(f"{self.quantity}: measured value {self.value} is not finite")

    @property
    def unit(self) -> str:
        """SI base unit of the value."""
        return QUANTITIES[self.quantity].unit


@dataclass(frozen=True, slots=True)
class Check:
    """A forecast beside the measurement of the same quantity."""

    forecast: Forecast
    measurement: Measurement

    @property
    def relative_error(self) -> float:
        """(forecast - measured) / |measured|; infinite when only the measured value is 0."""
        return _relative(self.forecast.value, self.measurement.value)

    @property
    def covered(self) -> bool:
        """Whether the 80 % interval holds the measured value."""
        return self.forecast.low <= self.measurement.value <= self.forecast.high

    @property
    def slowdown(self) -> float:
        """How many times slower the machine was than the one the forecast is for; 1 if unknown."""
        if self.forecast.pace_s > 0 and self.measurement.pace_s > 0:
            return self.measurement.pace_s / self.forecast.pace_s
        return 1.0

    @property
    def measured_at_equal_speed(self) -> float:
        """What a machine of the forecast's speed would have taken; rates stay as measured."""
        # A rate need not follow the machine: throughput at a steady arrival rate is the arrivals'.
        is_time = self.forecast.unit in ("s", "s/token")
        return self.measurement.value / self.slowdown if is_time else self.measurement.value

    @property
    def error_at_equal_speed(self) -> float:
        """Relative error of the forecast had the machine kept the forecast's speed."""
        return _relative(self.forecast.value, self.measured_at_equal_speed)

    @property
    def covered_at_equal_speed(self) -> bool:
        """Whether the 80 % interval holds what the forecast's machine would have taken."""
        return self.forecast.low <= self.measured_at_equal_speed <= self.forecast.high


def _relative(said: float, came: float) -> float:
    """Return (said - came) / |came|; infinite when only `came` is 0."""
    if came == 0:
        return 0.0 if said == 0 else math.copysign(math.inf, said)
    return (said - came) / abs(came)


def check(forecasts: list[Forecast], measurements: list[Measurement]) -> list[Check]:
    """Pair forecasts and measurements by quantity name, in the order of the forecasts.

    A forecast without a measurement, or the reverse, is left out.
    """
    # A run that was resumed measures anew: of two measurements of a name the dict keeps the last.
    measured = {item.quantity: item for item in measurements}
    return [Check(item, measured[item.quantity]) for item in forecasts if item.quantity in measured]
