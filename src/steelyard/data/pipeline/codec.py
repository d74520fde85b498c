"""Fitted steps as arrays and JSON: no code is in the file, and none is run to read it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import DataError

__all__ = ["key_of", "packed_steps", "unpacked_steps"]


def _split(step: Any) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the plain values of a fitted step, and its arrays."""
    values = {item.name: getattr(step, item.name) for item in fields(step)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return {name: value for name, value in values.items() if name not in arrays}, arrays


def key_of(step: Any) -> str:
    """Return a hash of all that a fitted step does.

    Args:
        step: dataclass of arrays and plain values.

    Returns:
        64 hexadecimal digits.
    """
    plain, arrays = _split(step)
    told = hashlib.sha256(json.dumps([type(step).__name__, plain], sort_keys=True).encode())
    for name, values in arrays.items():
        told.update(f"{name} {values.dtype.str} {values.shape}".encode())
        told.update(np.ascontiguousarray(values).tobytes())
    return told.hexdigest()


def packed_steps(steps: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """Return fitted steps as plain values and arrays.

    Args:
        steps: dataclasses of arrays and plain values.

    Returns:
        Kind and values of each, and all arrays by place and name.
    """
    told, sections = [], {}
    for place, step in enumerate(steps):
        plain, arrays = _split(step)
        told.append({"kind": type(step).__name__, "values": plain, "arrays": list(arrays)})
        sections |= {f"{place}/{name}": values for name, values in arrays.items()}
    return told, sections


def unpacked_steps(
    told: Iterable[Mapping[str, Any]],
    sections: Mapping[str, NDArray[Any]],
    kinds: Mapping[str, type],
    where: str,
) -> list[Any]:
    """Return fitted steps of their values and arrays.

    Args:
        told: kind and values of each.
        sections: arrays by place and name.
        kinds: class of each kind.
        where: the file, for messages.

    Returns:
        The steps.

    Raises:
        DataError: a kind is unknown, or values are missing.
    """
    steps = []
    for place, item in enumerate(told):
        kind = kinds.get(str(item.get("kind")))
        if kind is None:
            raise DataError(
                f"{where} has a step {item.get('kind')!r}, which is not known here",
                hint="read it with the Steelyard that wrote it",
            )
        try:
            arrays = {name: np.array(sections[f"{place}/{name}"]) for name in item["arrays"]}
            plain = {name: _frozen(value) for name, value in item["values"].items()}
            steps.append(kind(**plain, **arrays))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"step {place + 1} of {where} is not whole: {error}") from error
    return steps


def _frozen(value: Any) -> Any:
    """Return lists of JSON as tuples, as they were."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value
