"""Axes with readable ticks: where marks stand on a logarithmic or linear axis, and their words.

Vega's own logarithmic ticks crowd below two decades and thin out above ten; these are chosen for
the range and written as the field writes the quantity: 7M parameters, 1.4T tokens, 1e21 FLOP, 2.5
nats.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from steelyard.units import pretty

__all__ = ["Scale", "tick_text"]

_SETS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
_LOG_FROM = 8.0


@dataclass(frozen=True, slots=True)
class Scale:
    """One axis of a chart.

    Attributes:
        low: first value shown.
        high: last value shown.
        is_log: whether it is logarithmic.
        ticks: where marks stand, rising.
        unit: unit of the values, as `tick_text` takes it.
        title: words beside the axis, empty for none.
        zero: a mark at which 0 is written, for a value without a logarithm that stands below all
            others; None for none.
    """

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]
    unit: str = "1"
    title: str = ""
    zero: float | None = None

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        unit: str = "1",
        *,
        title: str = "",
        kind: Literal["auto", "log", "linear"] = "auto",
        margin: float = 0.04,
        most_ticks: int = 7,
    ) -> "Scale":
        """Make the axis that shows some values.

        Args:
            values: what has to be seen; those that are not finite, or not positive on a logarithmic
                axis, are left out.
            unit: unit of the values, as `tick_text` takes it.
            title: words beside the axis, empty for none.
            kind: "auto" is logarithmic for positive values that span a factor 8 or more.
            margin: free space at both ends, fraction of the axis.
            most_ticks: how many marks fit.

        Returns:
            The axis; one value, or none, gets some room around it.
        """
        known = [float(value) for value in values if math.isfinite(value)]
        positive = [value for value in known if value > 0]
        is_log = kind == "log" or (
            kind == "auto"
            and len(positive) == len(known) > 0
            and max(known) >= _LOG_FROM * min(known)
        )
        ends = [math.log(value) for value in positive] if is_log else known
        first, last = (min(ends), max(ends)) if ends else (0.0, 1.0)
        # One value alone has no span of which the margin could be a part.
        alone = 0.5 if is_log else 0.1 * abs(first) or 0.5
        room = margin * (last - first) if last > first else alone
        low, high = first - room, last + room
        if is_log:
            low, high = math.exp(low), math.exp(high)
        choose = _log_ticks if is_log else _linear_ticks
        return cls(low, high, is_log, tuple(choose(low, high, most_ticks)), unit, title)

    def ending(self, high: float, zero: float | None = None) -> "Scale":
        """Return the axis cut, or drawn out, to another last value, with 0 written at `zero`."""
        return replace(
            self, high=high, ticks=tuple(tick for tick in self.ticks if tick <= high), zero=zero
        )

    def place(self, value: float) -> float:
        """Return a value's place between 0 at `low` and 1 at `high`."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """Return the value at a place between 0 and 1; the reverse of `place`."""
        if self.is_log:
            return self.low * (self.high / self.low) ** place
        return self.low + place * (self.high - self.low)

    def clip(self, value: float) -> float:
        """Move a value onto the axis."""
        return min(max(value, self.low), self.high)

    def scale(self) -> dict[str, Any]:
        """Return the Vega-Lite scale."""
        return {
            "type": "log" if self.is_log else "linear",
            "domain": [self.low, self.high],
            "nice": False,
            "zero": False,
        }

    def axis(self) -> dict[str, Any]:
        """Return the Vega-Lite axis with its marks and what is written at them."""
        is_wide = self.is_log and self.unit == "1" and (self.high >= 1e5 or self.low <= 1e-4)
        words = "''"
        marks = (
            self.ticks
            if self.zero is None
            else (self.zero, *(tick for tick in self.ticks if tick > 2 * self.zero))
        )
        # Vega may hand a mark back with another last bit, so each is told by lying below the middle
        # to the next one and not by its value. The words are nested from the last mark inwards.
        for tick, after in reversed([*zip(marks, (*marks[1:], math.inf), strict=True)]):
            edge = tick if math.isinf(after) else (tick + after) / 2
            is_power = is_wide and not 1e-2 <= tick < 1e3
            text = _power(tick) if is_power else tick_text(tick, self.unit)
            text = "0" if tick == self.zero else text
            words = f"'{text}'" if words == "''" else f"datum.value < {edge!r} ? '{text}' : {words}"
        return {"values": list(marks), "labelExpr": words}


def tick_text(value: float, unit: str = "1") -> str:
    """Write a value at an axis or a curve, as short as it stays exact enough to be recognized.

    Args:
        value: value in the base unit.
        unit: "parameter" or "token" for counts such as 7M, "FLOP" for powers of ten, "year",
            "fraction" for per cent, "USD", and "1" for plain numbers.

    Returns:
        Text such as "1.4T", "3e21", "2024", "2 %", "$40M", "0.25".
    """
    if unit in ("parameter", "token"):
        return pretty(value, unit).split(" ")[0] if abs(value) < 1e15 else _power(value)
    if unit == "year":
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    if unit == "fraction":
        return f"{100 * value:.3g} %".replace("-", "−")
    if unit == "USD":
        return "$" + (
            pretty(value, "parameter").split(" ")[0] if abs(value) >= 1000 else f"{value:.3g}"
        )
    if unit == "FLOP" or (value and not 1e-4 <= abs(value) < 1e6):
        return _power(value)
    return f"{value:,.6g}".replace("-", "−")


def _power(value: float) -> str:
    """Write a number with a power of ten, such as 1e21 or 3e20."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):.3g}e{int(exponent)}".replace("-", "−")


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose marks 1, 3, 10 or finer, or every few decades; equal steps below a factor 2."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if high < 2 * low:
        return _linear_ticks(low, high, most)
    chosen: list[float] = []
    for steps in _SETS:
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) > most and chosen:
            break
        chosen = ticks
    stride = math.ceil(len(chosen) / most)
    if stride == 1:
        return chosen
    return [tick for tick in chosen if round(math.log10(tick)) % stride == 0]


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose equal steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * factor for factor in (1, 2, 5, 10, 20) if base * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [
        float(f"{index * step:.10g}") for index in range(first, math.floor(high / step + 1e-9) + 1)
    ]
