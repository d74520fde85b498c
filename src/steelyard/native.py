"""Compile native kernels on first use and load them.

A library is compiled once per machine and kept in the user's cache folder, so that fresh clones
and new environments share it. No compiler is needed: each kernel has another path with equal
results, and the library is used only when it proves faster than that path on this machine.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steelyard.errors import BackendError, CapacityError, DataError
from steelyard.files import atomic_path, read_json, sha256_file, write_bytes, write_json

__all__ = [
    "MIN_SPEEDUP",
    "NativeCode",
    "Verdict",
    "cache_dir",
    "library_path",
    "load",
    "race",
    "switched_off",
    "verdict",
]

MIN_SPEEDUP = 1.2
"""A native kernel runs only when it is this much faster: a smaller gain does not pay for a second
path that has to be kept equal."""

_FLAGS = (
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
_COMPILE_S = 120.0
_ANSWER_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeCode:
    """The C++ sources of one library and how they are compiled.

    Attributes:
        name: prefix of the library's file.
        sources: files; the first is compiled, the others are those it includes.
        flags: arguments of the compiler.
        versions: what else the library depends on, such as the version of PyTorch where a source
            includes its headers.
    """

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...] = _FLAGS
    versions: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a race of a native kernel against the other path found.

    Attributes:
        speedup: seconds of the other path over those of the native one, the best of several turns.
        difference: largest absolute difference of their results.
    """

    speedup: float
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
        return "" if self.speedup >= MIN_SPEEDUP else f"native is only {self.speedup:.2f}x as fast"


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

    The name holds a hash of the sources, the flags, the compiler's version and the processor's
    instruction set: `-march=native` makes code that another processor may not run.

    Args:
        code: what is compiled.
        compiler: path of a compiler.

    Returns:
        A file in the cache folder; it may not exist yet.

    Raises:
        BackendError: the compiler does not answer.
    """
    version = _run([compiler, "--version"], seconds=_ANSWER_S).partition("\n")[0]
    parts = [source.read_bytes() for source in code.sources]
    parts += [text.encode() for text in (*code.flags, *code.versions, version, _processor())]
    key = hashlib.sha256(bytes(1).join(parts)).hexdigest()[:20]
    return cache_dir() / "native" / f"{code.name}-{key}.so"


def load(code: NativeCode, compiler: str = "g++") -> ctypes.CDLL:
    """Load a library, compiling it if this machine has not done so yet.

    Processes that start at once may each compile it; every one places a whole file, the last wins.

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


def race(rival: Callable[[], Any], native: Callable[[], Any], *, turns: int = 7) -> Verdict:
    """Run two ways to one result in turn and compare seconds and results.

    The best time of each counts: what else the machine does only ever adds to it.

    Args:
        rival: the other path; returns an array or tensor.
        native: the native path; returns an array or tensor of the same shape.
        turns: timed runs of each, after one that is not timed.

    Returns:
        The verdict.
    """
    expected, found = rival(), native()
    best = [float("inf")] * 2
    for _ in range(turns):
        for side, work in enumerate((rival, native)):
            start = time.perf_counter()
            work()
            best[side] = min(best[side], time.perf_counter() - start)
    return Verdict(
        speedup=best[0] / best[1],
        difference=float(abs(expected - found).max()),
    )


def verdict(library: ctypes.CDLL, label: str, hold: Callable[[], Verdict]) -> Verdict:
    """Return what an earlier race on this machine found, or hold one; a win is kept.

    Args:
        library: from `load`; the verdict is kept beside it, so a new library is judged anew.
        label: what else the verdict depends on, such as the number of threads.
        hold: holds the race.

    Returns:
        The verdict.
    """
    path = Path(library._name).with_suffix(f".{label}.json")
    with contextlib.suppress(DataError, msgspec.ValidationError):
        return msgspec.convert(read_json(path), Verdict)
    found = hold()
    # A machine that is busy during the race makes the side with more threads look slow, and would
    # stay on the slow path for good: a loss is judged again the next time.
    if found.speedup >= MIN_SPEEDUP:
        with contextlib.suppress(CapacityError, DataError):
            write_json(path, msgspec.to_builtins(found))
    return found


def _compile(code: NativeCode, compiler: str, path: Path) -> None:
    """Compile to a file beside the path and rename it, then note its checksum."""
    with atomic_path(path) as temporary:
        _run(
            [compiler, *code.flags, "-o", str(temporary), str(code.sources[0])], seconds=_COMPILE_S
        )
        digest = sha256_file(temporary)
    write_bytes(_checksum_path(path), digest.encode())


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
