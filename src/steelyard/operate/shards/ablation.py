"""The parts of the policy, switched on one after the other over one trace."""

from dataclasses import replace

import numpy as np

from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.regret import best_fixed_loads, oracle_above_s
from steelyard.operate.shards.simulate import LoadTrace, simulate

__all__ = ["ablate"]

_BASE = Adaptive(
    ping_s=1.0,
    lease_s=4.0,
    temporal=False,
    replicate=False,
    regenerate=False,
    predict=False,
    balance=False,
)


def ablate(
    trace: LoadTrace, *, nodes: int, base: Adaptive | None = None
) -> dict[str, dict[str, float]]:
    """Simulate static placement, then one more part of the policy at a time.

    Args:
        trace: what is asked, and what fails.
        nodes: nodes at the start.
        base: numbers of the policy; its switches are set here.

    Returns:
        Rows by what was added last: imbalance (99th percentile and mean of the highest load over
        the mean), seconds above capacity, how many more these are than those of an oracle that
        moves for nothing, and than those of the best placement that never changes; mean seconds of
        a repair, bytes moved, replicated and coded, over those of the data, and the share of
        accesses that failed. All simulated.
    """
    policy = base or _BASE
    steps = (
        ("static", {}),
        ("+ balance", {"balance": True}),
        ("+ regenerate", {"regenerate": True}),
        ("+ temporal", {"temporal": True}),
        ("+ replicate", {"replicate": True}),
        ("+ predict", {"predict": True}),
    )
    data_bytes = trace.rates.shape[1] * trace.grain_bytes
    # One limit for all rows: a part that fails accesses must not have a lower one.
    limit = 2 * float(trace.rates.sum(axis=1).mean()) / nodes
    oracle_s = oracle_above_s(trace, nodes=nodes, copies=policy.most_replicas, limit=limit)
    fixed = best_fixed_loads(trace, nodes=nodes, replicas=policy.replicas)
    fixed_s = float((fixed > limit).sum()) * trace.window_s
    rows = {}
    for name, change in steps:
        policy = replace(policy, **change)
        run = simulate(trace, nodes=nodes, policy=policy, capacity=limit)
        rows[name] = {
            "imbalance p99": float(np.quantile(run.imbalance, 0.99)),
            "imbalance mean": float(run.imbalance.mean()),
            "above capacity, s": run.above_capacity_s,
            "over oracle, s": run.above_capacity_s - oracle_s,
            "over best fixed, s": run.above_capacity_s - fixed_s,
            "repair, s": float(np.mean(run.repair_s)) if run.repair_s else 0.0,
            "moved": run.moved_bytes / data_bytes,
            "memory": run.memory_bytes / data_bytes,
            "disk": run.disk_bytes / data_bytes,
            "failed": run.failed_share,
        }
    return rows
