"""How much of the processors others took: what a measurement of time was disturbed by.

Linux keeps the counters; elsewhere nothing is known, and every share is 0.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Contention", "LoadMeter", "other_work"]

_BUSY_THREAD = 0.2
"""A thread that wanted a processor for less than this share of the time has no say: an idle helper
that waits once for its turn would otherwise look starved."""

_BUSY_FIELDS = (0, 1, 2, 5, 6)
"""Of a processor's line in /proc/stat: user, nice, system, interrupts, soft interrupts."""
_STEAL_FIELD = 7
_NANOSECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Contention:
    """What other work did to this process between two moments.

    Attributes:
        lost: share of the time in which its most disturbed busy thread had no processor though it
            wanted one, and of the time the hypervisor took; 0 to 1. Threads that meet after each
            product all wait for the slowest, so the worst one counts and not the mean.
        others: processors that other processes kept busy, mean over the time.
        wall_s: length of the time, seconds.
    """

    lost: float
    others: float
    wall_s: float


class LoadMeter:
    """Counts from when it is made; `read` tells what happened since."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Take the counters' present state.

        Args:
            proc: folder of the kernel's counters.
        """
        self._proc = proc
        self._begin = self._counters()

    def read(self) -> Contention:
        """Return what happened since the meter was made; may be called again and again."""
        now = self._counters()
        wall_s = max(now.wall_s - self._begin.wall_s, 1e-9)
        busy_s = now.busy_s - self._begin.busy_s
        stolen_s = now.stolen_s - self._begin.stolen_s
        own_s = now.own_s - self._begin.own_s
        waited = 0.0
        for thread, (ran_s, waited_s) in now.threads.items():
            before_s = self._begin.threads.get(thread, (0.0, 0.0))
            ran_s, waited_s = ran_s - before_s[0], waited_s - before_s[1]
            if ran_s + waited_s > _BUSY_THREAD * wall_s:
                waited = max(waited, waited_s / (ran_s + waited_s))
        stolen = stolen_s / max(busy_s + stolen_s, 1e-9)
        return Contention(
            lost=min(max(waited + stolen, 0.0), 1.0),
            # Clock ticks are coarse: over a short time the difference may fall below 0.
            others=max(busy_s - own_s, 0.0) / wall_s,
            wall_s=wall_s,
        )

    def _counters(self) -> "_Counters":
        """Read every counter at one moment."""
        busy_s, stolen_s = _processor_times_s(self._proc / "stat")
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return _Counters(
            wall_s=time.perf_counter(),
            busy_s=busy_s,
            stolen_s=stolen_s,
            # Without the machine's counters, own time would make the difference negative.
            own_s=own_s if busy_s else 0.0,
            threads=_thread_times_s(self._proc / "self" / "task"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Counters:
    """The counters at one moment; `threads` holds (ran, waited for a processor) by id, seconds."""

    wall_s: float
    busy_s: float
    stolen_s: float
    own_s: float
    threads: dict[str, tuple[float, float]]


def other_work(seconds: float = 0.25) -> float:
    """Watch for a moment how many processors others keep busy; this process rests meanwhile.

    Args:
        seconds: how long to watch.

    Returns:
        Processors, 0 for an idle machine or one that does not say.
    """
    meter = LoadMeter()
    time.sleep(seconds)
    return meter.read().others


def _processor_times_s(path: Path) -> tuple[float, float]:
    """Return busy and stolen seconds of the processors this process may use; 0 where unknown."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    busy = stolen = 0.0
    for line in lines:
        name, _, rest = line.partition(" ")
        # The first line, "cpu", is the sum of all.
        if not name.startswith("cpu") or not name[3:].isdigit():
            continue
        if allowed is not None and int(name[3:]) not in allowed:
            continue
        ticks = [int(field) for field in rest.split()]
        busy += sum(ticks[index] for index in _BUSY_FIELDS)
        # Old kernels have fewer columns.
        stolen += ticks[_STEAL_FIELD] if len(ticks) > _STEAL_FIELD else 0
    return busy * tick_s, stolen * tick_s


def _thread_times_s(folder: Path) -> dict[str, tuple[float, float]]:
    """Return seconds run and seconds waited for a processor of each thread; empty where unknown."""
    found = {}
    try:
        threads = list(folder.iterdir())
    except OSError:
        return found
    for thread in threads:
        try:
            ran, waited, *_ = (thread / "schedstat").read_text().split()
        except (OSError, ValueError):
            # A thread may end between the listing and the reading; some kernels keep no such file.
            continue
        found[thread.name] = (int(ran) * _NANOSECONDS, int(waited) * _NANOSECONDS)
    return found
