"""Read and print quantities with units; inside the package every number is in SI base units.

`parse("80 GB", "byte")` is 8e10, `parse("3 weeks", "s")` is 1814400.0, and `pretty(3.2e12,
"FLOP/s")` is "3.2 TFLOP/s". Decimal prefixes are powers of 1000 and binary ones (Ki, Mi, Gi,
...) powers of 1024. Case matters: M is mega, b is bit.
"""

import math
import re

from steelyard.errors import ConfigError

__all__ = ["UNITS", "parse", "pretty", "pretty_duration"]

_LARGE = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Z": 1e21,
    "Y": 1e24,
}
_SMALL = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3}
_BILLION = {"B": 1e9, "bn": 1e9, "billion": 1e9, "million": 1e6, "trillion": 1e12}
_BINARY = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_YEAR_S = 365.25 * _DAY_S
_KWH_J = 3.6e6
_TIME = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "mins": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": _HOUR_S,
    "hr": _HOUR_S,
    "hour": _HOUR_S,
    "hours": _HOUR_S,
    "d": _DAY_S,
    "day": _DAY_S,
    "days": _DAY_S,
    "week": 7 * _DAY_S,
    "weeks": 7 * _DAY_S,
    "month": _YEAR_S / 12,
    "months": _YEAR_S / 12,
    "year": _YEAR_S,
    "years": _YEAR_S,
}
_BASES: dict[str, dict[str, float]] = {
    "byte": {
        "byte": 1.0,
        "bytes": 1.0,
        "Byte": 1.0,
        "Bytes": 1.0,
        "B": 1.0,
        "bit": 0.125,
        "bits": 0.125,
    },
    "byte/s": {
        "byte/s": 1.0,
        "bytes/s": 1.0,
        "B/s": 1.0,
        "Bps": 1.0,
        "bit/s": 0.125,
        "bits/s": 0.125,
        "b/s": 0.125,
        "bps": 0.125,
    },
    "FLOP": {
        "FLOP": 1.0,
        "FLOPs": 1.0,
        "FLOPS": 1.0,
        "flop": 1.0,
        "flops": 1.0,
        "FLOP/s-day": _DAY_S,
        "FLOP/s-days": _DAY_S,
        "FLOP-day": _DAY_S,
        "FLOP-days": _DAY_S,
        "F-day": _DAY_S,
        "F-days": _DAY_S,
    },
    "FLOP/s": {"FLOP/s": 1.0, "FLOPs/s": 1.0, "FLOPS": 1.0, "flop/s": 1.0, "flops": 1.0},
    "W": {"W": 1.0, "watt": 1.0, "watts": 1.0},
    "J": {"J": 1.0, "joule": 1.0, "joules": 1.0, "Wh": 3600.0},
    "g": {
        "g": 1.0,
        "gCO2e": 1.0,
        "g CO2e": 1.0,
        "t": 1e6,
        "tCO2e": 1e6,
        "t CO2e": 1e6,
        "tonne": 1e6,
        "tonnes": 1e6,
    },
    "USD": {"USD": 1.0, "usd": 1.0, "$": 1.0},
    "token": {"token": 1.0, "tokens": 1.0, "tok": 1.0},
    "parameter": {"parameter": 1.0, "parameters": 1.0, "params": 1.0},
    "token/s": {"token/s": 1.0, "tokens/s": 1.0, "tok/s": 1.0},
    "request/s": {"request/s": 1.0, "requests/s": 1.0, "req/s": 1.0, "rps": 1.0},
    "site/s": {"site/s": 1.0, "sites/s": 1.0, "LUP/s": 1.0, "LUPS": 1.0},
    "g/J": {"g/J": 1.0, "g/kWh": 1 / _KWH_J, "gCO2e/kWh": 1 / _KWH_J, "g CO2e/kWh": 1 / _KWH_J},
    "USD/J": {
        "USD/J": 1.0,
        "USD/kWh": 1 / _KWH_J,
        "$/kWh": 1 / _KWH_J,
        "USD/MWh": 1e-3 / _KWH_J,
        "$/MWh": 1e-3 / _KWH_J,
    },
    "USD/s": {"USD/s": 1.0, "USD/h": 1 / _HOUR_S, "$/h": 1 / _HOUR_S, "USD/hour": 1 / _HOUR_S},
    "fraction": {"": 1.0, "%": 0.01, "percent": 0.01},
    "nat/token": {"nat/token": 1.0, "nats/token": 1.0, "nat": 1.0, "nats": 1.0},
    "bit/byte": {"bit/byte": 1.0, "bits/byte": 1.0},
    "count": {"": 1.0},
    "1": {"": 1.0},
}
_SPOKEN = {
    "token",
    "parameter",
    "count",
    "USD",
    "token/s",
    "request/s",
    "site/s",
}  # "70B", "10 million": their large numbers are spoken in words, and `pretty` writes them so
_DIVISIBLE = {
    "W",
    "J",
    "g",
}  # thousandths of these mean something; of a byte or a token they do not

