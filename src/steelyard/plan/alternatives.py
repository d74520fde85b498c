"""Why a plan is as it is: the alternatives that lost, and what keeps it from being faster."""

import numpy as np

from steelyard.plan.layouts import LayoutSearch
from steelyard.plan.types import Rejected
from steelyard.units import pretty

__all__ = ["binding_constraint", "nearest_fit", "rejected"]


def rejected(
    search: LayoutSearch, chosen: int, best: dict[int, int], tokens: float, deadline_s: float
) -> list[Rejected]:
    """List the alternatives worth knowing, each with the reason it lost.

    These are a faster layout that does not fit, other splits of the same number of accelerators,
    and other numbers.

    Args:
        search: all candidates.
        chosen: index of the plan's candidate.
        best: index of the best candidate by number of accelerators.
        tokens: training tokens of the run.
        deadline_s: longest acceptable run.

    Returns:
        At most 14.
    """
    same = search.num_accelerators == search.num_accelerators[chosen]
    rate = search.tokens_per_s
    found: list[Rejected] = []

    def add(index: int, reason: str) -> None:
        found.append(Rejected(choice=search.choice(index), reason=reason))

    bigger = search.best(~search.fits & same & (rate > rate[chosen]))
    if bigger >= 0:
        memory = (
            f"{pretty(float(search.memory_bytes[bigger]), 'byte')} of "
            f"{pretty(search.limit_bytes, 'byte')}"
        )
        gain = f"{100 * (rate[bigger] / rate[chosen] - 1):.0f} % faster"
        add(bigger, f"{gain}, but needs {memory} per accelerator{_nearest_words(search, bigger)}")
    for name in _AXES:
        column = search.column(name)
        other = search.best(search.fits & same & (column != column[chosen]))
        if other >= 0:
            loss = 100 * (1 - rate[other] / rate[chosen])
            add(other, f"best with another {name}: {loss:.1f} % slower")
    per_accelerator = float(rate[chosen] / search.num_accelerators[chosen])
    for count in sorted(best, reverse=True):
        if count == search.num_accelerators[chosen]:
            continue
        speed = float(rate[best[count]])
        share = speed / count / per_accelerator
        duration = tokens / speed
        late = ", past the deadline" if duration > deadline_s else ""
        noun = "accelerator takes" if count == 1 else "accelerators take"
        took = f"{count} {noun} {pretty(duration, 's')}{late}"
        add(best[count], f"{took} at {100 * share:.0f} % of the efficiency")
    return found[:_MOST]


_MOST = 14
_AXES = (
    "tensor",
    "pipeline",
    "context",
    "expert",
    "virtual_stages",
    "schedule",
    "zero_stage",
    "recompute",
    "micro_batch",
    "offload_optimizer",
)
"""Axes whose best other value is told."""
_KNOBS = {
    "micro_batch": ("micro_batch", "accumulation"),
    "zero_stage": ("zero_stage",),
    "recompute": ("recompute",),
    "tensor and data": ("tensor", "data", "accumulation"),
    "pipeline and data": ("pipeline", "data", "accumulation"),
    "context and data": ("context", "data", "accumulation"),
    "expert": ("expert",),
    "virtual_stages": ("virtual_stages",),
    "schedule": ("schedule",),
    "offload_optimizer": ("offload_optimizer",),
    "offload_activations": ("offload_activations",),
}
"""Fields that change together when one thing of a layout does."""


def nearest_fit(search: LayoutSearch, index: int) -> tuple[str, int]:
    """Find the layout that differs in one thing from one that does not fit, and fits.

    Args:
        search: all candidates.
        index: the one that does not fit.

    Returns:
        What differs, and the index of the fastest such layout; "" and -1 where there is none.
    """
    same = search.num_accelerators == search.num_accelerators[index]
    fields = {name for group in _KNOBS.values() for name in group}
    # The batch may differ by what does not divide, so that steps are compared where they decide.
    equal = {name: search.column(name) == search.column(name)[index] for name in fields}
    found = []
    for name, group in _KNOBS.items():
        fixed = [equal[item] for item in fields - {*group, "accumulation"}]
        other = search.best(search.fits & same & np.all(fixed, axis=0))
        if other >= 0:
            found.append((float(search.tokens_per_s[other]), name, other))
    return max(found)[1:] if found else ("", -1)


def _nearest_words(search: LayoutSearch, index: int) -> str:
    """Say with which single change a layout would fit, and what that costs."""
    name, other = nearest_fit(search, index)
    if other < 0:
        return ""
    choice = search.choice(other)
    values = " x ".join(str(choice[item]) for item in _KNOBS[name] if item != "accumulation")
    lost = 100 * (1 - float(search.tokens_per_s[other] / search.tokens_per_s[index]))
    return f"; it fits with {name.replace('_', ' ')} {values}, {lost:.1f} % slower"


def binding_constraint(search: LayoutSearch, chosen: int, best: dict[int, int]) -> str:
    """Return what keeps the plan from being faster.

    Args:
        search: all candidates.
        chosen: index of the plan's candidate.
        best: index of the best candidate by number of accelerators.

    Returns:
        A few words.
    """
    same = search.num_accelerators == search.num_accelerators[chosen]
    free = search.best(same)  # whether it fits or not
    count = int(search.num_accelerators[chosen])
    # The cost model does not tell layouts apart by less than about 2 %.
    if search.tokens_per_s[free] > 1.02 * search.tokens_per_s[chosen]:
        return "memory: a layout that does not fit would be faster"
    if count < max(search.num_accelerators):
        return "efficiency: more accelerators would finish sooner but idle more"
    parts = {
        "compute": search.cost.compute_s,
        "tensor-parallel links": search.cost.tensor_s,
        "context-parallel links": search.cost.context_s,
        "experts' links": search.cost.expert_s,
        "pipeline bubble": search.cost.bubble_s,
        "data-parallel network": search.cost.data_s,
        "links to host memory": search.cost.host_s,
    }
    largest = max(parts, key=lambda name: float(parts[name][chosen]))
    return f"{largest}: all {count} accelerators are in use" if max(best) == count else largest
