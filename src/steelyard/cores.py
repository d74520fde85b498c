"""How much of a core this process gets now, beside what else runs."""

import time

__all__ = ["core_share"]

_PROBE_S = 0.1
_LEAST = 0.02


def core_share(probe_s: float = _PROBE_S) -> float:
    """Return the share of a core that work in one thread gets, by working for a moment.

    Args:
        probe_s: wall time of the probe, seconds. Shorter ones fall into one turn of the scheduler.

    Returns:
        Processor seconds a second, .02 to 1; near 1 on a machine that is idle.
    """
    began_s, used_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began_s < probe_s:
        pass
    share = (time.thread_time() - used_s) / (time.perf_counter() - began_s)
    return min(max(share, _LEAST), 1.0)
