"""The plan for the user's budget: which law carries that far, and what the budget buys there."""

from collections.abc import Sequence

from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.laws import Allocation, Fit, allocate, published
from steelyard.plan import Plan, plan_training
from steelyard.weigh.forecast import RungPoint

__all__ = ["MAX_EXTRAPOLATION", "allocation_for", "plan_budget"]

MAX_EXTRAPOLATION = 100.0
"""How many times the largest run's FLOPs the ladder's own law is trusted to carry: two decades."""
_PUBLISHED = "besiroglu2024"


def allocation_for(law: Fit, points: Sequence[RungPoint], flops: float) -> Allocation:
    """Split a budget between size and tokens.

    The ladder's own law speaks near the ladder, a published one far beyond it.

    Args:
        law: law fitted to the ladder.
        points: the ladder's runs.
        flops: budget, floating-point operations.

    Returns:
        The allocation; its `provenance` and `source` say which law spoke.
    """
    largest = max(6.0 * point.parameters * point.tokens for point in points)
    # A few runs leave the exponents uncertain, and what an exponent is wrong by grows with every
    # decade beyond the ladder.
    is_near = flops <= MAX_EXTRAPOLATION * largest
    return allocate(law if is_near else published[_PUBLISHED].fit(), flops)


def plan_budget(
    law: Fit, points: Sequence[RungPoint], flops: float, *, where: tuple[Cluster, Accelerator, Site]
) -> Plan:
    """Plan the compute-optimal run of a budget on a cluster.

    Args:
        law: law fitted to the ladder.
        points: the ladder's runs.
        flops: budget, floating-point operations.
        where: cluster, its accelerator, and the site that sells it power.

    Returns:
        The plan.

    Raises:
        InfeasibleError: memory, batch or time rules every layout out.
    """
    cluster, accelerator, site = where
    return plan_training(
        allocation_for(law, points, flops), cluster=cluster, accelerator=accelerator, site=site
    )
