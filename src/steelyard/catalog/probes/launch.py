"""Overhead of dispatching one small tensor operation from Python."""

import time

from steelyard.catalog.probes.timing import Samples

__all__ = ["launch"]

_OPERATIONS = 300


def launch(*, device: str, quick: bool) -> Samples:
    """Time the dispatch of small additions.

    On CUDA the queue is drained between repetitions, not inside them.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.

    Returns:
        Seconds per operation.
    """
    import torch

    left, right = torch.ones(8, device=device), torch.ones(8, device=device)
    seconds: list[float] = []
    with torch.inference_mode():
        for _ in range(11 if quick else 51):
            start = time.perf_counter()
            for _ in range(_OPERATIONS):
                torch.add(left, right)
            seconds.append((time.perf_counter() - start) / _OPERATIONS)
            if device == "cuda":
                torch.cuda.synchronize()
    return Samples(tuple(seconds[1:]))
