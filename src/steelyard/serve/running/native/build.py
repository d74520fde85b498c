"""Compile the kernels once per machine and load them.

No compiler is needed, as the numba kernels give equal results.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import weakref
from pathlib import Path

from steelyard.errors import BackendError
from steelyard.files import atomic_path, user_dir

__all__ = ["Team", "compiled_library", "library_path", "switched_off"]

_SOURCES = ("step.cpp", "attention.h", "products.h", "threads.h", "vectors.h")
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-pthread",
    "-shared",
    "-fPIC",
)
_SIZES, _PLACE = ctypes.c_int64, ctypes.c_void_p
_SIGNATURES = {
    "steelyard_team": (_SIZES,),
    "steelyard_disband": (_PLACE,),
    "steelyard_pack": (_PLACE, _SIZES, _SIZES, _PLACE),
    "steelyard_linear": (_PLACE, _PLACE, _SIZES, _SIZES, _PLACE, _PLACE, _SIZES, _SIZES),
    "steelyard_decode": (*[_PLACE] * 4, _SIZES, _PLACE, _PLACE, *[_SIZES] * 6, _PLACE),
    "steelyard_run": (_PLACE, _PLACE, _PLACE),
}


class Team:
    """Threads that the kernels run on; they sleep between calls and end with this object.

    Attributes:
        address: first argument of the kernels.
        size: threads, the caller's included.
    """

    def __init__(self, library: ctypes.CDLL, size: int) -> None:
        """Start `size` - 1 threads."""
        self.size = size
        self.address: int = library.steelyard_team(size)
        weakref.finalize(self, library.steelyard_disband, self.address)


def switched_off() -> bool:
    """Whether `STEELYARD_NATIVE=0` keeps native kernels out of the whole process."""
    return os.environ.get("STEELYARD_NATIVE", "") == "0"


def library_path(compiler: str) -> Path:
    """Return where the library of this source, these flags, this compiler and this processor stands.

    Args:
        compiler: path of g++.

    Returns:
        A file in the user's folder; it may not exist yet.

    Raises:
        BackendError: the compiler does not answer.
    """
    folder = Path(__file__).parent
    version = _run([compiler, "--version"], seconds=20).partition("\n")[0]
    parts = [(folder / name).read_bytes() for name in _SOURCES]
    parts += [text.encode() for text in (*_FLAGS, version, _processor())]
    return (
        user_dir()
        / "native"
        / f"kernels-{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:20]}.so"
    )


def compiled_library(compiler: str | None = None) -> ctypes.CDLL:
    """Load the kernels, compiling them if this machine has not yet done so (about ten seconds).

    Args:
        compiler: name or path of a g++; the one on the search path by default.

    Returns:
        The library, its functions typed; `_name` is its path.

    Raises:
        BackendError: there is no compiler, it failed, or the library does not load.
    """
    found = shutil.which(compiler or "g++")
    if found is None:
        raise BackendError(
            f"no compiler {compiler or 'g++'!r} on the search path",
            hint="install g++, or use native=False",
        )
    path = library_path(found)
    if not path.exists():
        with atomic_path(path) as temporary:
            _run(
                [found, *_FLAGS, "-o", str(temporary), str(Path(__file__).parent / _SOURCES[0])],
                seconds=120,
            )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"cannot load {path}: {error}", hint="remove the file, or use native=False"
        ) from error
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = (
            arguments,
            _PLACE if name == "steelyard_team" else None,
        )
    return library


def _run(command: list[str], *, seconds: float) -> str:
    """Run a command and give what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{command[0]} did not run: {error}", hint="use native=False") from error
    if done.returncode:
        raise BackendError(
            f"{command[0]} failed: {done.stderr[-500:].strip()}", hint="use native=False"
        )
    return done.stdout


def _processor() -> str:
    """Name the processor and its features, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kept = [
        line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))
    ]
    return "\n".join([platform.machine(), platform.processor(), *dict.fromkeys(kept)])
