"""FP8 casts, training, constants of inference and training, one-byte weights, cost of scaling.

1 compares casts with PyTorch's on every bfloat16. 2 trains one model of bytes in bf16 and in FP8
with several scalings, on the same batches, and fine-tunes it in both. 3 seeks the interval of
constants (FP8-CSCALE) that keeps 99.5 % of the right bytes' mean probability after fine-tuning, for
two sizes, in inference and in training. 4 multiplies weights of one byte with a vector, beside
PyTorch in bf16, where the matrix is larger than the caches. 5 measures what part of a training step
is spent on maxima, and on a GPU with FP8 products their speed.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from benchmarks.common import Check, alternate, ratio
from benchmarks.train._fp8_runs import (
    Size,
    continued,
    evaluate,
    kept,
    library,
    logs,
    trained,
)
from torch import nn
from torch.nn import functional as F

from steelyard.nn.fp8.hardware import scaled_product
from steelyard.nn.fp8.linear import Formats
from steelyard.nn.fp8.native import compiled, native_gemv
from steelyard.nn.fp8.precision import bias_interval
from steelyard.nn.fp8.recipes import (
    Amax,
    Block,
    ConstantBias,
    Delayed,
    PerRow,
    Recipe,
    Role,
    Scaler,
)
from steelyard.nn.fp8.scaled import quantize
from steelyard.nn.fp8.weights import quantize_weights
from steelyard.nn.numerics.floats import E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, FloatFormat
from steelyard.nn.numerics.fp8 import encode, scale_bias
from steelyard.nn.transformer import build

PAPER = ["81-fp8-llm"]
_SHARE = 0.995
_QUICK_SIZES = (Size(64, 2, 80, 16, 40, 24), Size(128, 2, 32, 16, 32, 24))
_FULL_SIZES = (Size(128, 4, 400, 60, 200), Size(256, 4, 300, 60, 200))


def _casts() -> list[Check]:
    """Count casts of bfloat16 that differ from PyTorch's."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    checks = []
    for fmt in (E4M3, E5M2, E4M3FNUZ, E5M2FNUZ):
        dtype = fmt.torch_dtype
        assert dtype is not None
        saturates = bool(torch.tensor(torch.inf).to(dtype).float().isfinite())
        ours = encode(every, fmt, saturate=saturates)
        wrong = (ours != every.to(dtype).view(torch.uint8)).sum().item()
        bounded = every.float().clamp(-fmt.max, fmt.max).to(dtype).view(torch.uint8)
        one = torch.zeros(1, 1, dtype=torch.int32)
        row = every[None].contiguous()
        quick, _ = quantize(row, fmt, one, row.shape[1], torch.bfloat16)
        wrong += (quick.codes[0] != bounded).sum().item()
        checks.append(Check(f"1 codes that differ, {fmt.name}", float(wrong), 0.0, "lower"))
    return checks


