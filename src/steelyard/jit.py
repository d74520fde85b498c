"""Compile kernels with numba, and keep them where every clone on this machine finds them.

numba looks for compiled functions by the path of their file, so each fresh clone would compile
everything again. It lets a setting name another way to find them (`NUMBA_CACHE_LOCATOR_CLASSES`),
which is used here for this package's own functions alone. Who sets that variable or
`NUMBA_CACHE_DIR` keeps what they chose.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import config
from numba.core import event

from steelyard.native import cache_dir

__all__ = ["ContentLocator", "compiling_told", "njit", "njit_borrowing", "njit_inner"]

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(r"^(?:from|import) steelyard\.([\w.]+)(?: import (\w+))?", re.MULTILINE)
_MOST_VERSIONS = 8
_SETTING = "CACHE_LOCATOR_CLASSES"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[_Function], _Function]:
    """Compile a function with numba when it is first called, cached, without Python's lock.

    Args:
        **options: options of `numba.njit`; `cache` and `nogil` are on by default.

    Returns:
        A decorator.
    """
    chosen: dict[str, Any] = {"cache": True, "nogil": True} | options

    def compiled(function: _Function) -> _Function:
        before = getattr(config, _SETTING)
        chosen_by_user = before or getattr(config, "CACHE_DIR", "")
        if not chosen_by_user and ContentLocator.from_function(function, ""):
            # numba reads the setting in the decorator; other packages never see it.
            setattr(config, _SETTING, f"{__name__}.{ContentLocator.__name__}")
        try:
            return cast(_Function, numba.njit(**chosen)(function))
        finally:
            setattr(config, _SETTING, before)

    return compiled


def njit_borrowing(**options: Any) -> Callable[[_Function], _Function]:
    """Compile as `njit` a function that makes no array and keeps none that it was handed.

    Its arrays belong to the caller for as long as it runs, so their references are not counted:
    doing so took more than half of the time of a loop over small functions. Divisions by 0 are
    those of NumPy.

    Args:
        **options: options of `numba.njit`.

    Returns:
        A decorator.
    """
    return njit(**{"error_model": "numpy", "_nrt": False} | options)


def njit_inner(**options: Any) -> Callable[[_Function], _Function]:
    """Compile as `njit_borrowing` a function that compiled functions call, and Python never does.

    It is compiled in two thirds of the time: what would unpack Python's arguments is left out, so
    that a call from Python ends the process.

    Args:
        **options: options of `numba.njit`.

    Returns:
        A decorator.
    """
    return njit_borrowing(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


class _FirstCompilation(event.Listener):
    """Writes a line when numba begins to compile, once; a cached function compiles nothing."""

    def __init__(self, line: str) -> None:
        self._line = line

    def on_start(self, event: event.Event) -> None:
        """Write the line, at the first one."""
        line, self._line = self._line, ""
        sys.stderr.write(line)
        sys.stderr.flush()

    def on_end(self, event: event.Event) -> None:
        """Do nothing."""


@contextmanager
def compiling_told(what: str, seconds: float) -> Iterator[None]:
    """Say on standard error when numba compiles something in the block, so no one waits unawares.

    Args:
        what: what is compiled, such as "the simulator"; said once, and not at all where all
            functions are found in the cache.
        seconds: about how long that takes on one core.

    Yields:
        Nothing.
    """
    line = f"compiling {what}, once for each version of it: about {seconds:.0f} s\n"
    with event.install_listener("numba:compile", _FirstCompilation(line)):
        yield


class ContentLocator:
    """Finds compiled functions by what their file and the files it imports hold.

    numba itself asks only whether the function's own file changed. A kernel that calls one of
    another file would then keep the old code of that other file, and clones at different commits
    would share it, so the imports count too.
    """

    def __init__(self, function: Callable[..., Any], path: Path) -> None:
        """Point to the folder of a function's file.

        Args:
            function: what is compiled.
            path: its file, in this package.
        """
        self._py_file = str(path)  # numba names it in a warning
        self._line = function.__code__.co_firstlineno
        self._stamp = _content_hash(path)
        name = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
        # Another version of numba does not read the index and would overwrite it.
        self._folder = cache_dir() / "numba" / numba.__version__ / name / self._stamp

    @classmethod
    def from_function(cls, function: Callable[..., Any], _: str) -> ContentLocator | None:
        """Return the locator of a function of this package.

        Args:
            function: what is compiled.

        Returns:
            The locator; None for a function of other code, or where the folder cannot be written.
        """
        path = Path(function.__code__.co_filename)
        if not path.is_relative_to(_PACKAGE):
            return None
        locator = cls(function, path)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator if os.access(locator.get_cache_path(), os.W_OK) else None

    def ensure_cache_path(self) -> None:
        """Make the folder; the oldest folders of the same file go when there are many."""
        if self._folder.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        versions = sorted(self._folder.parent.iterdir(), key=lambda item: item.stat().st_mtime)
        for old in versions[:-_MOST_VERSIONS]:
            shutil.rmtree(old, ignore_errors=True)  # numba bears a cache that vanishes

    def get_cache_path(self) -> str:
        """Return the folder of compiled functions."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return what must be equal for a compiled function to be used."""
        return self._stamp

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name in one file apart."""
        return str(self._line)


@cache
def _content_hash(path: Path) -> str:
    """Hash a file and all files of this package that it imports when it is itself imported."""
    seen: dict[Path, bytes] = {}
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen[current] = current.read_bytes()
        for module, name in _IMPORT.findall(seen[current].decode()):
            base = _PACKAGE.joinpath(*module.split("."))
            found = (base.with_suffix(".py"), base / "__init__.py", base / f"{name}.py")
            waiting += [item for item in found if item.is_file()]
    parts = [f"{item.relative_to(_PACKAGE)}\0".encode() + seen[item] for item in sorted(seen)]
    return hashlib.sha256(bytes(1).join(parts)).hexdigest()[:20]
