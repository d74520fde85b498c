"""Rate of fused causal attention, forward and backward."""

from steelyard.catalog.probes.timing import Clock, Samples, clock_of, repeat

__all__ = ["attention"]

_SHAPES = {"cpu": (8, 4, 256, 64), "cuda": (8, 16, 2048, 128)}
"""Sequences, heads, tokens and head size, by device: what a small training batch holds."""


def attention(*, device: str, quick: bool, clock: Clock | None = None) -> tuple[Samples, float]:
    """Time one training pass of attention, in fp32 on a CPU and bf16 on CUDA.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls; the device's own when not given.

    Returns:
        Samples, and the FLOPs of one repetition: the causal half of both products forward, 2.5
        times as many backward.
    """
    import torch
    import torch.nn.functional as F

    sequences, heads, tokens, size = _SHAPES[device]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(4, sequences, heads, tokens, size, generator=generator).to(device, dtype)
    operands, above = [item.clone().requires_grad_() for item in whole[:3]], whole[3]

    def work() -> None:
        out = F.scaled_dot_product_attention(operands[0], operands[1], operands[2], is_causal=True)
        torch.autograd.grad(out, operands, above)

    flops = 3.5 * 4.0 * sequences * heads * tokens * (tokens + 1) / 2 * size
    return repeat(
        work,
        clock or clock_of(device),
        repeats=5 if quick else 9,
        least_s=0.01,
        most_s=0.4 if quick else 1.0,
    ), flops
