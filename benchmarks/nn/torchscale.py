"""Switches of one transformer: norm schemes, positions, experts, retention; beside torchscale.

Every rival of a check sees the same batches from the same seeds. The peer is optional: `python -m
benchmarks peers install torchscale`.
"""

from benchmarks.common import Check
from benchmarks.nn._depth import depth_checks
from benchmarks.nn._dispatch_cost import cost_checks, parity_checks
from benchmarks.nn._expert_runs import clip_checks, expert_checks, sinkhorn_checks
from benchmarks.nn._lengths import length_checks
from benchmarks.nn._torchscale_race import peer_checks

PAPER = ["46-torchscale", "70-routed-lm-scaling"]


def run(quick: bool) -> list[Check]:
    """Run the checks in the order of their numbers."""
    return [
        *depth_checks(quick),
        *length_checks(quick),
        *expert_checks(quick),
        *clip_checks(quick),
        *parity_checks(),
        *peer_checks(quick),
        *cost_checks(quick),
        # Few steps leave a router as it was drawn.
        *([] if quick else sinkhorn_checks()),
    ]
