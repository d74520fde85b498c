"""Measure this machine: `calibrate` runs every probe and makes one `Calibration`."""

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.catalog.calibration import Calibration, MatmulPoint, RandomReads
from steelyard.catalog.probes import memory
from steelyard.catalog.probes.disk import disk_rates
from steelyard.catalog.probes.kernels import attention, elementwise, launch
from steelyard.catalog.probes.link import link_rates
from steelyard.catalog.probes.matmul import time_matmuls
from steelyard.catalog.probes.random_reads import random_read_rates
from steelyard.catalog.probes.timing import Clock, Samples, Timed, clock_of, host_clock, quietest
from steelyard.catalog.quiet import Patience
from steelyard.errors import BackendError, CalibrationError, ConfigError
from steelyard.files import user_dir
from steelyard.parallel import torch_threads
from steelyard.quantity import Measurement

__all__ = ["PATIENCE_S", "Progress", "calibrate", "default_threads"]

Progress = Callable[[str, float], None]
"""Receives what is being measured and the fraction done, 0 to 1."""

_ROUNDS = {True: 2, False: 3}
"""Rounds of all probes, by quick. They lie apart in time, so that a passing disturbance does not
spoil a figure."""

_BUDGETS_S = {
    "cpu": {"fp32": (3.5, 14.0), "bf16": (0.6, 2.5), "fp16": (0.4, 1.5)},
    "cuda": {"fp32": (1.5, 5.0), "bf16": (1.5, 5.0), "fp16": (1.5, 5.0)},
}
"""Seconds per round for the matrix products of a dtype: quick, full."""

PATIENCE_S = 60.0
"""Seconds that a calibration waits for a quiet machine or measures again, in all."""

_MOST_NOISE = 0.5
"""Largest usable noise of a calibration."""

_QUANTITIES = {
    "attention_flops_per_s": "machine.attention",
    "elementwise_bytes_per_s": "machine.elementwise",
    "stream_bytes_per_s": "machine.stream",
    "gather_bytes_per_s": "machine.gather",
    "disk_read_bytes_per_s": "machine.disk_read",
    "disk_write_bytes_per_s": "machine.disk_write",
    "link_latency_s": "machine.link_latency",
    "link_bytes_per_s": "machine.link_bandwidth",
    "launch_s": "machine.launch",
}
"""Fields of a calibration that are quantities as well."""


@dataclass(slots=True)
class _Findings:
    """What the probes found, round by round.

    `matmul` is keyed by (dtype, (m, n, k)), `fields` by the field of the calibration; beside its
    samples stands the work of one repetition (0 for times).
    """

    matmul: dict[tuple[str, tuple[int, int, int]], list[Samples]] = field(default_factory=dict)
    fields: dict[str, list[Timed]] = field(default_factory=dict)
    disk_direct: bool = False
    random_reads: tuple[RandomReads, ...] = ()

    def add(self, **timed: Timed) -> None:
        """Store one round of some fields."""
        for name, found in timed.items():
            self.fields.setdefault(name, []).append(found)

    def points(self) -> tuple[MatmulPoint, ...]:
        """Return the rates of all matrix products of the dtypes whose peak was seen."""
        # Products of a few rows say nothing of a dtype's peak: one for which no square was timed
        # would be taken for a machine a thousand times slower than it is.
        seen = {dtype for dtype, shape in self.matmul if len(set(shape)) == 1}
        best = {key: quietest(runs) for key, runs in self.matmul.items() if key[0] in seen}
        return tuple(
            MatmulPoint(
                dtype=dtype,
                m=m,
                n=n,
                k=k,
                flops_per_s=samples.rate(2.0 * m * n * k),
                spread=samples.spread,
            )
            for (dtype, (m, n, k)), samples in best.items()
        )

    def best(self) -> dict[str, Timed]:
        """Return the quietest round of every field."""
        return {
            name: (quietest([samples for samples, _ in rounds]), rounds[0][1])
            for name, rounds in self.fields.items()
        }


