"""Finds benchmark files by name and loads them."""

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Check
from steelyard.errors import ConfigError

__all__ = ["Benchmark", "find", "load"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Benchmark:
    """A loaded benchmark file.

    Attributes:
        name: of the file, without its ending.
        room: of the package, the folder's name.
        about: first line of the file's docstring.
        papers: keys of `papers.toml`.
        run: does the work; True asks for the quick version, which ends within 60 s on 2 cores.
    """

    name: str
    room: str
    about: str
    papers: list[str]
    run: Callable[[bool], list[Check]]


def find() -> dict[str, Path]:
    """List benchmark files by name, sorted by room and name.

    Raises:
        ConfigError: two files have the same name.
    """
    found: dict[str, Path] = {}
    for path in sorted(_FOLDER.glob("*/*.py")):
        if path.stem.startswith("_"):
            continue
        if path.stem in found:
            raise ConfigError(
                f"two benchmarks are named {path.stem}: {found[path.stem]} and {path}",
                hint="rename one of the files",
            )
        found[path.stem] = path
    return found


def load(name: str) -> Benchmark:
    """Import one benchmark.

    Raises:
        ConfigError: no file has this name (near names are listed), or it lacks `PAPER` or `run`.
    """
    files = find()
    if name not in files:
        near = difflib.get_close_matches(name, files, n=3, cutoff=0.4)
        hint = (
            f"near names: {', '.join(near)}"
            if near
            else "list them with: python -m benchmarks --list"
        )
        raise ConfigError(f"no benchmark named {name!r}", hint=hint)
    room = files[name].parent.name
    module = importlib.import_module(f"benchmarks.{room}.{name}")
    if not (hasattr(module, "PAPER") and hasattr(module, "run")):
        raise ConfigError(
            f"{files[name]} lacks PAPER or run",
            hint="define PAPER: list[str] and def run(quick: bool) -> list[Check]",
        )
    about = (module.__doc__ or "").strip().partition("\n")[0]
    return Benchmark(name, room, about, list(module.PAPER), module.run)
