"""Peak memory of a training run, measured.

On Linux the kernel keeps the high-water mark of a process's resident memory (`VmHWM`) and resets it on request
(`5` into `/proc/self/clear_refs`), so no peak between two samples is missed. File pages (libraries, memory-mapped shards) are not the
run's memory and are taken out: peak = (high-water mark - file pages at the end) - anonymous pages at the start. Memory that the C
library keeps though nothing uses it is returned to the system first (`malloc_trim`). On CUDA the allocator's own peak is used.
"""

import contextlib
import ctypes
import gc
import sys
from pathlib import Path

import torch

__all__ = ["PeakMemory"]

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Measures from its making to each call of `peak_bytes`."""

    def __init__(self, device: str) -> None:
        """Take the baseline.

        Args:
            device: torch device the run uses.
        """
        self._cuda = device if device.startswith("cuda") else ""
        gc.collect()
        if self._cuda:
            torch.cuda.synchronize(self._cuda)
            torch.cuda.reset_peak_memory_stats(self._cuda)
            self._baseline = torch.cuda.memory_allocated(self._cuda)
            return
        _trim()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._baseline = _anonymous_now()

    def peak_bytes(self) -> int:
        """Give the largest memory held since the baseline beyond it, in bytes; never negative."""
        if self._cuda:
            return max(0, torch.cuda.max_memory_allocated(self._cuda) - self._baseline)
        return max(0, _anonymous_peak() - self._baseline)


def _fields() -> dict[str, int]:
    """Read the memory lines of /proc/self/status, in bytes; empty where there are none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(text.split()[0]) * 1024 for name, text in pairs}


def _anonymous_now() -> int:
    """Give the anonymous resident bytes of this process, or its peak so far where only that is known."""
    return _fields().get("RssAnon") or _peak_rss_portable()


def _anonymous_peak() -> int:
    """Give the peak of anonymous resident bytes since the last reset."""
    fields = _fields()
    if "VmHWM" not in fields:
        return _peak_rss_portable()
    return fields["VmHWM"] - fields.get("RssFile", 0) - fields.get("RssShmem", 0)


def _peak_rss_portable() -> int:
    """Give the peak resident bytes of the process since it began, where the kernel offers nothing better."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _trim() -> None:
    """Ask the C library to return unused memory; does nothing where it cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
