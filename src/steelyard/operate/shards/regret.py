"""What a simulated store is compared with: the best fixed placement, and one that knows all."""

import heapq

import numpy as np

from steelyard.operate.shards.simulate import LoadTrace

__all__ = ["best_fixed_loads", "oracle_above_s"]


def best_fixed_loads(trace: LoadTrace, *, nodes: int, replicas: int) -> np.ndarray:
    """Return loads under the best placement of grains that never changes.

    Mean loads of the whole trace are known to it, and its copies are placed heaviest first on the
    emptiest nodes. What a dead node held is answered by the other copies.

    Args:
        trace: what is asked, and what fails; nodes that join are not used.
        nodes: nodes.
        replicas: copies of each grain.

    Returns:
        Accesses per second by window and node, [T, N].

    Source: Graham 1969 (longest processing time first).
    """
    mean = trace.rates.mean(axis=0)
    copies = min(replicas, nodes)
    free = [(0.0, number) for number in range(nodes)]
    holders = np.empty((len(mean), copies), np.int64)
    for grain in np.argsort(-mean).tolist():
        # Taken off the heap together: two copies of a grain lie on different nodes.
        taken = [heapq.heappop(free) for _ in range(copies)]
        holders[grain] = [number for _, number in taken]
        for load, number in taken:
            heapq.heappush(free, (load + mean[grain] / copies, number))
    loads = np.zeros((len(trace.rates), nodes))
    for window, rates in enumerate(trace.rates):
        is_up = _is_up(trace, window, nodes)[holders]
        part = rates / np.maximum(is_up.sum(axis=1), 1)
        np.add.at(loads[window], holders, part[:, None] * is_up)
    return loads


def _is_up(trace: LoadTrace, window: int, nodes: int) -> np.ndarray:
    """Return which nodes live at the end of a window, [N]."""
    end_s = (window + 1) * trace.window_s
    found = np.ones(nodes, bool)
    for fault in sorted(trace.faults):
        number = int(fault.target[1:])
        if fault.time_s < end_s and number < nodes and fault.kind in ("kill", "restart"):
            found[number] = fault.kind == "restart"
    return found


def oracle_above_s(trace: LoadTrace, *, nodes: int, copies: int, limit: float) -> float:
    """Return the seconds above capacity that are left where the load is spread as evenly as can be.

    It knows every window in advance and moves for nothing, so that all nodes carry the same unless
    a single grain, on as many nodes as may copy it, is more than that.

    Args:
        trace: what is asked.
        nodes: nodes.
        copies: most copies of a grain.
        limit: accesses per second that a node can answer.

    Returns:
        Seconds, summed over nodes.
    """
    mean = trace.rates.sum(axis=1) / nodes
    heavy = np.minimum((trace.rates / copies > limit).sum(axis=1) * copies, nodes)
    return float(np.where(mean > limit, nodes, heavy).sum()) * trace.window_s
