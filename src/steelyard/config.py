"""Configuration files and plain values to frozen dataclasses and back; all rooms use it."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.files import write_json
from steelyard.violations import unknown_fields, violations

__all__ = ["convert", "dump", "flatten", "load", "to_plain"]

T = TypeVar("T")


def _decode(kind: type, value: Any) -> Any:
    """Make the types that JSON and TOML lack."""
    if isinstance(kind, type) and issubclass(kind, Path):
        return kind(value)
    raise TypeError(f"cannot read a {kind.__name__} from {type(value).__name__}")


def convert(value: Any, kind: type[T], *, where: str = "config") -> T:
    """Convert plain dicts, lists and scalars to `kind`, checking every field.

    Args:
        value: plain data as TOML or JSON hold it.
        kind: a frozen dataclass, or any type msgspec converts to; fields may be paths.
        where: file or option that held the value, for messages.

    Returns:
        An instance of `kind`.

    Raises:
        ConfigError: fields are unknown, missing, or of the wrong type; the message lists all of
            them, with dotted paths, and what dataclasses refused besides.
        SteelyardError: a dataclass itself refused its values; the same error with `where` before
            it.
    """
    found = list(unknown_fields(value, kind))
    if not found:
        try:
            return msgspec.convert(value, kind, dec_hook=_decode)
        except msgspec.ValidationError as error:
            found = [ConfigError(str(error), hint="correct the field at the path shown")]
        except SteelyardError as error:
            found = [error]
        # msgspec stops at the first; whoever wrote the file is told of all of them.
        found = violations(value, kind, _decode) or found
    else:
        found += violations(value, kind, _decode)
    raise merged(found, where=where)


def load(path: Path, kind: type[T]) -> T:
    """Read a TOML or JSON file into `kind`.

    Args:
        path: read as JSON when it ends in .json, else as TOML.
        kind: type to convert to, as in `convert`.

    Returns:
        An instance of `kind`.

    Raises:
        ConfigError: the file is missing, not TOML or JSON, or does not fit `kind`.
    """
    is_json = path.suffix.lower() == ".json"
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="give the path of a TOML or JSON file"
        ) from error
    try:
        value = msgspec.json.decode(payload) if is_json else tomllib.loads(payload.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not valid {'JSON' if is_json else 'TOML'}: {error}",
            hint="correct the line shown",
        ) from error
    return convert(value, kind, where=str(path))


def to_plain(value: Any) -> Any:
    """Turn a dataclass (nested, with tuples and paths) into dicts, lists and scalars."""
    return msgspec.to_builtins(value, enc_hook=str)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Turn nested dicts, lists and tuples into one dict of dotted paths to scalars.

    Args:
        value: plain data.
        path: dotted path of `value` itself.

    Returns:
        Scalars by path; an empty dict or list stays as a value, an empty tuple becomes a list.
    """
    if not isinstance(value, dict | list | tuple) or not value:
        return {path: [] if value == () else value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    flat: dict[str, Any] = {}
    for key, inner in items:
        flat |= flatten(inner, f"{path}.{key}" if path else str(key))
    return flat


def dump(value: Any, path: Path) -> None:
    """Write a configuration as JSON, atomically; `load` reads it back.

    Args:
        value: a dataclass.
        path: ends in .json.

    Raises:
        ConfigError: `path` ends otherwise, so that `load` would not read it as JSON.
    """
    if path.suffix.lower() != ".json":
        raise ConfigError(
            f"cannot write a configuration to {path}", hint="give a path that ends in .json"
        )
    write_json(path, to_plain(value))