def _final(losses: list[float]) -> float:
    """Return the mean of the last tenth of losses; infinity where training diverged."""
    tail = losses[-max(1, len(losses) // 10) :]
    mean = sum(tail) / len(tail)
    return mean if math.isfinite(mean) else math.inf


def _training(size: Size, quick: bool) -> list[Check]:
    """Train with each scaling and compare the last losses."""
    arms: dict[str, tuple[Recipe | None, Formats]] = {
        "bf16": (None, Formats()),
        "amax": (Amax(), Formats()),
        "unscaled": (ConstantBias(0), Formats()),
        "e5 weights": (Amax(), Formats(weight=E5M2)),
    }
    if not quick:
        arms |= {
            "delayed": (Delayed(), Formats()),
            "per row": (PerRow(), Formats()),
            "block": (Block(), Formats()),
        }

    def arm(recipe: Recipe | None, formats: Formats) -> float:
        model = build(size.architecture, seed=0)
        return _final(trained(model, library(), size.steps, recipe=recipe, formats=formats))

    losses = {
        name: kept(f"{size.name}-{name.replace(' ', '_')}", lambda a=given: arm(*a), keep=not quick)
        for name, given in arms.items()
    }
    print("last losses, nats a byte: " + ", ".join(f"{k} {v:.4f}" for k, v in losses.items()))
    return [
        Check("2 loss of AMAX over bf16", losses["amax"] / losses["bf16"], 1.005, "lower"),
        Check("2 loss unscaled over AMAX", losses["unscaled"] / losses["amax"], 1.005, "higher"),
        Check("2 loss, E5 over E4 weights", losses["e5 weights"] / losses["amax"], 1.0, "higher"),
    ]


def _fine_tuning(size: Size, quick: bool) -> list[Check]:
    """Fine-tune a trained model on other text, in bf16 and in FP8, and evaluate it so."""

    def accuracies() -> list[float]:
        return [
            evaluate(continued(size, logs(), size.tuned, recipe), logs(), size.windows, recipe)[1]
            for recipe in (None, Amax())
        ]

    plain, ours = kept(f"{size.name}-tuned", accuracies, keep=not quick)
    print(f"fine-tuned: bytes guessed right, bf16 {plain:.4f}, FP8-AMAX {ours:.4f}")
    return [Check("2 fine-tuned metric, FP8 over bf16", ours / plain, _SHARE, "higher")]


def _widths(size: Size, quick: bool, trains: bool) -> dict[str, int]:
    """Return how many constants keep enough of the metric, in inference and at wish in training."""
    text = logs()

    def measured(model: nn.Module, recipe: Recipe | None) -> float:
        # Geometric mean of the probability of the right byte: smoother than a count.
        return math.exp(-evaluate(model, text, size.windows, recipe)[0])

    def tuned_with(recipe: Recipe | None) -> nn.Module:
        return continued(size, text, size.more, recipe)

    def inference() -> dict[str, float]:
        model = tuned_with(None)
        reference = measured(model, None)
        return {
            str(bias): measured(model, ConstantBias(bias)) / reference for bias in range(-8, 14)
        }

    def training() -> dict[str, float]:
        reference = measured(tuned_with(None), None)
        # Two constants beyond either end of what inference allows.
        interval = _interval(constants)
        tried = range(interval[0] - 2, interval[1] + 3) if interval else range(0)
        recipes = {bias: ConstantBias(bias) for bias in tried}
        return {
            str(bias): measured(tuned_with(recipe), recipe) / reference
            for bias, recipe in recipes.items()
        }

    constants = kept(f"{size.name}-inference", inference, keep=not quick)
    swept = {"inference": constants}
    if trains:
        swept["training"] = kept(f"{size.name}-training", training, keep=not quick)
    widths = {}
    for name, found in swept.items():
        interval = _interval(found)
        print(f"{size.name}, {name}: constants {interval} keep {_SHARE:.1%}; " + _listed(found))
        widths[name] = interval[1] - interval[0] + 1 if interval else 0
    return widths


def _interval(shares: dict[str, float]) -> tuple[int, int] | None:
    """Return the first and last constant that keep enough."""
    return bias_interval({int(bias): value for bias, value in shares.items()}, _SHARE)


def _listed(shares: dict[str, float]) -> str:
    """Write shares by constant."""
    return " ".join(f"{bias}:{value:.3f}" for bias, value in shares.items())


def _constants(sizes: tuple[Size, Size], quick: bool) -> list[Check]:
    """Compare the intervals of constants over sizes, and of inference with training."""
    # Training with each constant takes too long for the larger one in a minute.
    small = _widths(sizes[0], quick, trains=True)
    large = _widths(sizes[1], quick, trains=not quick)
    checks = []
    for size, widths in zip(sizes, (small, large), strict=True):
        for name, count in widths.items():
            checks.append(Check(f"3 constants, {name}, {size.name}", count, 1, "higher"))
        if "training" in widths:
            less = widths["training"] - widths["inference"]
            label = f"3 constants of training less inference, {size.name}"
            checks.append(Check(label, less, -1, "lower"))
    # Models that were trained for seconds are too alike to tell sizes apart.
    for name in () if quick else ("inference", "training"):
        less = large[name] - small[name]
        label = f"3 constants of the larger less the smaller, {name}"
        checks.append(Check(label, less, -1, "lower"))
    return checks


def _products(quick: bool) -> list[Check]:
    """Multiply matrices beyond the caches with a vector, in bf16 and with one byte a weight."""
    library_ = compiled()
    checks = []
    for rows, columns in ((8192, 8192),) if quick else ((8192, 8192), (16384, 8192)):
        weights = (torch.randn(1024, columns) * 0.02).bfloat16().repeat(rows // 1024, 1)
        x = torch.randn(columns).bfloat16()
        record = quantize_weights(weights)
        label = f"{rows}x{columns}"
        size = record.num_bytes / weights.nbytes
        checks.append(Check(f"4 bytes of weights over bf16, {label}", size, 0.51, "lower"))
        wanted = weights[:1024].double() @ x.double()
        emulated = record.dequantize()[:1024] @ x.float()
        checks.append(
            _gemv_error(library_, record.codes[:1024], emulated, wanted, x, record.biases)
        )
        if library_ is None:
            checks.append(Check(f"4 product, bf16 over FP8, {label}", math.nan, 1.4, "higher"))
            continue
        seconds = alternate(
            {
                "bf16": partial(F.linear, x[None], weights),
                "fp8": partial(native_gemv, library_, record.codes, record.fmt, x.float()),
            },
            rounds=9 if quick else 25,
            warm_up=2,
        )
        found = ratio(seconds["bf16"], seconds["fp8"])
        print(f"{label}: bf16 over FP8 {found.median:.2f} ({found.low:.2f} to {found.high:.2f})")
        checks.append(Check(f"4 product, bf16 over FP8, {label}", found.median, 1.4, "higher"))
    return checks


def _gemv_error(
    library_: object,
    codes: torch.Tensor,
    emulated: torch.Tensor,
    wanted: torch.Tensor,
    x: torch.Tensor,
    biases: torch.Tensor,
) -> Check:
    """Compare the kernel's error with that of decoded weights, both against unrounded weights."""
    if library_ is None:
        return Check("4 error of the product over the emulation's", math.nan, 1.001, "lower")
    ours = native_gemv(library_, codes, E4M3, x.float()) * 2.0 ** -int(biases)  # type: ignore
    errors = [(item.double() - wanted).abs().max().item() for item in (ours, emulated)]
    return Check(
        "4 error of the product over the emulation's", errors[0] / errors[1], 1.001, "lower"
    )


@dataclass(frozen=True)
class _Timed:
    """A recipe that adds up the seconds its scalers take."""

    inner: Recipe
    seconds: list[float]

    @property
    def block(self) -> int:
        """That of the recipe."""
        return self.inner.block

    def scaler(self, role: Role, fmt: FloatFormat, name: str) -> Scaler:
        """Return the recipe's scaler with a clock around it."""
        scaler = self.inner.scaler(role, fmt, name)

        def timed(x: torch.Tensor) -> torch.Tensor:
            start = time.perf_counter()
            biases = scaler(x)
            self.seconds.append(time.perf_counter() - start)
            return biases

        return timed


def _scaling_cost(quick: bool) -> list[Check]:
    """Measure the part of a training step that maxima take at widths of 512 and more."""
    checks = []
    for width in (512,) if quick else (512, 1024):
        size = Size(width, 2, 0, 0)
        model = build(size.architecture, seed=0)
        steps = 4 if quick else 12
        parts, recipe = [], _Timed(Amax(), [])
        started = [time.perf_counter()]

        def stepped(parts=parts, recipe=recipe, started=started) -> None:
            now = time.perf_counter()
            parts.append(sum(recipe.seconds) / (now - started[0]))
            recipe.seconds.clear()
            started[0] = time.perf_counter()

        trained(model, library(), steps, recipe=recipe, on_step=stepped)
        part = sorted(parts[1:])[len(parts[1:]) // 2]
        print(f"width {width}: maxima take {part:.2%} of a step (median of {steps - 1})")
        checks.append(Check(f"5 part of a step for maxima, width {width}", part, 0.05, "lower"))
    return checks


def _hardware() -> list[Check]:
    """Time FP8 and bf16 products of 4096^3 on a GPU that has both."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        print("5 no GPU with FP8 products: their speed is not measured here")
        return []
    x, weight = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def cast(item: torch.Tensor):
        amax = torch.maximum(*(part.abs() for part in torch.aminmax(item)))
        return quantize(item, E4M3, scale_bias(amax, E4M3).view(1, 1), 4096, torch.bfloat16)[0]

    sides = cast(x), cast(weight)
    seconds = alternate(
        {
            "bf16": _waited(lambda: F.linear(x, weight)),
            "fp8": _waited(lambda: scaled_product(*sides, torch.bfloat16)),
        },
        rounds=20,
        warm_up=3,
    )
    found = ratio(seconds["bf16"], seconds["fp8"]).median
    return [Check("5 product of 4096^3 on a GPU, bf16 over FP8", found, 1.3, "higher")]


def _waited(work: Callable[[], object]) -> Callable[[], None]:
    """Return work that waits until the GPU has done it ten times."""

    def done() -> None:
        for _ in range(10):
            work()
        torch.cuda.synchronize()

    return done


def run(quick: bool) -> list[Check]:
    """Check casts, training, constants, products and the cost of scaling.

    Args:
        quick: smaller models of fewer steps.

    Returns:
        The checks of the groups above.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    sizes = _QUICK_SIZES if quick else _FULL_SIZES
    try:
        return [
            *_casts(),
            *_training(sizes[1], quick),
            *_fine_tuning(sizes[1], quick),
            *_constants(sizes, quick),
            *_products(quick),
            *_scaling_cost(quick),
            *_hardware(),
        ]
    finally:
        torch.set_num_threads(threads)
