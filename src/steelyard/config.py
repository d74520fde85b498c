"""Configuration files and plain values to frozen dataclasses and back, one converter for all rooms."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steelyard.errors import ConfigError, SteelyardError
from steelyard.files import write_json

__all__ = ["convert", "dump", "load", "to_plain"]

T = TypeVar("T")


def _unknown_fields(value: Any, kind: Any, path: str) -> list[str]:
    """List dotted paths in `value` that the dataclass `kind` does not have."""
    if not (isinstance(value, dict) and dataclasses.is_dataclass(kind)):
        return []
    import typing

    hints = typing.get_type_hints(kind)
    unknown = [f"{path}.{key}" for key in value if key not in hints]
    for key, inner in value.items():
        unknown += _unknown_fields(inner, hints.get(key), f"{path}.{key}")
    return unknown


def convert(value: Any, kind: type[T], *, where: str = "config") -> T:
    """Convert plain dicts, lists and scalars to `kind`, checking every field.

    Args:
        value: as read from TOML or JSON.
        kind: a frozen dataclass, or any type msgspec converts to.
        where: file or option the value came from, for messages.

    Returns:
        An instance of `kind`.

    Raises:
        ConfigError: a field is unknown, missing, or of the wrong type; the message has its dotted path.
    """
    unknown = _unknown_fields(value, kind, "$")
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(kind))  # pyright: ignore[reportArgumentType]
        raise ConfigError(f"{where}: unknown field {unknown[0]}", hint=f"known fields: {known}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SteelyardError):
            raise ConfigError(f"{where}: {error.__cause__}", hint=error.__cause__.hint) from error
        raise ConfigError(f"{where}: {error}", hint="correct the field at the path shown") from error


def load(path: Path, kind: type[T]) -> T:
    """Read a TOML or JSON file into `kind`.

    Raises:
        ConfigError: the file is missing, not TOML or JSON, or does not fit `kind`.
    """
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="give the path of a TOML or JSON file") from error
    try:
        value = msgspec.json.decode(payload) if path.suffix == ".json" else tomllib.loads(payload.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    return convert(value, kind, where=str(path))


def to_plain(value: Any) -> Any:
    """Turn a dataclass (nested, with tuples and paths) into dicts, lists and scalars."""
    return msgspec.to_builtins(value, enc_hook=str)


def dump(value: Any, path: Path) -> None:
    """Write a configuration as JSON, atomically; `load` gives it back."""
    write_json(path, to_plain(value))
