"""`steelyard calibrate`.

Measure this machine and keep the result as the catalog record this-machine.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.catalog import Calibration


def calibrate(*, quick: bool = False, device: str = "cpu", json: bool = False) -> None:
    """Measure this machine: matrix products, memory, disk, links, dispatch.

    Keep it as the catalog record this-machine.

    Args:
        quick: about 15 s instead of about a minute and a half.
        device: cpu or cuda.
        json: print the stored record as JSON instead of a table.
    """
    from steelyard.catalog.stored import store_calibration

    calibration = _measure(quick, device)
    path = store_calibration(calibration)
    if json:
        import sys

        sys.stdout.write(path.read_text())
        return
    _print(calibration, str(path))


def _measure(quick: bool, device: str) -> "Calibration":
    """Measure with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from steelyard.catalog.calibrate import calibrate as measure

    columns = (TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        return measure(
            quick=quick,
            device=device,
            progress=lambda text, fraction: bar.update(task, description=text, completed=fraction),
        )


def _print(calibration: "Calibration", path: str) -> None:
    """Print the figures, how noisy they are, and where they are kept."""
    from rich.console import Console
    from rich.table import Table

    from steelyard.units import pretty

    table = Table(
        box=None,
        pad_edge=False,
        show_header=False,
        title=f"this-machine  [dim]{calibration.description}[/]",
        title_justify="left",
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for label, text, note in _rows(calibration):
        table.add_row(label, text, note)
    console = Console()
    console.print(table)
    console.print(
        f"noise {pretty(calibration.noise, 'fraction')}: {_verdict(calibration.noise)}",
        highlight=False,
    )
    console.print(
        f"measured in {pretty(calibration.duration_s, 's')}, kept in {path}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


def _rows(calibration: "Calibration") -> list[tuple[str, str, str]]:
    """List label, value and note of every figure."""
    from steelyard.units import pretty

    best = {}
    for point in calibration.matmul:
        if point.dtype not in best or point.flops_per_s > best[point.dtype].flops_per_s:
            best[point.dtype] = point
    rows = [
        (
            f"matrix product, {dtype}",
            pretty(point.flops_per_s, "FLOP/s"),
            f"best, {point.m} x {point.k} by {point.k} x {point.n}",
        )
        for dtype, point in best.items()
    ]
    disk = (
        "page cache bypassed"
        if calibration.disk_direct
        else "page cache not bypassed: reads may come from memory"
    )
    rows += [
        (
            "attention",
            pretty(calibration.attention_flops_per_s, "FLOP/s"),
            "forward and backward, masked pairs not counted",
        ),
        (
            "elementwise",
            pretty(calibration.elementwise_bytes_per_s, "byte/s"),
            "activation and softmax, forward and backward",
        ),
        ("memory", pretty(calibration.memory_bytes, "byte"), ""),
        ("memory stream", pretty(calibration.stream_bytes_per_s, "byte/s"), "beyond the caches"),
        (
            "cache stream",
            pretty(calibration.cache_bytes_per_s, "byte/s"),
            "inside the last-level cache",
        ),
        ("random rows", pretty(calibration.gather_bytes_per_s, "byte/s"), "256 bytes each"),
        (
            "loopback TCP",
            pretty(calibration.link_bytes_per_s, "byte/s"),
            f"{pretty(calibration.link_latency_s, 's')} one way",
        ),
        (
            "shared memory",
            pretty(calibration.shared_bytes_per_s, "byte/s"),
            f"{pretty(calibration.shared_latency_s, 's')} one way over a pipe",
        ),
        ("operation dispatch", pretty(calibration.launch_s, "s"), "one small tensor operation"),
    ]
    if calibration.host_link_bytes_per_s:
        rows.append(
            ("host to device", pretty(calibration.host_link_bytes_per_s, "byte/s"), "pinned memory")
        )
    if not calibration.disk_write_bytes_per_s:
        return [*rows, ("disk", "-", "not measured: no space or no permission")]
    rows.append(("disk read", pretty(calibration.disk_read_bytes_per_s, "byte/s"), disk))
    return [
        *rows,
        (
            "disk write",
            pretty(calibration.disk_write_bytes_per_s, "byte/s"),
            "flushed to the device",
        ),
    ]


def _verdict(noise: float) -> str:
    """Say in words what a noise figure means."""
    if noise < 0.05:
        return "quiet, the figures can be trusted"
    if noise < 0.2:
        return "some other work was going on"
    return "the machine was busy: run again when it is quiet"