def default_threads() -> int:
    """Return the processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def calibrate(
    *,
    quick: bool = False,
    device: str = "cpu",
    num_threads: int = 0,
    progress: Progress | None = None,
    folder: Path | None = None,
    clock: Clock | None = None,
    patience_s: float = PATIENCE_S,
    force: bool = False,
) -> Calibration:
    """Measure the rates of this machine.

    All probes run in rounds; a figure is the median of its quietest round, its spread the
    interquartile range over the median of all rounds. A probe begins when other work leaves the
    processors, and is made again when other work took part of them meanwhile; what could not be
    avoided is in the record as `contention`. The thread count of torch is set for the measurement
    and restored after it.

    Args:
        quick: about 15 s instead of one to two minutes.
        device: "cpu" or "cuda"; disk and links are measured on the host either way.
        num_threads: threads of CPU products; 0 for all processors this process may use.
        progress: receives what is being measured and the fraction done.
        folder: folder on the disk that is measured; the user's data folder by default.
        clock: times a number of calls; the device's own when not given.
        patience_s: seconds that may be spent on waiting for a quiet machine and measuring again.
        force: return what was measured however busy the machine was.

    Returns:
        The calibration, not stored yet (see `store_calibration`).

    Raises:
        ConfigError: the device is neither "cpu" nor "cuda", or the thread count is negative.
        BackendError: "cuda" was asked for and there is none.
        CalibrationError: the machine stays busy, its figures scatter too much, or the second
            process of the link probe does not answer.
    """
    _check_device(device, num_threads)
    tell = _forward_only(progress or (lambda _text, _fraction: None))
    patience = Patience(
        patience_s,
        processors=default_threads(),
        tell=lambda text: tell(text, 0.0),
        refuses=not force,
    )
    started_s = time.time()
    start = time.perf_counter()
    found = _Findings()
    rounds = _ROUNDS[quick]
    how: dict[str, Any] = {"device": device, "quick": quick, "clock": clock or clock_of(device)}
    # Dispatch, links and disk are the host's work on every device.
    on_host: dict[str, Any] = {"quick": quick, "clock": clock or host_clock}
    with torch_threads(num_threads or default_threads()) as threads:
        for index in range(rounds):

            def part(text: str, fraction: float, index: int = index) -> None:
                tell(f"{text} (round {index + 1} of {rounds})", (index + fraction) / rounds)

            _measure_matmul(found, how, part, patience)
            found.add(**patience.measure(lambda part=part: _memory_rates(how, part)))
            found.add(**patience.measure(lambda part=part: _host_rates(how, on_host, part)))
            disk, is_direct = patience.measure(lambda: _disk_rates(on_host, folder or user_dir()))
            found.add(**disk)
            found.disk_direct = is_direct
        found.random_reads = patience.measure(lambda: _random_reads(on_host, folder or user_dir()))
    tell("done", 1.0)
    timed_s = time.perf_counter() - start
    result = _conclude(found, device, threads, started_s, timed_s, patience.lost)
    if not force:
        _refuse_scatter(result)
    return result


def _forward_only(shown: Progress) -> Progress:
    """Make a progress that never goes back: a probe that is made again begins anew."""
    done = 0.0

    def tell(text: str, fraction: float) -> None:
        nonlocal done
        done = max(done, fraction)
        shown(text, done)

    return tell


def _refuse_scatter(result: Calibration) -> None:
    """Refuse figures that no two repetitions agree on."""
    if result.noise > _MOST_NOISE:
        raise CalibrationError(
            f"the figures scatter by {100 * result.noise:.0f} % between repetitions, at most "
            f"{100 * _MOST_NOISE:.0f} % is usable",
            hint="run again when the machine is quiet, or keep them all the same with --force",
        )


def _conclude(
    found: _Findings,
    device: str,
    threads: int,
    started_s: float,
    duration_s: float,
    contention: float,
) -> Calibration:
    """Make the record of what the probes found."""
    points = found.points()
    best = found.best()
    values = {
        name: samples.rate(work) if work else samples.median_s
        for name, (samples, work) in best.items()
    }
    # A disk without room or permission was not measured, but is a field of every record.
    values = {"disk_read_bytes_per_s": 0.0, "disk_write_bytes_per_s": 0.0} | values
    spreads = [point.spread for point in points] + [samples.spread for samples, _ in best.values()]
    return Calibration(
        device=device,
        description=_describe(device, threads),
        num_threads=threads,
        memory_bytes=memory.memory_bytes(device),
        matmul=points,
        noise=float(np.median(spreads)),
        contention=contention,
        measurements=(
            *_square(found, device),
            *(
                samples.measurement(_QUANTITIES[name], work)
                for name, (samples, work) in best.items()
                if name in _QUANTITIES
            ),
        ),
        disk_direct=found.disk_direct,
        random_reads=found.random_reads,
        time_s=started_s,
        duration_s=duration_s,
        versions={
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        **values,  # pyright: ignore[reportArgumentType]
    )


def _square(found: _Findings, device: str) -> list[Measurement]:
    """Return the rate of the largest square product in the device's usual dtype."""
    usual = "bf16" if device == "cuda" else "fp32"
    squares = [
        (m, rounds)
        for (dtype, (m, n, k)), rounds in found.matmul.items()
        if dtype == usual and m == n == k
    ]
    if not squares:
        return []
    size, rounds = max(squares, key=lambda square: square[0])
    return [quietest(rounds).measurement("machine.matmul", 2.0 * size**3)]


