"""Parts of a full run of shards, kept beside the results: a run that was cut off goes on.

They are run again when the code, but for its words, or the machine have changed since.
"""

import ast
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from benchmarks.machine import machine

import steelyard
from steelyard.files import read_json, write_json

_KEPT = Path(__file__).parents[1] / "results" / "cells" / "self_healing_sharding.json"
_SOURCES = ("operate/shards", "data/shardstore", "data/arena", "data/erasure")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class _Cell(msgspec.Struct, frozen=True):
    """One part: hash of what it ran on, and its figures."""

    state: str
    figures: dict[str, float]


def _code(path: Path) -> str:
    """Return a source without comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


def state() -> str:
    """Return a hash of the store's code, of that which measures it, and of the machine."""
    digest = hashlib.sha256(msgspec.json.encode(machine(), order="sorted"))
    for name in ("_fault_sequences.py", "_shard_kills.py"):
        digest.update(_code(Path(__file__).with_name(name)).encode())
    root = Path(steelyard.__file__).parent
    for name in _SOURCES:
        for path in (root / f"{name}.py", *sorted((root / name).glob("*.py"))):
            if path.exists():
                digest.update(_code(path).encode())
    return digest.hexdigest()[:16]


def kept(part: str, work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return what a part gave on this code and machine, or run it.

    Args:
        part: its name.
        work: runs it and returns its figures by name.

    Returns:
        The figures.
    """
    cells = msgspec.convert(read_json(_KEPT), dict[str, _Cell]) if _KEPT.exists() else {}
    found = cells.get(part)
    if found is None or found.state != state():
        found = cells[part] = _Cell(state(), work())
        write_json(_KEPT, msgspec.to_builtins(cells))
    return found.figures
