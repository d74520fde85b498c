"""Predicted against measured time of an encoder and a decoder here, and where decoding turns."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.common import Check
from torch import nn

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.calibrate import PATIENCE_S, calibrate
from steelyard.cost import Machine, operators, roofline_time_s
from steelyard.cost.roofline import operator_times_s

__all__ = ["measured_checks"]

_ENCODER, _DECODER = "bert-base-uncased", "gpt2"
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_WIDTH = 4096
"""Weights of 64 MiB, larger than the caches of usual processors."""


def measured_checks(quick: bool) -> list[Check]:
    """Calibrate this machine, then time passes of BERT-base and GPT-2 shapes on it."""
    # A quick run does not wait long for a quiet machine, and may measure on a busy one.
    found = calibrate(quick=quick, force=True, patience_s=10.0 if quick else PATIENCE_S)
    machine = Machine.from_calibration(found, "fp32")
    lengths = (128, 512) if quick else (128, 256, 512, 1024, 2048)
    torch.manual_seed(0)
    with torch.inference_mode():
        narrow, reading = _one_row(machine), _one_query(machine)
        whole = _unmasked(machine)
        encoder = [_encoder(whole, tokens) for tokens in lengths]
        decoder = [_decoder(narrow, reading, context) for context in lengths]
        knee = _knee(narrow)
    # Equal total FLOPs: the seconds of a FLOP are compared.
    slower = [(d[1] / d[2]) / (e[1] / e[2]) for d, e in zip(decoder, encoder, strict=True)]
    said = [(d[0] / d[2]) / (e[0] / e[2]) for d, e in zip(decoder, encoder, strict=True)]
    print(f"a FLOP decoded over one encoded: measured {_words(slower)}, predicted {_words(said)}")
    errors = {
        "encoder": max(abs(item[0] / item[1] - 1) for item in encoder),
        "decoder": max(abs(item[0] / item[1] - 1) for item in decoder),
    }
    return [
        *(
            Check(f"3 {name}, predicted over measured time, largest error", error, 0.2, "lower")
            for name, error in errors.items()
        ),
        Check(
            "3 decoding over encoding at equal FLOPs, least slowdown", min(slower), 5.0, "higher"
        ),
        Check(
            "3 slowdown, predicted over measured, largest error",
            max(abs(a / b - 1) for a, b in zip(said, slower, strict=True)),
            0.25,
            "lower",
        ),
        Check("5 critical batch, knee over balance x bytes / 2, error", knee, 0.3, "lower"),
    ]


def _one_row(machine: Machine) -> Machine:
    """Return the machine at the rate at which torch's products with one row stream weights.

    On some processors these reach a third of what memory gives to plain reads, so that the stream
    of the calibration is no bound of decoding. The probe's products have none of the shapes that
    are timed below.
    """
    layers = [nn.Linear(1024, 2048, bias=False) for _ in range(24)]
    row = torch.randn(1, 1024)
    moved = sum(layer.weight.nbytes for layer in layers)
    rate = moved / _median_s(lambda: [layer(row) for layer in layers], 15)
    print(
        f"one row streams weights at {rate / 1e9:.1f} GB/s, memory gives "
        f"{machine.memory_bytes_per_s / 1e9:.1f}"
    )
    return replace(machine, memory_bytes_per_s=rate)


def _one_query(machine: Machine) -> Machine:
    """Return the machine at the rate at which attention of one query reads keys and values.

    It is neither the stream's nor that of products with one row. Those of a layer may fit the
    cache, but by the next step the others have pushed them out, so that there is none. The probe's
    length and heads are none of those that are timed below.
    """
    shape = (1, 8, 1536, 64)
    past = [(torch.randn(shape), torch.randn(shape)) for _ in range(24)]
    query = torch.randn(1, 8, 1, 64)
    moved = sum(k.nbytes + v.nbytes for k, v in past)
    rate = moved / _median_s(
        lambda: [F.scaled_dot_product_attention(query, k, v) for k, v in past], 15
    )
    print(f"one query reads keys and values at {rate / 1e9:.1f} GB/s")
    return replace(machine, memory_bytes_per_s=rate, cache_bytes=0.0)


def _unmasked(machine: Machine) -> Machine:
    """Return the machine at the rate of attention without a mask.

    The calibration's is causal, and such attention reaches less of the peak. The probe's length is
    none of those that are timed below.
    """
    heads, tokens, width = 8, 768, 64
    q, k, v = (torch.randn(1, heads, tokens, width) for _ in range(3))
    seconds = _median_s(lambda: F.scaled_dot_product_attention(q, k, v), 25)
    rate = 4 * heads * tokens**2 * width / seconds / machine.peak_flops_per_s
    print(
        f"attention without a mask reaches {rate:.2f} of the peak, the calibration's "
        f"{machine.efficiencies.attention:.2f}"
    )
    return replace(machine, efficiencies=replace(machine.efficiencies, attention=rate))


def _words(values: list[float]) -> str:
    """Return numbers as text."""
    return ", ".join(f"{value:.2f}" for value in values)


class _Layer(nn.Module):
    """A layer of plain torch products; `past` holds the keys and values of earlier tokens."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        width = arch.hidden_size
        self.heads = arch.num_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up = nn.Linear(width, arch.intermediate_size)
        self.down = nn.Linear(arch.intermediate_size, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        if past is not None:
            # The last place of the cache is this token's.
            past[0][:, :, -1:], past[1][:, :, -1:] = k, v
            k, v = past
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def _median_s(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the median time of a few calls after a first one."""
    work()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _encoder(machine: Machine, tokens: int) -> tuple[float, float, float]:
    """Return predicted and measured seconds of an encoder's pass, and its FLOPs."""
    arch = catalog.architecture_by_name(_ENCODER)
    layers = [_Layer(arch) for _ in range(arch.num_layers)]
    states = torch.randn(1, tokens, arch.hidden_size)

    def work() -> None:
        x = states
        for layer in layers:
            x = layer(x)

    table = operators(
        arch,
        phase="prefill",
        tokens=tokens,
        causal=False,
        dtype_bytes=machine.dtype_bytes,
        fused=machine.fused,
    )
    return _said(
        "encoder",
        tokens,
        float(roofline_time_s(table, machine)),
        _median_s(work),
        float(table.total("flops")),
    )


def _decoder(machine: Machine, reading: Machine, context: int) -> tuple[float, float, float]:
    """Return predicted and measured seconds of a decoding step, and its FLOPs.

    Attention's operators are predicted at the rate of `reading`.
    """
    arch = catalog.architecture_by_name(_DECODER)
    layers = [_Layer(arch) for _ in range(arch.num_layers)]
    head = nn.Linear(arch.hidden_size, arch.vocab_size, bias=False)
    shape = (1, arch.num_heads, context, arch.head_dim)
    past = [(torch.randn(shape), torch.randn(shape)) for _ in layers]
    token = torch.randn(1, 1, arch.hidden_size)

    def work() -> None:
        x = token
        for layer, kept in zip(layers, past, strict=True):
            x = layer(x, kept)
        head(x)

    table = operators(
        arch,
        phase="decode",
        tokens=1,
        context=context,
        dtype_bytes=machine.dtype_bytes,
        fused=machine.fused,
    )
    times = np.where(
        table.mask("attention"),
        operator_times_s(table, reading),
        operator_times_s(table, machine),
    )
    return _said(
        "decoder",
        context,
        float((table.count * times).sum()),
        _median_s(work, 15),
        float(table.total("flops")),
    )


def _said(
    name: str, tokens: int, predicted: float, measured: float, flops: float
) -> tuple[float, float, float]:
    """Print and return a pair with its FLOPs."""
    print(
        f"{name} {tokens}: predicted {1e3 * predicted:.1f} ms, measured {1e3 * measured:.1f} ms "
        f"({predicted / measured:.2f})"
    )
    return predicted, measured, flops


def _knee(machine: Machine) -> float:
    """Return the error of the critical batch against where products turn compute-bound here.

    The balance is the calibration's peak over the probe's stream. The knee is the batch that
    reaches half of the best rate: where arithmetic and streaming the weights take equal times, they
    add up to twice either.
    """
    weights = torch.randn(_WIDTH, _WIDTH)
    rates = []
    for batch in _BATCHES:
        rows = torch.randn(batch, _WIDTH)
        rates.append(
            2 * batch * _WIDTH**2 / _median_s(lambda rows=rows: F.linear(rows, weights), 7)
        )
    balance = float(machine.peak_flops_per_s) / float(machine.bandwidth(weights.nbytes))
    critical = balance * weights.element_size() / 2
    measured = float(np.interp(max(rates) / 2, rates, _BATCHES))
    words = ", ".join(
        f"{batch}: {rate / 1e9:.0f}" for batch, rate in zip(_BATCHES, rates, strict=True)
    )
    print(
        f"products of {_WIDTH} x {_WIDTH}, GFLOP/s by batch {words}; critical "
        f"batch {critical:.1f}, half of the best rate at {measured:.1f}"
    )
    return abs(measured / critical - 1)
