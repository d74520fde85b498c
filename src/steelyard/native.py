"""Compile native kernels on first use and load them.

A library is compiled once per machine and kept in the user's cache folder, so that fresh clones
and new environments share it. No compiler is needed: each kernel has another path with equal
results, and the library is used only when it proves equal to that path on this machine.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import BackendError, CapacityError, DataError
from steelyard.files import atomic_path, read_json, sha256_file, write_bytes, write_json

__all__ = [
    "FLAGS",
    "NativeCode",
    "Verdict",
    "cache_dir",
    "library_path",
    "load",
    "switched_off",
    "typed",
    "verdict",
]

FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    # Without these two, loops with square roots or comparisons do not run in vector registers.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-pthread",
    "-shared",
    "-fPIC",
)
"""What every library is compiled with, unless it says otherwise."""
_COMPILE_S = 120.0
_COMPILING: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
"""Held by the thread that compiles a library; another one that wants it waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeCode:
    """The C++ sources of one library and how they are compiled.

    Attributes:
        name: prefix of the library's file.
        sources: files; each ".cpp" is compiled by itself, as many at once as there are processors,
            and the others are those they include.
        together: groups of files of which those among the sources are compiled as one, which reads
            once what they all include; two of them may not define the same name.
        flags: arguments of the compiler.
        versions: what else the library depends on, such as the version of PyTorch where a source
            includes its headers.
    """

    name: str
    sources: tuple[Path, ...]
    together: tuple[tuple[Path, ...], ...] = ()
    flags: tuple[str, ...] = FLAGS
    versions: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison of a native kernel with the other path found.

    Attributes:
        difference: largest absolute difference of their results.
    """

    difference: float

    def refusal(self, tolerance: float) -> str:
        """Say why the native kernel is not used.

        Args:
            tolerance: largest difference allowed.

        Returns:
            The reason, empty when the kernel is used.
        """
        # Written so that a difference of NaN refuses.
        if not self.difference < tolerance:
            return f"native results differ by {self.difference:.1e}"
        return ""


def switched_off() -> bool:
    """Whether `STEELYARD_NATIVE=0` keeps native kernels out of the whole process."""
    return os.environ.get("STEELYARD_NATIVE", "") == "0"


def cache_dir() -> Path:
    """Return the folder of compiled code: `steelyard` in the user's cache folder.

    It does not follow `STEELYARD_HOME`: compiled code belongs to the machine, not to the runs and
    catalogs that are kept there, and may be deleted at any time.

    Returns:
        A folder below `$XDG_CACHE_HOME`, or `~/.cache`; it may not exist yet.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steelyard"


def library_path(code: NativeCode, compiler: str) -> Path:
    """Return where the library of some code stands.

    The name holds a hash of the sources, the flags, the compiler's file and the processor's
    instruction set: `-march=native` makes code that another processor may not run.

    Args:
        code: what is compiled.
        compiler: path of a compiler; another size or time of change counts as another compiler, as
            asking for its version would start it each time.

    Returns:
        A file in the cache folder; it may not exist yet.

    Raises:
        OSError: there is no such compiler.
    """
    program = Path(compiler).resolve()
    found = program.stat()
    named = f"{program} {found.st_size} {found.st_mtime_ns}"
    parts = [source.read_bytes() for source in code.sources]
    parts += [text.encode() for text in (*code.flags, *code.versions, named, _processor())]
    key = hashlib.sha256(bytes(1).join(parts)).hexdigest()[:20]
    return cache_dir() / "native" / f"{code.name}-{key}.so"


def load(code: NativeCode, compiler: str = "g++") -> ctypes.CDLL:
    """Load a library, compiling it if this machine has not done so yet.

    Processes that start at once may each compile it; every one places a whole file, the last wins.
    Threads of one process wait for the one that compiles, so a thread may load ahead of the use.

    Args:
        code: what is compiled.
        compiler: name or path of a compiler that takes the flags of g++.

    Returns:
        The library; `_name` is its path.

    Raises:
        BackendError: there is no compiler, it failed, the cache folder cannot be written, or the
            library does not load.
    """
    found = shutil.which(compiler)
    if found is None:
        raise BackendError(
            f"no compiler {compiler!r} on the search path",
            hint="install g++, or do without native kernels",
        )
    path = library_path(code, found)
    try:
        with _COMPILING[path]:
            if not _is_whole(path):
                _compile(code, found, path)
        return ctypes.CDLL(str(path))
    except (CapacityError, DataError) as error:
        raise BackendError(
            f"cannot keep {path.name}: {error}", hint="set XDG_CACHE_HOME to a writable folder"
        ) from error
    except OSError as error:
        raise BackendError(
            f"cannot load {path}: {error}", hint="remove the file, or set STEELYARD_NATIVE=0"
        ) from error


