"""What a result was measured on: processor, memory, system and versions."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["machine", "processor_class", "versions"]

_PACKAGES = ("steelyard", "torch", "numpy", "scipy", "numba", "polars", "sqlalchemy", "tokenizers")


def _processor() -> str:
    """Name the processor as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def processor_class() -> str:
    """Name the widest instructions of products: "avx512bf16", "avx512", "avx2" or "other"."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(errors="replace").split()) if info.is_file() else set()
    for name, needed in (
        ("avx512bf16", {"avx512_bf16", "avx512_vnni"}),
        ("avx512", {"avx512_vnni"}),
        ("avx2", {"avx2"}),
    ):
        if needed <= flags:
            return name
    return "other"


def machine() -> dict[str, Any]:
    """Describe this machine: processor, usable cores, memory in bytes, system, Python."""
    pages = (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_bytes": pages,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that decide a result."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
