"""Rate of activation and softmax, forward and backward, which exponentials bound."""

from steelyard.catalog.probes.timing import Clock, Samples, clock_of, repeat

__all__ = ["elementwise"]

_SHAPES = {"cpu": (1024, 512), "cuda": (8192, 4096)}
_PASSES = 10
"""Reads and writes of the tensor: SiLU and log-softmax, each one read and one write forward, two
reads and one write backward."""


def elementwise(*, device: str, quick: bool, clock: Clock | None = None) -> tuple[Samples, float]:
    """Time one training pass of SiLU and log-softmax over fp32 rows.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls; the device's own when not given.

    Returns:
        Samples, and the bytes one repetition reads and writes.
    """
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_SHAPES[device], generator=generator).to(device).requires_grad_()
    above = torch.ones_like(values)

    def work() -> None:
        torch.autograd.grad(F.log_softmax(F.silu(values), dim=-1), [values], above)

    size = float(values.numel() * values.element_size())
    return repeat(
        work,
        clock or clock_of(device),
        repeats=5 if quick else 9,
        least_s=0.01,
        most_s=0.4 if quick else 1.0,
    ), _PASSES * size