def typed(
    library: ctypes.CDLL,
    arguments: Mapping[str, tuple[Any, ...]],
    results: Mapping[str, Any] | None = None,
) -> ctypes.CDLL:
    """Say what the functions of a library take and return.

    Args:
        library: library that `load` returned.
        arguments: `ctypes` types of the arguments, by function.
        results: type of the result of functions that have one.

    Returns:
        The library.
    """
    for name, kinds in arguments.items():
        function = getattr(library, name)
        function.argtypes = kinds
        function.restype = (results or {}).get(name)
    return library


def verdict(library: ctypes.CDLL, label: str, compare: Callable[[], float], limit: float) -> str:
    """Say why a library is not used: what an earlier comparison found, or one that runs now.

    Args:
        library: library that `load` returned; a verdict is kept beside it, so a new library
            is judged anew.
        label: what else the verdict depends on, such as the number of threads.
        compare: returns the largest absolute difference of the native results from the others.
        limit: largest difference allowed.

    Returns:
        The reason, empty when the library is used.
    """
    path = Path(library._name).with_suffix(f".{label}.json")
    with contextlib.suppress(DataError, msgspec.ValidationError):
        return msgspec.convert(read_json(path), Verdict).refusal(limit)
    found = Verdict(difference=compare())
    # Only what passed is kept: a failure may be that of a moment, such as too little memory.
    if not found.refusal(limit):
        with contextlib.suppress(CapacityError, DataError):
            write_json(path, msgspec.to_builtins(found))
    return found.refusal(limit)


def _compile(code: NativeCode, compiler: str, path: Path) -> None:
    """Compile to a file beside the path and rename it, then note its checksum."""
    with atomic_path(path) as temporary, tempfile.TemporaryDirectory() as folder:
        units = [_arguments(unit) for unit in _units(code)]
        if len(units) > 1:  # one needs no object of its own
            units = [[made] for made in _objects(code, units, compiler, Path(folder))]
        words = [word for unit in units for word in unit]
        _run([compiler, *code.flags, "-o", str(temporary), *words], seconds=_COMPILE_S)
        digest = sha256_file(temporary)
    write_bytes(_checksum_path(path), digest.encode())


def _units(code: NativeCode) -> list[tuple[Path, ...]]:
    """Return what the compiler is started for: groups, and the sources that are in none."""
    files = [source for source in code.sources if source.suffix == ".cpp"]
    grouped = {source for group in code.together for source in group}
    groups = [tuple(source for source in group if source in files) for group in code.together]
    return [group for group in groups if group] + [(file,) for file in files if file not in grouped]


def _arguments(unit: tuple[Path, ...]) -> list[str]:
    """Name sources so that the compiler takes them as one: it includes all before the last."""
    *earlier, last = map(str, unit)
    return [*(word for source in earlier for word in ("-include", source)), last]


def _objects(code: NativeCode, units: list[list[str]], compiler: str, folder: Path) -> list[str]:
    """Compile units side by side and return their objects, in order."""

    def compiled(number: int) -> str:
        made = str(folder / f"{number}.o")
        _run([compiler, *code.flags, "-c", "-o", made, *units[number]], seconds=_COMPILE_S)
        return made

    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="compile") as threads:
        return list(threads.map(compiled, range(len(units))))


def _is_whole(path: Path) -> bool:
    """Whether a library is what was compiled: a cut one kills the process that maps it."""
    try:
        return _checksum_path(path).read_bytes() == sha256_file(path).encode()
    except OSError:
        return False


def _checksum_path(path: Path) -> Path:
    """Return where a library's checksum stands."""
    return path.with_suffix(".sha256")


def _run(command: list[str], *, seconds: float) -> str:
    """Run a command and return what it printed."""
    hint = "do without native kernels: STEELYARD_NATIVE=0"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{command[0]} did not run: {error}", hint=hint) from error
    if done.returncode:
        raise BackendError(f"{command[0]} failed: {done.stderr[-500:].strip()}", hint=hint)
    return done.stdout


def _processor() -> str:
    """Name the processor and its features, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kept = [
        line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))
    ]
    # Every core repeats its lines; `dict.fromkeys` keeps one of each, in order.
    return "\n".join([platform.machine(), platform.processor(), *dict.fromkeys(kept)])