def _check_device(device: str, num_threads: int) -> None:
    """Refuse devices that are unknown or absent."""
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not known", hint="devices: cpu, cuda")
    if num_threads < 0:
        raise ConfigError(
            f"num_threads is {num_threads}, but cannot be negative",
            hint="give 0 for all processors",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError(
            "no CUDA device is visible",
            hint="use device cpu, or install a CUDA build of torch on a machine with a GPU",
        )


def _measure_matmul(
    found: _Findings, how: dict[str, Any], tell: Progress, patience: Patience
) -> None:
    """Time matrix products of every dtype, 0 to 70 % of a round."""
    budgets = {name: both[not how["quick"]] for name, both in _BUDGETS_S[how["device"]].items()}
    done = 0.0
    for dtype, budget_s in budgets.items():
        share = 0.7 * budget_s / sum(budgets.values())

        def step(
            fraction: float, dtype: str = dtype, done: float = done, share: float = share
        ) -> None:
            tell(f"matrix products, {dtype}", done + share * fraction)

        timed = patience.measure(
            lambda dtype=dtype, budget_s=budget_s, step=step: time_matmuls(
                dtype, budget_s=budget_s, step=step, **how
            )
        )
        for shape, samples in timed.items():
            found.matmul.setdefault((dtype, shape), []).append(samples)
        done += share


def _memory_rates(how: dict[str, Any], tell: Progress) -> dict[str, Timed]:
    """Time memory, 70 to 83 % of a round."""
    tell("memory streams", 0.7)
    rates = {"stream_bytes_per_s": memory.stream(**how)}
    rates["cache_bytes_per_s"] = memory.cache_stream(**how)
    tell("random gathers", 0.8)
    rates["gather_bytes_per_s"] = memory.gather(**how)
    if how["device"] == "cuda":
        rates["host_link_bytes_per_s"] = memory.host_copy(quick=how["quick"])
    return rates


def _host_rates(how: dict[str, Any], on_host: dict[str, Any], tell: Progress) -> dict[str, Timed]:
    """Time attention, elementwise operators, dispatch and links, 83 to 94 % of a round."""
    tell("attention", 0.83)
    rates = {"attention_flops_per_s": attention(**how)}
    tell("elementwise operators", 0.85)
    rates["elementwise_bytes_per_s"] = elementwise(**how)
    tell("operation dispatch", 0.86)
    rates["launch_s"] = (launch(device=how["device"], **on_host), 0.0)
    tell("links between processes", 0.88)
    rates |= link_rates(**on_host)
    tell("disk", 0.94)
    return rates


def _disk_rates(on_host: dict[str, Any], folder: Path) -> tuple[dict[str, Timed], bool]:
    """Time the disk, the rest of a round; no rates where it has no room or permission."""
    folder.mkdir(parents=True, exist_ok=True)
    return disk_rates(folder, **on_host)


def _random_reads(on_host: dict[str, Any], folder: Path) -> tuple[RandomReads, ...]:
    """Time random reads of the disk, once, after all rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    return random_read_rates(folder, **on_host)


def _describe(device: str, threads: int) -> str:
    """Name the processor and its threads."""
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"
