"""Turns an options dataclass into the flags of a command, so that options are written once."""

from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter, Token

from steelyard import units

__all__ = ["flag_name", "flags"]

_UNITS = {"_bytes": "byte", "_s": "s"}
"""Unit by the end of a field's name; the flag is named without it."""


def flags(kind: type) -> Any:
    """Return a class for a command's parameter whose fields are flags.

    `pool_bytes` becomes `--pool`, which takes "256 MiB", and `drain_timeout_s` `--drain-timeout`,
    which takes "2 min"; a dataclass inside is flattened. The dataclasses themselves know nothing of
    the command line.

    Args:
        kind: dataclass with only keyword arguments, all with defaults.

    Returns:
        A subclass of `kind`; the parameter is annotated with it or None.
    """
    hints = get_type_hints(kind)
    rows: list[tuple[str, Any, Any]] = []
    # Every field is declared again, with its hint resolved: names in hints of the parent's module
    # mean nothing in this one.
    for item in fields(kind):
        hint, default = hints[item.name], field(default=item.default)
        end = next((end for end in _UNITS if item.name.endswith(end)), "")
        if is_dataclass(hint):
            hint = flags(hint)  # pyright: ignore[reportArgumentType]
            default = field(default_factory=hint)
        elif item.default is MISSING:
            default = field(default_factory=item.default_factory)  # pyright: ignore[reportArgumentType]
        elif end:
            hint = Annotated[hint, _unit(item.name, end)]
        rows.append((item.name, hint, default))
    settings = {"frozen": True, "kw_only": True, "slots": True}
    # Without a module of its own the class would pass for a builtin, whose fields are not read.
    names = {"__module__": __name__}
    made = make_dataclass(f"{kind.__name__}Flags", rows, bases=(kind,), namespace=names, **settings)
    return Parameter(name="*", name_transform=flag_name, negative_iterable=())(made)


def _unit(name: str, end: str) -> Parameter:
    """Return how a number with a unit is read and its default shown."""
    unit, where = _UNITS[end], f"--{flag_name(name)}"

    def read(hint: type, tokens: tuple[Token, ...]) -> Any:
        return hint(units.parse(tokens[0].value, unit, where=where))

    def show(value: float) -> str:
        mebibytes, rest = divmod(value, 2**20)
        return f"{mebibytes} MiB" if unit == "byte" and not rest else units.pretty(value, unit)

    metavar = "SIZE" if unit == "byte" else "TIME"
    return Parameter(converter=read, n_tokens=1, metavar=metavar, show_default=show)


def flag_name(field_name: str) -> str:
    """Return the name of the flag that sets a field: without its unit, with hyphens."""
    for end in _UNITS:
        field_name = field_name.removesuffix(end)
    return field_name.replace("_", "-")
