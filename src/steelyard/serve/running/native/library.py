"""The library of the engine's C++ kernels and the threads they run on."""

import ctypes
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from steelyard.native import NativeCode, load, switched_off, typed

__all__ = [
    "Team",
    "capped_attention",
    "capped_products",
    "compile_ahead",
    "compiled_draws",
    "compiled_library",
]

_FOLDER = Path(__file__).parent
_HEADERS = tuple(
    _FOLDER / f"{name}.h"
    for name in (
        "activations",
        "attention",
        "blocks",
        "direct",
        "lanes",
        "linear",
        "model",
        "norms",
        "panels",
        "peaks",
        "pool",
        "products",
        "registers",
        "rows",
        "shares",
        "softmax",
        "threads",
        "tiles",
        "timing",
        "vectors",
    )
)
_PRODUCTS = tuple(
    _FOLDER / f"{name}.cpp"
    for name in ("integer_tiles", "block_tiles", "float_tiles", "products", "threads")
)
# What takes longest comes first, so that compilers that run side by side end together.
_ATTENTION = tuple(_FOLDER / f"{name}.cpp" for name in ("decode", "tiled", "attention"))
_STEP = _FOLDER / "step.cpp"
_CODE = NativeCode(
    name="kernels",
    sources=(*_ATTENTION, _STEP, *_PRODUCTS, *_HEADERS),
    # A third of the compiler's time went into headers that these include one by one.
    # What stands apart uses names of its own for what these name too.
    together=((_FOLDER / "decode.cpp", _FOLDER / "attention.cpp"), (_STEP, *_PRODUCTS)),
)
_DRAWS_CODE = NativeCode(name="draws", sources=(_FOLDER / "draws.cpp",))
_SIZE = ctypes.c_int64
_PLACE = ctypes.c_void_p
_SIGNATURES = {
    "steelyard_team": (_SIZE,),
    "steelyard_disband": (_PLACE,),
    "steelyard_level": (),
    "steelyard_pack": (_SIZE, _PLACE, _SIZE, _SIZE, _PLACE),
    "steelyard_packed_bytes": (_SIZE, _SIZE, _SIZE),
    "steelyard_tile_words": (_SIZE, _SIZE),
    "steelyard_linear": (*[_PLACE] * 2, *[_SIZE] * 2, *[_PLACE] * 2, *[_SIZE] * 2, _PLACE),
    "steelyard_attend": (
        *[_PLACE] * 4,
        *(_SIZE, _PLACE, _PLACE, _PLACE),
        *[_SIZE] * 7,
        ctypes.c_float,
        _PLACE,
    ),
    "steelyard_run": (_PLACE, _PLACE, _PLACE),
}
_ROWS = (_PLACE, _SIZE, _PLACE, _SIZE, _PLACE)
"""Logits and their width, peaks, and rows with their count."""
_DRAWS_SIGNATURES = {
    "steelyard_peaks": (_PLACE, _SIZE, _SIZE, _PLACE),
    "steelyard_likeliest": (*_ROWS, _PLACE),
    "steelyard_draw": (*_ROWS, *[_PLACE] * 7),
    "steelyard_log_totals": (*_ROWS, _PLACE),
    "steelyard_tops": (_PLACE, _SIZE, _SIZE, _PLACE, _SIZE, _PLACE, _PLACE),
    "steelyard_forbid": (_PLACE, _SIZE, _SIZE, _PLACE, _SIZE, _PLACE),
}
_STEP_CALLS = ("steelyard_attend", "steelyard_run")
_RESULTS = {
    "steelyard_team": _PLACE,
    "steelyard_level": _SIZE,
    "steelyard_packed_bytes": _SIZE,
    "steelyard_tile_words": _SIZE,
}


class Team:
    """Threads that the kernels run on; they sleep between calls and end with this object.

    Attributes:
        address: first argument of the kernels.
        size: number of threads, with that of the caller.
    """

    def __init__(self, library: ctypes.CDLL, size: int) -> None:
        """Start `size` - 1 threads."""
        self.size = size
        self.address: int = library.steelyard_team(size)
        weakref.finalize(self, library.steelyard_disband, self.address)


def compiled_library() -> ctypes.CDLL:
    """Load the kernels, compiling them if this machine has not done so yet (about five seconds).

    Returns:
        The library, its functions typed; `_name` is its path.

    Raises:
        BackendError: there is no compiler, it failed, or the library does not load.
    """
    return typed(load(_CODE), _SIGNATURES, _RESULTS)


def compiled_draws() -> ctypes.CDLL:
    """Load the functions of sampling, compiling them if needed (about a second).

    Returns:
        The library, its functions typed.

    Raises:
        BackendError: there is no compiler, it failed, or the library does not load.
    """
    return typed(load(_DRAWS_CODE), _DRAWS_SIGNATURES)


def compile_ahead() -> None:
    """Compile all kernels that are not there yet, side by side; a failure shows when they are used.

    It knows no tensors, so it can run while PyTorch is being imported.
    """
    if switched_off():
        return
    with ThreadPoolExecutor(2, thread_name_prefix="compile") as threads:
        done = [threads.submit(load, code) for code in (_CODE, _DRAWS_CODE)]
    for item in done:
        item.exception()


def capped_attention(level: int) -> ctypes.CDLL:
    """Load products and attention, held to what a narrower processor has; for tests of that code.

    Args:
        level: instruction level that `capped_products` takes.

    Returns:
        The library, as `compiled_library`, but without steps.

    Raises:
        BackendError: there is no compiler, it failed, or the library does not load.
    """
    return _capped("attention", level, (*_ATTENTION, *_PRODUCTS), ("steelyard_run",))


def capped_products(level: int) -> ctypes.CDLL:
    """Load the products alone, held to what a narrower processor has; for tests of that code.

    Args:
        level: STEELYARD_CAP of lanes.h: 3 all, 2 no bfloat16 products, 1 AVX2, 0 none by name.

    Returns:
        The library, as `compiled_library`, but without steps and attention.

    Raises:
        BackendError: there is no compiler, it failed, or the library does not load.
    """
    return _capped("products", level, _PRODUCTS, _STEP_CALLS)


def _capped(
    name: str, level: int, sources: tuple[Path, ...], missing: tuple[str, ...]
) -> ctypes.CDLL:
    """Load some sources at a level, without the functions that they do not have."""
    code = NativeCode(
        name=f"{name}-{level}",
        sources=(*sources, *_HEADERS),
        together=_CODE.together,
        flags=(*_CODE.flags, f"-DSTEELYARD_CAP={level}"),
    )
    kept = {function: kinds for function, kinds in _SIGNATURES.items() if function not in missing}
    return typed(load(code), kept, _RESULTS)
