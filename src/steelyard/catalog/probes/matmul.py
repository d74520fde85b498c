"""Rates of matrix products over dtypes and sizes."""

import time
from collections.abc import Callable

import torch

from steelyard.catalog.probes.timing import Clock, Samples, repeat

__all__ = ["matmul_shapes", "time_matmuls"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_shapes(*, device: str, quick: bool) -> list[tuple[int, int, int]]:
    """List the shapes (m, n, k) to time, least work first.

    Rows m are tokens at once, from one decoded token to a training batch; n and k are the widths of
    layers.

    Args:
        device: "cpu" or "cuda"; GPUs get larger widths.
        quick: fewer widths, smaller squares.

    Returns:
        Shapes without repeats.
    """
    if device == "cuda":
        widths = [(1024, 1024), (4096, 4096), (4096, 16384)] + (
            [] if quick else [(16384, 4096), (8192, 8192)]
        )
        squares = [1024, 2048, 4096, 8192] + ([] if quick else [16384])
        rows = (1, 8, 64, 512, 4096)
    else:
        widths = [(128, 128), (256, 256), (256, 1024), (1024, 256), (512, 512), (1024, 1024)]
        widths += (
            []
            if quick
            else [(128, 512), (512, 128), (256, 512), (512, 256), (512, 1024), (1024, 512)]
        )
        squares = [512, 1024, 2048] + ([] if quick else [4096])
        rows = (1, 8, 64, 512, 2048)
    shapes = {(m, n, k) for m in rows for k, n in widths} | {(size, size, size) for size in squares}
    return sorted(shapes, key=lambda shape: (shape[0] * shape[1] * shape[2], shape))


def time_matmuls(
    dtype: str,
    *,
    device: str,
    quick: bool,
    clock: Clock,
    budget_s: float,
    seed: int = 0,
    step: Callable[[float], None] = lambda _: None,
) -> dict[tuple[int, int, int], Samples]:
    """Time the matrix products of one dtype.

    A shape whose expected time does not fit what is left of the budget is skipped, so that a dtype
    that the processor emulates costs seconds, not minutes. The smallest square has the whole budget
    to itself: it is timed even when slower shapes before it spent the budget.

    Args:
        dtype: "fp32", "bf16" or "fp16".
        device: "cpu" or "cuda".
        quick: fewer shapes and repetitions.
        clock: times a number of calls.
        budget_s: seconds to spend.
        seed: seed of the operands.
        step: receives the fraction done, 0 to 1.

    Returns:
        Samples by shape (m, n, k), the shapes in the order of `matmul_shapes`.
    """
    deadline = time.perf_counter() + budget_s
    rate = 0.0
    timed: dict[tuple[int, int, int], Samples] = {}
    shapes = matmul_shapes(device=device, quick=quick)
    first_square = next(shape for shape in shapes if len(set(shape)) == 1)
    for index, (m, n, k) in enumerate(shapes):
        step(index / len(shapes))
        flops = 2.0 * m * n * k
        left_s = budget_s if (m, n, k) == first_square else deadline - time.perf_counter()
        # A warm-up, an estimate and three repetitions are the least that a shape takes.
        if rate and 5 * flops / rate > left_s:
            continue
        timed[m, n, k] = _time_one(
            dtype, (m, n, k), clock=clock, device=device, quick=quick, seed=seed
        )
        rate = max(rate, timed[m, n, k].rate(flops))
    return timed


def _time_one(
    dtype: str, shape: tuple[int, int, int], *, clock: Clock, device: str, quick: bool, seed: int
) -> Samples:
    """Time one product."""
    m, n, k = shape
    kind = _DTYPES[dtype]
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, k, generator=generator).to(device, kind)
    right = torch.randn(k, n, generator=generator).to(device, kind)
    with torch.inference_mode():
        return repeat(
            lambda: torch.mm(left, right),
            clock,
            repeats=5 if quick else 7,
            least_s=0.001 if quick else 0.003,
            most_s=0.06 if quick else 0.3,
        )
