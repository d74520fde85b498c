"""Bandwidth of memory.

Streams beyond and inside the caches, random row gathers, and the host link of a GPU.
"""

import os
from pathlib import Path

from steelyard.catalog.probes.timing import Samples, clock_of, host_clock, repeat

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
    """Return the memory a device lets this process use: installed, or the container's limit when lower."""
    if device == "cuda":
        import torch

        return float(torch.cuda.get_device_properties(0).total_memory)
    installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(installed, float(text)) if text.isdigit() else installed


def last_level_cache_bytes(device: str) -> int:
    """Return the size of the last-level cache; 32 MiB where the system does not say."""
    if device == "cuda":
        import torch

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


def _triad(floats: int, device: str, repeats: int, most_s: float) -> tuple[Samples, float]:
    """Time c = a + 2b over `floats` numbers; bytes are two reads and one write of each."""
    import torch

    first, second = torch.ones(floats, device=device), torch.ones(floats, device=device)
    out = torch.empty(floats, device=device).zero_()
    samples = repeat(
        lambda: torch.add(first, second, alpha=2.0, out=out),
        clock_of(device),
        repeats=repeats,
        most_s=most_s,
    )
    return samples, 12.0 * floats


def stream(*, device: str, quick: bool) -> tuple[Samples, float]:
    """Time a triad over arrays that together are at least four times the last-level cache.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.

    Returns:
        Samples, and the bytes read plus written by one pass.

    Source: McCalpin 1995 (STREAM).
    """
    largest = memory_bytes(device) / 8
    total = min(max(4 * last_level_cache_bytes(device), 192 * 2**20), largest)
    return _triad(int(total // 12), device, 7 if quick else 15, 0.6 if quick else 2.0)


def cache_stream(*, device: str, quick: bool) -> tuple[Samples, float]:
    """Time a triad over arrays that together fill an eighth of the last-level cache.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.

    Returns:
        Samples, and the bytes read plus written by one pass.
    """
    return _triad(
        last_level_cache_bytes(device) // 8 // 12, device, 9 if quick else 21, 0.3 if quick else 1.0
    )


def gather(*, device: str, quick: bool, seed: int = 0) -> tuple[Samples, float]:
    """Time the gather of random 256-byte rows from a table beyond the caches.

    Args:
        device: "cpu" or "cuda".
        quick: fewer repetitions.
        seed: of the row numbers.

    Returns:
        Samples, and the bytes of the rows gathered by one pass.
    """
    import torch

    size = min(max(4 * last_level_cache_bytes(device), 128 * 2**20), memory_bytes(device) / 8)
    rows = int(size // (4 * _ROW_FLOATS))
    table = torch.ones(rows, _ROW_FLOATS, device=device)
    picks = torch.randint(rows, (2**16,), generator=torch.Generator().manual_seed(seed)).to(device)
    out = torch.empty(len(picks), _ROW_FLOATS, device=device)
    call = lambda: torch.index_select(table, 0, picks, out=out)  # noqa: E731
    samples = repeat(
        call, clock_of(device), repeats=7 if quick else 15, most_s=0.3 if quick else 1.0
    )
    return samples, 4.0 * _ROW_FLOATS * len(picks)


def host_copy(*, quick: bool) -> tuple[Samples, float]:
    """Time copies from pinned host memory to the GPU.

    Args:
        quick: fewer repetitions.

    Returns:
        Samples, and the bytes of one copy.
    """
    import torch

    source = torch.ones(2**24).pin_memory()
    target = torch.empty(2**24, device="cuda")

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return repeat(copy, host_clock, repeats=5 if quick else 15), 4.0 * 2**24
