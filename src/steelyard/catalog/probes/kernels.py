"""Rates of attention and elementwise operators in training, and the overhead of dispatching one."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from steelyard.catalog.probes.timing import Clock, Samples, Timed, repeat

__all__ = ["attention", "elementwise", "launch"]

_ATTENTION = {"cpu": (8, 4, 256, 64), "cuda": (8, 16, 2048, 128)}
"""Sequences, heads, tokens and head size, by device: what a small training batch holds."""

_ROWS = {"cpu": (1024, 512), "cuda": (8192, 4096)}
_PASSES = 10
"""Reads and writes of the tensor: SiLU and log-softmax, each one read and one write forward, two
reads and one write backward."""

_OPERATIONS = 300
"""Operations dispatched in one repetition."""


def _timed(work: Callable[[], None], quick: bool, clock: Clock) -> Samples:
    """Time one training pass of an operator."""
    most_s = 0.4 if quick else 1.0
    return repeat(work, clock, repeats=5 if quick else 9, least_s=0.01, most_s=most_s)


def attention(*, device: str, quick: bool, clock: Clock) -> Timed:
    """Time one training pass of attention, in fp32 on a CPU and bf16 on CUDA.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls.

    Returns:
        Samples, and the FLOPs of one repetition: the causal half of both products forward, 2.5
        times as many backward.
    """
    sequences, heads, tokens, size = _ATTENTION[device]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(4, sequences, heads, tokens, size, generator=generator).to(device, dtype)
    query, key, value = (item.clone().requires_grad_() for item in whole[:3])

    def work() -> None:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(out, (query, key, value), whole[3])

    flops = 3.5 * 4.0 * sequences * heads * tokens * (tokens + 1) / 2 * size
    return _timed(work, quick, clock), flops


def elementwise(*, device: str, quick: bool, clock: Clock) -> Timed:
    """Time one training pass of SiLU and log-softmax, which exponentials bound, over fp32 rows.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls.

    Returns:
        Samples, and the bytes one repetition reads and writes.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_ROWS[device], generator=generator).to(device).requires_grad_()
    above = torch.ones_like(values)

    def work() -> None:
        torch.autograd.grad(F.log_softmax(F.silu(values), dim=-1), [values], above)

    return _timed(work, quick, clock), float(_PASSES * values.nbytes)


def launch(*, device: str, quick: bool, clock: Clock) -> Samples:
    """Time the dispatch of small additions.

    On CUDA the queue is drained between repetitions, not inside them.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls; by the host on every device, as the host dispatches.

    Returns:
        Seconds per operation.
    """
    ones = torch.ones(8, device=device)
    seconds: list[float] = []
    with torch.inference_mode():
        for _ in range(11 if quick else 51):
            seconds.append(clock(partial(torch.add, ones, ones), _OPERATIONS) / _OPERATIONS)
            if device == "cuda":
                torch.cuda.synchronize()
    return Samples(tuple(seconds[1:]))  # the first repetition warms up