UNITS: tuple[str, ...] = (*_BASES, "s", "s/token")
"""Units a quantity may carry."""

_NUMBER = re.compile(
    r"\s*((?:-?\$)?)\s*([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*"
)


def _factor(suffix: str, unit: str) -> float | None:
    """Return the factor of a suffix such as "GB" in base `unit`, or None when it is not one."""
    if unit in ("s", "s/token"):
        name = suffix.removesuffix("/token") if unit == "s/token" else suffix
        return _TIME.get(name, _TIME.get(name.lower()) if len(name) > 2 else None)
    bases = _BASES.get(unit, {unit: 1.0})
    prefixes = (
        _LARGE | (_SMALL if unit in _DIVISIBLE else {}) | (_BILLION if unit in _SPOKEN else {})
    )
    prefixes |= _BINARY if unit in ("byte", "byte/s") else {}
    if suffix in bases or suffix in prefixes:
        return bases.get(suffix) or prefixes[suffix]
    for base in sorted(filter(None, bases), key=len, reverse=True):
        prefix = suffix.removesuffix(base).strip()
        if suffix.endswith(base) and prefix in prefixes:
            return bases[base] * prefixes[prefix]
    return None


def parse(text: str | float, unit: str, *, where: str = "value") -> float:
    """Read a quantity in the base `unit`.

    A bare number is taken to be in the base unit already; a bare prefix ("70B" parameters, "10k"
    tokens) scales it. A comma groups thousands ("1,500 W") and is refused elsewhere; a decimal
    point is a point.

    Args:
        text: such as "80 GB", "1e22 FLOP", "3 weeks", "450 W", "$2.5M", or a number.
        unit: one of the base units ("byte", "byte/s", "FLOP", "FLOP/s", "s", "W", "J", "USD",
            "token", ...).
        where: what the value is, for the error message (an option or a dotted path).

    Returns:
        The finite value in the base unit.

    Raises:
        ConfigError: the text is not a number with a known unit of this kind, or is not finite.

    Example:
        >>> parse("80 GB", "byte"), parse("2 weeks", "s"), parse("3 PFLOP/s", "FLOP/s")
        (80000000000.0, 1209600.0, 3000000000000000.0)
    """
    match = _NUMBER.fullmatch(str(text))
    factor = None
    if match and (not match.group(1) or unit == "USD"):
        factor = _factor(match.group(3), unit) if match.group(3) else 1.0
    if match is None or factor is None:
        example = {
            "s": "3 weeks",
            "byte": "80 GB",
            "FLOP": "1e22 FLOP",
            "W": "450 W",
            "token": "20B tokens",
        }.get(unit, f"10 {unit}")
        raise ConfigError(
            f"{where}: cannot read {str(text)!r} as {unit}",
            hint=f"write a number with its unit, such as {example!r}",
        )
    value = float(match.group(2).replace(",", "").replace("_", "")) * (
        -factor if match.group(1) == "-$" else factor
    )
    if not math.isfinite(value):
        raise ConfigError(
            f"{where}: {str(text)!r} is not a finite number", hint="give a finite value"
        )
    return value


