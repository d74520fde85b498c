"""Overhead of dispatching one small tensor operation from Python."""

from functools import partial

from steelyard.catalog.probes.timing import Clock, Samples, host_clock

__all__ = ["launch"]

_OPERATIONS = 300


def launch(*, device: str, quick: bool, clock: Clock = host_clock) -> Samples:
    """Time the dispatch of small additions.

    On CUDA the queue is drained between repetitions, not inside them.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls; by the host on every device, as the host dispatches.

    Returns:
        Seconds per operation.
    """
    import torch

    ones = torch.ones(8, device=device)
    seconds: list[float] = []
    with torch.inference_mode():
        for _ in range(11 if quick else 51):
            seconds.append(clock(partial(torch.add, ones, ones), _OPERATIONS) / _OPERATIONS)
            if device == "cuda":
                torch.cuda.synchronize()
    return Samples(tuple(seconds[1:]))  # the first repetition warms up
