"""Values of catalog files in SI units."""

from typing import Any

from steelyard.units import parse

__all__ = ["in_si"]

_UNITS = (
    ("_flops_per_s", "FLOP/s"),
    ("bytes_per_s", "byte/s"),
    ("latency_s", "s"),
    ("first_byte_s", "s"),
    ("_bytes", "byte"),
    ("_w", "W"),
    ("_j", "J"),
    ("_parameters", "parameter"),
)


def in_si(field: str, value: Any, where: str) -> Any:
    """Return a value in SI units: text with a unit is read where the field's name carries one.

    Args:
        field: name of the field.
        value: what the file says.
        where: file and record, for messages.

    Returns:
        The number; anything that is no text, or of a field without a unit, as it was.

    Raises:
        ConfigError: the text is no number with such a unit.
    """
    unit = next((unit for suffix, unit in _UNITS if field.endswith(suffix)), None)
    if unit and isinstance(value, dict):
        return {key: in_si(field, item, f"{where} {key}") for key, item in value.items()}
    if field == "levels" and isinstance(value, list):
        return [_level_in_si(item, f"{where} level {place}") for place, item in enumerate(value)]
    if unit and isinstance(value, str):
        return parse(value, unit, where=f"{where} field '{field}'")
    return value


def _level_in_si(level: Any, where: str) -> Any:
    """Read the fields of one level of links; what is no table is left for the conversion."""
    if not isinstance(level, dict):
        return level
    return {field: in_si(field, value, where) for field, value in level.items()}