def pretty_duration(seconds: float, *, more: int = 0) -> str:
    """Print a time span in the unit a person would choose: "3.2 ms", "12 s", "4.1 h", "18 days".

    Args:
        seconds: the span.
        more: significant digits beyond three.

    Returns:
        Number and unit.
    """
    if not math.isfinite(seconds):
        return str(seconds)
    size = abs(seconds)
    if size < 120:
        return _scaled(seconds, "s", more)
    for limit, scale, name in (
        (7200.0, 60.0, "min"),
        (2 * _DAY_S, _HOUR_S, "h"),
        (900 * _DAY_S, _DAY_S, "days"),
    ):
        if size < limit:
            return f"{seconds / scale:.{3 + more}g} {name}"
    return f"{seconds / _YEAR_S:.{3 + more}g} years"


_SCALES = (
    (" Y", 1e24),
    (" Z", 1e21),
    (" E", 1e18),
    (" P", 1e15),
    (" T", 1e12),
    (" G", 1e9),
    (" M", 1e6),
    (" k", 1e3),
    (" ", 1.0),
)
_FINE_SCALES = ((" m", 1e-3), (" µ", 1e-6), (" n", 1e-9))
_COUNT_SCALES = (("T ", 1e12), ("B ", 1e9), ("M ", 1e6), ("k ", 1e3))
"""What is written between a number and its unit, large to small: an SI prefix after a space, or a
letter before it, as the field writes "70B parameters"."""


def _prefixed(value: float, scales: tuple[tuple[str, float], ...], unit: str, more: int) -> str:
    """Print with the prefix that leaves one to three digits before the point."""
    digits = 3 + more
    # From 0.9995 on three digits round up to the next prefix: 999.7 k is "1 M", not "1e+03 k".
    least = 1 - 0.5 * 10.0**-digits
    for prefix, scale in scales:
        if abs(value) >= scale * least:
            return f"{value / scale:.{digits}g}{prefix}{unit}"
    return f"{value:.{digits}g} {unit}"


def _scaled(value: float, unit: str, more: int) -> str:
    """Print with an SI prefix."""
    is_fine = unit in _DIVISIBLE or unit == "s"
    return _prefixed(value, _SCALES + _FINE_SCALES if is_fine else _SCALES, unit, more)


_COUNTED = {
    "token": "tokens",
    "parameter": "parameters",
    "token/s": "tokens/s",
    "request/s": "requests/s",
    "site/s": "sites/s",
}
_RATES = {"g/J": (_KWH_J, "g/kWh"), "USD/J": (_KWH_J, "$/kWh"), "USD/s": (_HOUR_S, "$/h")}
_PRECISE = {"nat/token": "nats/token", "bit/byte": "bits/byte", "1": ""}
_SHORT = {"byte": "B", "byte/s": "B/s"}


def pretty(value: float, unit: str, *, more: int = 0) -> str:
    """Print a value of a base unit as a person would write it.

    Three significant digits are shown, four for losses; whole dollars and counts in full.

    Args:
        value: value in the base unit; NaN and infinities are printed as such.
        unit: base unit of the value; "s" is printed as a duration, "fraction" as a percentage,
            joules from 1 Wh up in watt-hours, grams from 1 t up in tonnes, money and carbon rates
            per kilowatt-hour or hour.
        more: further significant digits, for values that differ by less than three show.

    Returns:
        Text such as "3.35 TB/s", "12.4 ms", "41 %", "1.834 nats/token", "70B parameters".
    """
    if not math.isfinite(value):
        return f"{value}"
    if unit in ("s", "s/token"):
        return pretty_duration(value, more=more) + unit.removeprefix("s")
    digits = 3 + more
    if unit == "fraction":
        return f"{100 * value:.{digits}g} %"
    if unit == "USD":
        size = f"${abs(value):,.0f}" if abs(value) >= 1000 else f"${abs(value):.{digits}g}"
        return f"-{size}" if value < 0 else size
    if unit == "count":
        return f"{value:,.0f}"
    if unit in _COUNTED:
        return _prefixed(value, _COUNT_SCALES, _COUNTED[unit], more)
    if unit in _RATES:
        scale, name = _RATES[unit]
        return f"{value * scale:.{digits}g} {name}"
    if unit in _PRECISE:
        return f"{value:.{digits + 1}g} {_PRECISE[unit]}".rstrip()
    if unit == "J" and abs(value) >= _HOUR_S:
        return _scaled(value / _HOUR_S, "Wh", more)
    if unit == "g" and abs(value) >= 1e6:
        return _scaled(value / 1e6, "t", more)
    return _scaled(value, _SHORT.get(unit, unit), more)
