"""Index files: one pack with the settings, what was learned, and the rows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pack import Pack, write_pack
from steelyard.errors import DataError
from steelyard.retrieve.cells import CellRows

__all__ = ["read_index", "write_index"]

_ABOUT, _ROWS, _LEARNED = "about", "rows/", "learned/"
_VERSION = 1


def write_index(
    path: Path,
    kind: str,
    settings: Mapping[str, Any],
    rows: CellRows,
    learned: Mapping[str, NDArray[Any]],
) -> None:
    """Write an index.

    Args:
        path: the file.
        kind: kind of the index.
        settings: plain values that it was made with.
        rows: its rows.
        learned: arrays from training by name.

    Raises:
        CapacityError: the disk is full; an older file stays.
    """
    rows.settle()
    about = {
        "version": _VERSION,
        "kind": kind,
        "settings": dict(settings),
        "cells": rows.cells,
        "next_id": rows.next_id,
    }
    sections: dict[str, NDArray[Any]] = {
        _ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8),
        "starts": rows.starts,
        "ids": rows.ids,
    }
    sections |= {_ROWS + name: values for name, values in rows.columns.items()}
    sections |= {_LEARNED + name: values for name, values in learned.items()}
    write_pack(path, sections)


def read_index(
    path: Path,
) -> tuple[str, dict[str, Any], CellRows, dict[str, NDArray[Any]]]:
    """Read an index; its arrays stay in the file until they are looked at.

    Args:
        path: the file.

    Returns:
        Kind, settings, rows, and what was learned.

    Raises:
        DataError: the file cannot be read, is no index, or is damaged (the section is named).
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}", hint="make one by `steelyard retrieve build`")
    pack = Pack.open(path)
    if _ABOUT not in pack.names:
        raise DataError(
            f"{path} is no index of vectors", hint="make one by `steelyard retrieve build`"
        )
    about = json.loads(pack[_ABOUT].tobytes())
    if about.get("version") != _VERSION:
        raise DataError(
            f"{path} is of version {about.get('version')}, this reads {_VERSION}",
            hint="build it anew by `steelyard retrieve build`",
        )
    columns = {name: pack[name] for name in pack.names}
    rows = CellRows(
        about["cells"],
        columns["starts"],
        columns["ids"],
        _under(_ROWS, columns),
        next_id=about["next_id"],
    )
    return about["kind"], about["settings"], rows, _under(_LEARNED, columns)


def _under(begins: str, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {
        name.removeprefix(begins): values
        for name, values in columns.items()
        if name.startswith(begins)
    }
