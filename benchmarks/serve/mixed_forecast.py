"""Whether the forecast of mixed types holds: many small models, each with a budget of its own.

Decoders of bytes are trained for a moment on abstracts, and `steelyard serve quantize --weights
mixed` chooses types for a budget of bytes or of loss, forecasts the loss on text that is kept
aside, and measures it. Shapes, methods, budgets and texts are drawn. The rule that forecasts was
chosen on seeds below 1000; those of the checks are from there on.
"""

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import Check
from benchmarks.serve._mixed_cases import draw_case, planned

from steelyard.parallel import torch_threads

PAPER: list[str] = []

_FIRST_SEED = 1000
_COUNT, _QUICK_COUNT = 60, 6
_MOST_OFF = 3.0


def run(quick: bool) -> list[Check]:
    """Forecast and measure every case.

    Args:
        quick: few cases, which say nothing of the share that holds.
    """
    off: list[float] = []
    halves: list[float] = []
    began = time.perf_counter()
    with torch_threads(1):
        for seed in range(_FIRST_SEED, _FIRST_SEED + (_QUICK_COUNT if quick else _COUNT)):
            case = draw_case(seed)
            with tempfile.TemporaryDirectory() as folder:
                (check,) = planned(case, Path(folder)).checks
            halves.append((check.forecast.high - check.forecast.low) / 2)
            off.append(check.measurement.value - check.forecast.value)
            print(
                f"{seed} {case.method:8s} off {off[-1]:+.5f} nats, half-width {halves[-1]:.5f}, "
                f"{off[-1] / halves[-1]:+.2f}",
                flush=True,
            )
    apart = [abs(error) / half for error, half in zip(off, halves, strict=True)]
    held = statistics.mean(item <= 1 for item in apart)
    width = statistics.median(halves) / statistics.median(map(abs, off))
    print(
        f"{len(off)} cases in {time.perf_counter() - began:.0f} s: {held:.0%} held, half-width "
        f"over error {width:.2f} (medians), mean error {statistics.mean(off):+.1e}"
    )
    # Few cases tell no share: that each is near its interval is all that they can.
    checks = [Check("2 furthest from a forecast, half-widths", max(apart), _MOST_OFF, "lower")]
    if not quick:
        checks += [
            Check("1 share of 80 % intervals that hold, at least", held, 0.7, "higher"),
            Check("1 share of 80 % intervals that hold, at most", held, 0.9, "lower"),
            Check("1 half-width over error, medians", width, 2.5, "lower"),
        ]
    return sorted(checks, key=lambda check: check.name)
