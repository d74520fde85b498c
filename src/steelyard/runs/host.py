"""Who runs: this machine, the versions in use, and whether the process of a run is still alive."""

import functools
import importlib.metadata
import os
import platform
import socket
import subprocess
from pathlib import Path

from steelyard import __version__

__all__ = ["describe_machine", "package_versions", "process_alive", "process_started"]

_PACKAGES = ("torch", "numpy", "numba", "scipy", "polars", "tokenizers", "safetensors", "ray")


@functools.cache
def package_versions() -> dict[str, str]:
    """Return the versions of Python, Steelyard and the installed packages that shape results."""
    versions = {"python": platform.python_version(), "steelyard": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _processor() -> str:
    """Name the processor as the system does, or the architecture where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@functools.cache
def describe_machine() -> dict[str, str | int]:
    """Describe this machine: host, system, processor, usable cores, bytes of memory.

    The memory is 0 where the system does not say.
    """
    # A container or a job scheduler may leave a process fewer cores than the machine has.
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in names else 0
    )
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": cores,
        "memory_bytes": memory,
    }


def process_started(pid: int) -> str:
    """Return a mark of when a process started.

    A later process of the same number does not share it.

    Args:
        pid: process number on this machine.

    Returns:
        The mark; empty when no such process runs (one that ended but was not reaped counts as not
        running).
    """
    if Path("/proc/self/stat").exists():
        try:
            line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        # The second field is the program's name in parentheses, which may hold blanks and
        # parentheses itself: fields are counted from the last one.
        fields = line.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):
            return ""
        # Start times count from boot, so the boot's own mark belongs to them.
        boot = Path("/proc/sys/kernel/random/boot_id")
        return f"{boot.read_text(encoding='ascii').strip() if boot.exists() else ''}:{fields[19]}"
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


def process_alive(host: str, pid: int, started: str) -> bool:
    """Say whether the process that wrote a run still lives.

    True for another host, of which nothing is known.

    Args:
        host: name of the machine the process ran on.
        pid: number of the process on that machine.
        started: mark that `process_started` returned.

    Returns:
        False only when this host knows the process to be gone.
    """
    return host != socket.gethostname() or (bool(started) and process_started(pid) == started)
