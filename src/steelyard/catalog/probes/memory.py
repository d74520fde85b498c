"""Bandwidth of memory: streams beyond and inside the caches, random rows, and a GPU's host link."""

import os
from pathlib import Path

import torch

from steelyard.catalog.probes.timing import Clock, Timed, host_clock, repeat

__all__ = [
    "cache_stream",
    "gather",
    "host_copy",
    "last_level_cache_bytes",
    "memory_bytes",
    "stream",
]

_ROW_FLOATS = 64


def memory_bytes(device: str) -> float:
    """Return the memory this process may use: what is installed, or its container's lower limit."""
    if device == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(installed, float(text)) if text.isdigit() else installed


def last_level_cache_bytes(device: str) -> int:
    """Return the size of the last-level cache; 32 MiB where the system does not say."""
    if device == "cuda":
        return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)) or 32 * 2**20
    sizes = [
        path.read_text().strip()
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(
        (
            int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]]
            for size in sizes
            if size[-1:] in "KM"
        ),
        default=32 * 2**20,
    )


def _triad(size_bytes: float, device: str, clock: Clock, repeats: int, most_s: float) -> Timed:
    """Time c = a + 2b over arrays of `size_bytes` together: two are read and one is written."""
    floats = int(size_bytes // 12)
    # Every page is written before the timing: a page that was never touched is not in memory yet.
    first, second, out = (torch.ones(floats, device=device) for _ in range(3))
    samples = repeat(
        lambda: torch.add(first, second, alpha=2.0, out=out),
        clock,
        repeats=repeats,
        most_s=most_s,
    )
    return samples, 12.0 * floats


def stream(*, device: str, quick: bool, clock: Clock) -> Timed:
    """Time a triad over arrays that together are at least four times the last-level cache.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls.

    Returns:
        Samples, and the bytes read plus written by one pass.

    Source: McCalpin 1995 (STREAM).
    """
    size = _beyond_caches(device, 192 * 2**20)
    return _triad(size, device, clock, 7 if quick else 15, 0.6 if quick else 2.0)


def _beyond_caches(device: str, least_bytes: float) -> float:
    """Return the size of a table that no cache holds and that leaves the memory to others."""
    return min(max(4 * last_level_cache_bytes(device), least_bytes), memory_bytes(device) / 8)


def cache_stream(*, device: str, quick: bool, clock: Clock) -> Timed:
    """Time a triad over arrays that together fill an eighth of the last-level cache.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls.

    Returns:
        Samples, and the bytes read plus written by one pass.
    """
    size = last_level_cache_bytes(device) // 8
    return _triad(size, device, clock, 9 if quick else 21, 0.3 if quick else 1.0)


def gather(*, device: str, quick: bool, clock: Clock, seed: int = 0) -> Timed:
    """Time the gather of random 256-byte rows from a table beyond the caches.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        clock: times a number of calls.
        seed: seed of the row numbers.

    Returns:
        Samples, and the bytes of the rows gathered by one pass.
    """
    rows = int(_beyond_caches(device, 128 * 2**20) // (4 * _ROW_FLOATS))
    table = torch.ones(rows, _ROW_FLOATS, device=device)
    picks = torch.randint(rows, (2**16,), generator=torch.Generator().manual_seed(seed)).to(device)
    out = torch.empty(len(picks), _ROW_FLOATS, device=device)
    samples = repeat(
        lambda: torch.index_select(table, 0, picks, out=out),
        clock,
        repeats=7 if quick else 15,
        most_s=0.3 if quick else 1.0,
    )
    return samples, 4.0 * _ROW_FLOATS * len(picks)


def host_copy(*, quick: bool) -> Timed:
    """Time copies from pinned host memory to the GPU.

    Args:
        quick: fewer repetitions.

    Returns:
        Samples, and the bytes of one copy.
    """
    # Pinned pages: others are copied twice, first into a buffer that the GPU may read.
    source = torch.ones(2**24).pin_memory()
    target = torch.empty(2**24, device="cuda")

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return repeat(copy, host_clock, repeats=5 if quick else 15), 4.0 * 2**24
