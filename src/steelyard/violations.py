"""Everything that is wrong with plain data which is to become a dataclass, not only the first."""

import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from steelyard.errors import ConfigError, SteelyardError

__all__ = ["unknown_fields", "violations"]

Decode = Callable[[type, Any], Any]


def unknown_fields(value: Any, kind: Any, path: str = "$") -> Iterator[SteelyardError]:
    """Find keys that the dataclasses inside a type lack.

    Args:
        value: plain data.
        kind: type it is to become.
        path: dotted path of `value`.

    Yields:
        An error per key, with its path and the known ones.
    """
    # msgspec ignores unknown keys of a dataclass, so that a misspelled option would silently keep
    # its default: they are looked for first.
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        for key, inner in value.items():
            if key in hints:
                yield from unknown_fields(inner, hints[key], f"{path}.{key}")
                continue
            near = difflib.get_close_matches(str(key), hints, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            yield ConfigError(
                f"unknown field {path}.{key}", hint=f"{hint}known fields: {', '.join(hints)}"
            )
        return
    for name, inner, inner_kind in _inside(value, kind):
        yield from unknown_fields(inner, inner_kind, path + name)


def violations(value: Any, kind: Any, decode: Decode) -> list[SteelyardError]:
    """List what keeps plain data from becoming a type; unknown fields are passed over.

    Args:
        value: plain data.
        kind: type it is to become.
        decode: makes types that msgspec does not know.

    Returns:
        An error per violation: fields that are missing or of another type, by dotted path, and what
        dataclasses refuse of the values that could be read.
    """
    found: list[SteelyardError] = []
    _read(value, kind, "$", decode, found)
    return found


def _inside(value: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Return what may hold dataclasses in a list, dict or optional value: path, value, type."""
    arguments = [item for item in typing.get_args(kind) if item is not type(None)]
    if isinstance(value, list) and arguments:
        yield from ((f"[{place}]", inner, arguments[0]) for place, inner in enumerate(value))
    elif isinstance(value, dict) and typing.get_origin(kind) is dict:
        yield from ((f".{key}", inner, arguments[1]) for key, inner in value.items())
    elif isinstance(value, dict) and len(arguments) == 1:
        yield "", value, arguments[0]


class _Unread:
    """Stands for a value that could not be read: rules about it hold, so only others speak."""

    def _holds(self, *_: object) -> bool:
        return True

    def _itself(self, *_: object) -> "_Unread":
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __len__(self) -> int:
        return 0

    __hash__ = object.__hash__
    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __contains__ = _holds
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __getattr__ = _itself


_UNREAD = _Unread()


def _read(value: Any, kind: Any, path: str, decode: Decode, found: list[SteelyardError]) -> Any:
    """Read a value as far as it goes, and note what is wrong with it."""
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _read_table(value, kind, path, decode, found)
    before = len(found)
    for name, inner, inner_kind in _inside(value, kind):
        made = _read(inner, inner_kind, path + name, decode, found)
        if not name:
            return made
    if len(found) > before:
        return _UNREAD
    try:
        return msgspec.convert(value, kind, dec_hook=decode)
    except msgspec.ValidationError as error:
        text = (
            str(error).replace("`$", f"`{path}") if "`$" in str(error) else f"{error} - at `{path}`"
        )
        found.append(ConfigError(text, hint="correct the field at the path shown"))
    return _UNREAD


def _read_table(
    value: dict[str, Any], kind: Any, path: str, decode: Decode, found: list[SteelyardError]
) -> Any:
    """Read a dataclass field by field, and let it check what could be read."""
    hints = typing.get_type_hints(kind)
    made = object.__new__(kind)
    parts: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        if item.name in value:
            inner = value[item.name]
            parts[item.name] = _read(inner, hints[item.name], f"{path}.{item.name}", decode, found)
        elif item.default is not dataclasses.MISSING:
            parts[item.name] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            parts[item.name] = item.default_factory()
        else:
            parts[item.name] = _UNREAD
            found.append(
                ConfigError(
                    f"Object missing required field `{item.name}` - at `{path}`",
                    hint="correct the field at the path shown",
                )
            )
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    is_whole = all(part is not _UNREAD for part in parts.values())
    found.extend(_refused(made, path.removeprefix("$").lstrip("."), is_whole=is_whole))
    return made


def _refused(made: Any, path: str, *, is_whole: bool) -> Iterator[SteelyardError]:
    """Let a dataclass check itself; of one with unread fields only rules of fields count."""
    try:
        getattr(made, "__post_init__", bool)()
    except SteelyardError as error:
        for part in error.parts or (error,):
            if part.field and path and isinstance(part, ConfigError):
                yield ConfigError(f"{path}.{part}", hint=part.hint)
            elif part.field or is_whole:
                yield part
    except Exception:
        # What stands for an unread value does not fit everywhere; its own error is noted already.
        if is_whole:
            raise
