"""Why a plan is as it is: the alternatives that lost, and what keeps it from being faster."""

from steelyard.plan.layouts import LayoutSearch
from steelyard.plan.types import Rejected
from steelyard.units import pretty

__all__ = ["binding_constraint", "rejected"]


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
        At most ten.
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
        add(bigger, f"{gain}, but needs {memory} per accelerator")
    for name in ("tensor", "pipeline", "zero_stage", "recompute", "micro_batch"):
        column = getattr(search, name)
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
        took = f"{count} accelerators take {pretty(duration, 's')}{late}"
        add(best[count], f"{took} at {100 * share:.0f} % of the efficiency")
    return found[:10]


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
        "pipeline bubble": search.cost.bubble_s,
        "data-parallel network": search.cost.data_s,
    }
    largest = max(parts, key=lambda name: float(parts[name][chosen]))
    return f"{largest}: all {count} accelerators are in use" if max(best) == count else largest
