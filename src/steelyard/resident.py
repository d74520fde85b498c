"""Resident memory of this process, now and at its peak, as the kernel counts it."""

import contextlib
import sys
from pathlib import Path

__all__ = [
    "anonymous_bytes",
    "anonymous_peak_bytes",
    "peak_resident_bytes",
    "reset_peak",
    "resident_bytes",
]

_STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int:
    """Return the most memory this process held at once, libraries and mapped files included."""
    return _fields().get("VmHWM") or _peak_rss_portable()


def resident_bytes() -> int:
    """Return the bytes in memory now, mapped files included, or the peak where only it is known."""
    return _fields().get("VmRSS") or _peak_rss_portable()


def reset_peak() -> None:
    """Let the kernel count the peak anew; nothing happens where it cannot."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def anonymous_bytes() -> int:
    """Return the anonymous resident bytes of this process, or its peak where only that is known."""
    return _fields().get("RssAnon") or _peak_rss_portable()


def anonymous_peak_bytes() -> int:
    """Return the peak of anonymous resident bytes since the last reset."""
    # The kernel keeps a high-water mark of all pages only. The file pages of now are taken off:
    # they may have been fewer at the peak, so the peak is never overstated by them.
    fields = _fields()
    if "VmHWM" not in fields:
        return _peak_rss_portable()
    return fields["VmHWM"] - fields.get("RssFile", 0) - fields.get("RssShmem", 0)


def _fields() -> dict[str, int]:
    """Read the memory lines of /proc/self/status, in bytes; empty where there are none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(text.split()[0]) * 1024 for name, text in pairs}


def _peak_rss_portable() -> int:
    """Return the peak resident bytes of the process since it began, for other systems."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
