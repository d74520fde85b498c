"""Joules of this machine while it trains, from counters of the processor and of a GPU."""

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["EnergyMeter"]

_POWERCAP = Path("/sys/class/powercap")
_READ_EVERY_S = 30.0
"""Time between two readings: a package's counter runs over after some minutes at full power."""

_Counter = Callable[[], float]


class EnergyMeter:
    """Adds up energy since its making; reads nothing where there is nothing to read.

    The counters are those of whole processor packages and their memory (Linux powercap, RAPL) and
    of the GPU in use (NVML): whatever else runs there counts too; power supplies, disks and fans do
    not.
    """

    def __init__(self, device: str, *, powercap: Path = _POWERCAP) -> None:
        """Find the counters that may be read.

        Args:
            device: torch device the run uses.
            powercap: folder where Linux shows the processor's counters.
        """
        self._counters = _zones(powercap) + _gpu(device)
        self._last = [counter() for counter, _ in self._counters]
        self._joules = 0.0
        self._next_s = time.monotonic() + _READ_EVERY_S

    @property
    def is_readable(self) -> bool:
        """Whether there is a counter."""
        return bool(self._counters)

    def tick(self) -> None:
        """Read the counters when it is due; call it at every step."""
        if self._counters and time.monotonic() > self._next_s:
            self.joules()

    def joules(self) -> float | None:
        """Return the joules since the making, None where no counter may be read."""
        if not self._counters:
            return None
        self._next_s = time.monotonic() + _READ_EVERY_S
        for place, (counter, limit) in enumerate(self._counters):
            now = counter()
            # A counter that ran over began again at 0.
            self._joules += now - self._last[place] + (limit if now < self._last[place] else 0.0)
            self._last[place] = now
        return self._joules


def _zones(powercap: Path) -> list[tuple[_Counter, float]]:
    """Return the counters of packages and of their memory, joules, and where they run over."""
    found: list[tuple[_Counter, float]] = []
    for zone in sorted(powercap.glob("intel-rapl*:*")):
        with suppress(OSError, ValueError):
            name = (zone / "name").read_text().strip()
            # Cores and graphics are parts of their package; "psys" holds all packages once more.
            if not name.startswith(("package", "dram")):
                continue
            limit = float((zone / "max_energy_range_uj").read_text()) / 1e6
            place = zone / "energy_uj"
            float(place.read_text())  # of the administrator alone on most systems
            found.append((lambda place=place: float(place.read_text()) / 1e6, limit))
    return found


def _gpu(device: str) -> list[tuple[_Counter, float]]:
    """Return the counter of a CUDA device, none where its driver has none."""
    if not device.startswith("cuda"):
        return []
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
        index = int(device.partition(":")[2] or 0)
        read = library.nvmlDeviceGetTotalEnergyConsumption
        is_there = (
            library.nvmlInit_v2() == 0
            and library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
            and read(handle, ctypes.byref(millijoules)) == 0
        )

        def joules() -> float:
            read(handle, ctypes.byref(millijoules))
            return millijoules.value / 1e3

        if is_there:
            return [(joules, 0.0)]
    return []
