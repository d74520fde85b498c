"""Read and print quantities with units; inside the package every number is in SI base units.

`parse("80 GB", "byte")` gives 8e10, `parse("3 weeks", "s")` gives 1814400.0, `pretty(3.2e12, "FLOP/s")` gives "3.2 TFLOP/s".
Decimal prefixes are powers of 1000 and binary ones (Ki, Mi, Gi, ...) powers of 1024.
"""

import math
import re

from steelyard.errors import ConfigError

__all__ = ["UNITS", "parse", "pretty", "pretty_duration"]

_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PREFIXES |= {"P": 1e15, "E": 1e18, "Z": 1e21, "Y": 1e24, "B": 1e9}
_BINARY = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_DAY_S = 86400.0
_TIME = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
    "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": _DAY_S, "day": _DAY_S, "days": _DAY_S, "week": 7 * _DAY_S, "weeks": 7 * _DAY_S,
    "month": 365.25 / 12 * _DAY_S, "months": 365.25 / 12 * _DAY_S, "year": 365.25 * _DAY_S, "years": 365.25 * _DAY_S,
}  # fmt: skip
_BASES: dict[str, dict[str, float]] = {
    "byte": {"byte": 1.0, "bytes": 1.0, "B": 1.0, "bit": 0.125, "bits": 0.125},
    "byte/s": {"byte/s": 1.0, "B/s": 1.0, "Bps": 1.0, "bit/s": 0.125, "bps": 0.125},
    "FLOP": {"FLOP": 1.0, "FLOPs": 1.0, "flop": 1.0, "flops": 1.0, "FLOP-day": _DAY_S, "FLOP/s-day": _DAY_S},
    "FLOP/s": {"FLOP/s": 1.0, "FLOPS": 1.0, "flop/s": 1.0},
    "W": {"W": 1.0, "watt": 1.0, "watts": 1.0},
    "J": {"J": 1.0, "Wh": 3600.0, "joule": 1.0, "joules": 1.0},
    "g": {"g": 1.0, "gCO2e": 1.0, "g CO2e": 1.0, "t": 1e6, "tonne": 1e6, "tonnes": 1e6},
    "USD": {"USD": 1.0, "usd": 1.0, "$": 1.0},
    "token": {"token": 1.0, "tokens": 1.0, "tok": 1.0},
    "parameter": {"parameter": 1.0, "parameters": 1.0, "params": 1.0},
}
_SHORT = {"byte": "B", "byte/s": "B/s", "token": "tokens", "parameter": "parameters", "nat/token": "nats/token"}
_PLAIN = {"1", "fraction", "nat/token", "bit/byte", "USD", "count", "g/J", "USD/J", "USD/s"}

UNITS: tuple[str, ...] = (*_BASES, "s", *sorted(_PLAIN), "token/s", "request/s", "s/token")
"""Units a quantity may carry."""

_NUMBER = re.compile(r"^\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def _factor(suffix: str, unit: str) -> float | None:
    """Give the factor of a suffix such as "GB" in base `unit`, or None when it is not one."""
    if unit == "s":
        return _TIME.get(suffix)
    bases = _BASES.get(unit, {unit: 1.0})
    if suffix in bases:
        return bases[suffix]
    if suffix in _PREFIXES:
        return _PREFIXES[suffix]
    for base, scale in sorted(bases.items(), key=lambda item: -len(item[0])):
        prefix = suffix.removesuffix(base).strip()
        if suffix.endswith(base) and (prefix in _PREFIXES or prefix in _BINARY):
            return scale * (_PREFIXES | _BINARY)[prefix]
    return None


def parse(text: str | float, unit: str, *, where: str = "value") -> float:
    """Read a quantity in the base `unit`.

    A bare number is taken to be in the base unit already; a bare prefix ("70B" parameters, "10k" tokens) scales it.

    Args:
        text: such as "80 GB", "1e22 FLOP", "3 weeks", "450 W", or a number.
        unit: one of the base units ("byte", "byte/s", "FLOP", "FLOP/s", "s", "W", "J", "USD", "token", ...).
        where: what the value is, for the error message (an option or a dotted path).

    Returns:
        The finite value in the base unit.

    Raises:
        ConfigError: the text is not a number with a known unit of this kind, or is not finite.

    Example:
        >>> parse("80 GB", "byte"), parse("2 weeks", "s"), parse("3 PFLOP/s", "FLOP/s")
        (80000000000.0, 1209600.0, 3000000000000000.0)
    """
    match = _NUMBER.match(str(text))
    factor = _factor(match.group(2), unit) if match and match.group(2) else 1.0
    if match is None or factor is None:
        example = {"s": "3 weeks", "byte": "80 GB", "FLOP": "1e22 FLOP", "W": "450 W"}.get(unit, f"10 {unit}")
        raise ConfigError(f"{where}: cannot read {str(text)!r} as {unit}", hint=f"write a number with its unit, such as {example!r}")
    value = float(match.group(1).replace(",", "").replace("_", "")) * factor
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {str(text)!r} is not a finite number", hint="give a finite value")
    return value


def pretty_duration(seconds: float) -> str:
    """Print a time span in the unit a person would choose: "3.2 ms", "12.0 s", "4.1 h", "18 days"."""
    if not math.isfinite(seconds):
        return str(seconds)
    size = abs(seconds)
    for limit, scale, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (2 * _DAY_S, 3600.0, "h"), (2e8, _DAY_S, "days")):
        if size < limit:
            return _scaled(seconds, "s") if name == "s" else f"{seconds / scale:.3g} {name}"
    return f"{seconds / (365.25 * _DAY_S):.3g} years"


def _scaled(value: float, unit: str) -> str:
    """Print with the SI prefix that leaves one to three digits before the point."""
    if value == 0:
        return f"0 {unit}"
    steps = (("Y", 1e24), ("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
    small = (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))
    for prefix, scale in (*steps, *small):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def pretty(value: float, unit: str) -> str:
    """Print a value of a base unit with an SI prefix, three significant digits.

    Args:
        value: in the base unit; NaN and infinities are printed as such.
        unit: base unit of the value; "s" is printed as a duration, "fraction" as a percentage.

    Returns:
        Text such as "3.35 TB/s", "12.4 ms", "41.0 %", "1.83 nats/token".
    """
    if not math.isfinite(value):
        return f"{value}"
    if unit == "s":
        return pretty_duration(value)
    if unit == "s/token":
        return f"{pretty_duration(value)}/token"
    if unit == "fraction":
        return f"{100 * value:.3g} %"
    if unit == "J" and abs(value) >= 3.6e3:
        return _scaled(value / 3600, "Wh")
    if unit == "USD":
        return f"${value:,.0f}" if abs(value) >= 1000 else f"${value:.3g}"
    if unit == "count":
        return f"{value:,.0f}"
    if unit in _PLAIN:
        return f"{value:.4g} {_SHORT.get(unit, unit)}".removesuffix(" 1")
    return _scaled(value, f" {_SHORT[unit]}" if unit in _SHORT and unit in ("token", "parameter") else _SHORT.get(unit, unit)).replace("  ", " ")
