"""Our packed products beside PyTorch's, shape by shape."""

import ctypes
from collections.abc import Callable
from typing import cast

import torch
from benchmarks.common import Check, alternate, median_spread
from torch import Tensor

from steelyard.errors import BackendError
from steelyard.serve.running.linear import PackedLinear, can_pack
from steelyard.serve.running.native.library import Team, compiled_library
from steelyard.serve.running.native.packing import PackedWeight, padded
from steelyard.serve.running.weights import ComputedIn

__all__ = ["product_checks"]

_MEMORY_BYTES = 96 * 2**20
"""Copies of a weight that are multiplied in turn: more than the caches hold, as in a model."""
_REST_S = 0.05


def product_checks(quick: bool) -> list[Check]:
    """Time both ways on the shapes of a layer.

    Args:
        quick: one shape and three batches.

    Returns:
        PyTorch's seconds over ours; empty without a compiler.
    """
    try:
        library = compiled_library()
    except BackendError as error:
        print(f"products: {error}")
        return []
    shapes = [(2816, 512)] if quick else [(2816, 512), (1536, 1024), (5632, 1024), (1024, 2816)]
    batches = (1, 8) if quick else (1, 4, 8, 16, 32, 256)
    found = []
    for kind in ("fp32", "bf16", "int8", "int4"):
        if not can_pack(kind):
            print(f"products: PyTorch has none with {kind} weights here")
            continue
        for outputs, inputs in shapes:
            for rows in batches:
                found.append(_race(library, kind, outputs, inputs, rows, 3 if quick else 7))
    return found


def _race(
    library: ctypes.CDLL, kind: ComputedIn, outputs: int, inputs: int, rows: int, rounds: int
) -> Check:
    """Time one shape."""
    weight = torch.randn(outputs, inputs) * 0.02
    count = max(1, _MEMORY_BYTES // weight.nbytes) if rows < 64 else 1
    x = torch.randn(rows, inputs)
    rivals = {
        "PyTorch": _theirs([PackedLinear(weight, None, kind) for _ in range(count)], x),
        "ours": _ours(
            library, [PackedWeight(library, weight, None, kind) for _ in range(count)], x
        ),
    }
    # Without the rest, waiting threads of the rival before would still spin on the cores.
    seconds = alternate(rivals, rounds=rounds, rest_s=_REST_S)
    gain = median_spread(seconds["PyTorch"]).median / median_spread(seconds["ours"]).median
    label = f"{kind} {outputs}x{inputs}, {rows} rows"
    print(
        f"products: {label}: ours {min(seconds['ours']) / count * 1e6:.0f} us, PyTorch "
        f"{min(seconds['PyTorch']) / count * 1e6:.0f} us ({gain:.2f}x)"
    )
    return Check(f"4 {label}: PyTorch's time over ours", gain, 1.1, "higher")


def _theirs(maps: list[PackedLinear], x: Tensor) -> Callable[[], object]:
    """Multiply with every copy."""

    @torch.inference_mode()
    def run() -> None:
        for item in maps:
            item(x)

    return run


def _ours(library: ctypes.CDLL, maps: list[PackedWeight], x: Tensor) -> Callable[[], object]:
    """Multiply with every copy."""
    team = Team(library, torch.get_num_threads())
    width = padded(cast(int, maps[0].map.outputs))
    out = torch.empty(len(x), width)
    tiles = torch.empty(library.steelyard_tile_words(*x.shape), dtype=torch.int32)

    def run() -> None:
        for item in maps:
            library.steelyard_linear(
                team.address,
                x.data_ptr(),
                x.shape[1],
                len(x),
                ctypes.addressof(item.map),
                out.data_ptr(),
                width,
                0,
                tiles.data_ptr(),
            )

    return run
