"""Hashes of what data depends on: functions by their source, values by their content.

A cache is used again only while the hash of all its preprocessing stays the same.
"""

import dataclasses
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from steelyard.data.stages import hash_of
from steelyard.errors import ConfigError

__all__ = ["key_of"]

_PLAIN = (str, int, float, bool, bytes, type(None))


def key_of(*values: Any) -> str:
    """Hash functions and values so that a change of what they do changes the hash.

    A function counts by its source, its defaults, what it encloses, and the functions and plain
    values of its own module that it names. What it calls in other modules counts by name only.

    Args:
        *values: functions, `functools.partial`, dataclasses, plain values, paths, arrays, mappings
            and sequences of them, and objects with a text `key`.

    Returns:
        SHA-256 as lower-case hex.

    Raises:
        ConfigError: a value is of another kind, so that a change of it would go unnoticed.
    """
    return hash_of(*(_plain(value, ()) for value in values))


def _plain(value: Any, seen: tuple[Any, ...]) -> Any:
    """Turn a value into what JSON can hold, equal only for values that do the same."""
    if isinstance(value, _PLAIN):
        return [type(value).__name__, repr(value)]
    if isinstance(value, (Path, np.dtype, type)):
        return [type(value).__name__, str(value)]
    if isinstance(value, np.ndarray | np.generic):
        content = np.ascontiguousarray(value)
        digest = hashlib.sha256(content.tobytes()).hexdigest()
        return ["array", str(content.dtype), list(content.shape), digest]
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return ["partial", *(_plain(part, seen) for part in parts)]
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, BuiltinFunctionType):
        return ["builtin", value.__module__ or "", value.__qualname__]
    if isinstance(value, Mapping):
        pairs = [[_plain(key, seen), _plain(item, seen)] for key, item in value.items()]
        return ["mapping", sorted(pairs, key=repr)]
    if isinstance(value, list | tuple):
        return ["sequence", *(_plain(item, seen) for item in value)]
    if isinstance(getattr(value, "key", None), str):
        return [type(value).__qualname__, value.key]
    if dataclasses.is_dataclass(value):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return [_source(type(value)), _plain(fields, seen)]
    raise ConfigError(
        f"cannot tell when {value!r} of type {type(value).__name__} changes",
        hint="use a function, functools.partial, a frozen dataclass or plain values in a task",
    )


def _function(function: FunctionType, seen: tuple[Any, ...]) -> Any:
    """Describe a function by its text and by what that text refers to."""
    if function in seen:  # recursion
        return function.__qualname__
    seen = (*seen, function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    own = {
        name: function.__globals__[name]
        for name in sorted(function.__code__.co_names)
        if _is_own(function.__globals__.get(name), function)
    }
    return [
        function.__module__,
        function.__qualname__,
        _source(function),
        _plain(function.__defaults__ or (), seen),
        _plain(function.__kwdefaults__ or {}, seen),
        _plain(cells, seen),
        _plain(own, seen),
    ]


def _is_own(value: Any, function: FunctionType) -> bool:
    """Whether a name of a function's module is a plain constant or a function of that module."""
    if isinstance(value, FunctionType):
        return value.__module__ == function.__module__
    return isinstance(value, _PLAIN) and value is not None


def _source(thing: Callable[..., Any]) -> str:
    """Return the source, or what the interpreter runs where there is no file."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        if code is None:
            return f"{thing.__module__}.{thing.__qualname__}"
        constants = [item for item in code.co_consts if isinstance(item, _PLAIN)]
        return f"{code.co_code.hex()} {constants!r} {code.co_names!r}"
