"""`steelyard calibrate`: measure this machine, stored as the catalog record this-machine."""

import sys
from dataclasses import replace

from steelyard.catalog import Calibration, store_calibration
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch
from steelyard.cost.weights import engine_bytes_per_weight
from steelyard.files import writable_user_dir
from steelyard.plan.idle import idle_bytes
from steelyard.runs.grid import GridColumn, grid
from steelyard.runs.progress import progress
from steelyard.runs.screen import screen
from steelyard.units import pretty


def calibrate(
    *, quick: Switch = False, device: str = "cpu", force: Switch = False, json: Switch = False
) -> None:
    """Measure this machine: matrix products, memory, disk, links, dispatch, the engine's kernels.

    Example: steelyard calibrate --quick

    The result is stored as the catalog record this-machine. While other work keeps the processors
    busy it waits, up to a minute in all; figures that others spoiled are not stored.

    Args:
        quick: take about half a minute instead of about two minutes.
        device: device to measure, cpu or cuda.
        force: do not wait, and store the figures however busy the machine is; intervals of what is
            forecast from them are wider.
        json: print the stored record as JSON instead of a table.
    """
    # A home that cannot be written is refused here, before minutes of measuring.
    writable_user_dir()
    calibration = _measure(quick, device, force)
    if device == "cpu" and not quick:
        calibration = replace(calibration, **idle_bytes())
    if device == "cpu":
        calibration = _with_engine(calibration, quick)
    path = store_calibration(calibration)
    if json:
        sys.stdout.write(path.read_text())
        return
    _print(calibration, str(path))
    say_next("plan", "fit")


def _measure(quick: bool, device: str, force: bool) -> Calibration:
    """Measure with a progress bar on standard error."""
    # It loads torch, which the help of this command does without.
    from steelyard.catalog.calibrate import PATIENCE_S
    from steelyard.catalog.calibrate import calibrate as measure

    with progress("calibrate") as advance:
        return measure(
            quick=quick,
            device=device,
            progress=lambda text, share: advance(share, text),
            patience_s=0.0 if force else PATIENCE_S,
            force=force,
        )


def _with_engine(calibration: Calibration, quick: bool) -> Calibration:
    """Add the rates of the engine's own kernels, where they run."""
    from steelyard.contention import LoadMeter
    from steelyard.parallel import torch_threads
    from steelyard.serve.engine_rates import measure_engine

    meter = LoadMeter()
    with progress("engine's kernels") as advance, torch_threads(calibration.num_threads):
        rates = measure_engine(lambda share: advance(share, "steps and products"), quick=quick)
    taken = max(calibration.contention, meter.read().lost)
    spent_s = rates.duration_s if rates else 0.0
    return replace(
        calibration,
        engine=rates,
        contention=taken,
        duration_s=calibration.duration_s + spent_s,
    )


def _print(calibration: Calibration, path: str) -> None:
    """Print the figures, how noisy they are, and where they are stored."""
    columns = [GridColumn(style="dim"), GridColumn(right=True), GridColumn(style="dim")]
    console = screen()
    console.print(f"[bold]this-machine[/]  [dim]{calibration.description}[/]")
    console.print(grid(columns, _rows(calibration), console.width), soft_wrap=True)
    console.print(
        f"noise {pretty(calibration.noise, 'fraction')}, taken by other work "
        f"{pretty(calibration.contention, 'fraction')}: {_verdict(calibration.disturbance)}",
        highlight=False,
    )
    console.print(
        f"measured in {pretty(calibration.duration_s, 's')}, stored in {path}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


_RATES = (
    ("attention", "attention_flops_per_s", "forward and backward, masked pairs not counted"),
    ("elementwise", "elementwise_bytes_per_s", "activation and softmax, forward and backward"),
    ("memory", "memory_bytes", ""),
    ("memory stream", "stream_bytes_per_s", "beyond the caches"),
    ("cache stream", "cache_bytes_per_s", "inside the last-level cache"),
    ("random rows", "gather_bytes_per_s", "256 bytes each"),
    ("loopback TCP", "link_bytes_per_s", "{link_latency_s} one way"),
    ("shared memory", "shared_bytes_per_s", "{shared_latency_s} one way over a pipe"),
    ("operation dispatch", "launch_s", "one small tensor operation"),
    ("idle engine", "engine_process_bytes", "process without a model"),
    ("idle trainer", "trainer_process_bytes", "process without a model"),
)
"""Label, field and note of each figure; a field in braces stands for its value."""

_UNITS = (("_flops_per_s", "FLOP/s"), ("_bytes_per_s", "byte/s"), ("_bytes", "byte"), ("_s", "s"))


def _rows(calibration: Calibration) -> list[tuple[str, str, str]]:
    """List label, value and note of every figure."""

    def figure(name: str) -> str:
        unit = next(unit for suffix, unit in _UNITS if name.endswith(suffix))
        return pretty(getattr(calibration, name), unit)

    best = {}
    for point in calibration.matmul:
        if point.flops_per_s > getattr(best.get(point.dtype), "flops_per_s", 0.0):
            best[point.dtype] = point
    rows = [
        (
            f"matrix product, {dtype}",
            pretty(point.flops_per_s, "FLOP/s"),
            f"best, {point.m} x {point.k} by {point.k} x {point.n}",
        )
        for dtype, point in best.items()
    ]
    one_way = {name: figure(name) for name in ("link_latency_s", "shared_latency_s")}
    # What a quick calibration leaves out is in the record as 0.
    rows += [
        (label, figure(name), note.format(**one_way))
        for label, name, note in _RATES
        if getattr(calibration, name)
    ]
    rows += _engine_rows(calibration)
    if calibration.host_link_bytes_per_s:
        rows.append(("host to device", figure("host_link_bytes_per_s"), "pinned memory"))
    # A disk without room or permission is in the record as 0, which is no rate.
    if not calibration.disk_write_bytes_per_s:
        return [*rows, ("disk", "-", "not measured: no space or no permission")]
    cached = "page cache not bypassed: reads may come from memory"
    read = "page cache bypassed" if calibration.disk_direct else cached
    rows.append(("disk read", figure("disk_read_bytes_per_s"), read))
    rows.append(("disk write", figure("disk_write_bytes_per_s"), "flushed to the device"))
    return rows + [
        (
            f"random reads, {point.depth} at once",
            f"{point.reads_per_s:,.0f}/s",
            f"{pretty(point.block_bytes, 'byte')} each, page cache bypassed",
        )
        for point in calibration.random_reads
    ]


def _engine_rows(calibration: Calibration) -> list[tuple[str, str, str]]:
    """List the rates of the engine's kernels by type of weights."""
    rates = calibration.engine
    if rates is None:
        return []
    found = []
    for kind in rates.types:
        width = engine_bytes_per_weight(kind, 1024)
        read = width * 1024**2 / rates.product_s(kind, 1, 1024, 1024, rates.cold_bytes)
        note = f"{pretty(read, 'byte/s')} with one row, from memory"
        found.append((f"engine, {kind}", pretty(rates.flops_per_s(kind), "FLOP/s"), note))
    return found


def _verdict(disturbance: float) -> str:
    """Return what the disturbance of a calibration means, in words."""
    if disturbance < 0.1:
        return "quiet, the figures can be trusted"
    if disturbance < 0.25:
        return "some other work was going on"
    return "the machine was busy: run again when it is quiet"
