"""What a plan stands on: each assumption worse by itself, and what that costs in goodput."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from steelyard.plan.service.arrangement import FleetInstance
from steelyard.plan.service.expected import paced
from steelyard.plan.service.goodput import goodput
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.search import ServiceSearch

__all__ = ["Assumption", "weakest_assumptions"]

_LONGER = 1.25
_BURSTIER = 2.0
_SLOWER = 1.2
_SHARING_KEPT = 0.5
_SEED = 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """An assumption that turned out worse.

    Attributes:
        words: what is worse, such as "prompts 25% longer".
        goodput_per_s: requests per second that an instance then carries.
        lost: share of the planned goodput that is lost; below 0 where there is more.
    """

    words: str
    goodput_per_s: float
    lost: float


def weakest_assumptions(
    search: ServiceSearch, arrangement: FleetInstance, planned_per_s: float
) -> list[Assumption]:
    """Simulate an arrangement again with one assumption worse at a time.

    Args:
        search: search that found it, with its load and limits.
        arrangement: the instance.
        planned_per_s: goodput that was planned, above 0.

    Returns:
        The assumptions, that which costs most first.
    """
    found = []
    worst = _WORSE | (_SHARING if search.load.block_ids else {})
    for words, worse in worst.items():
        search.progress(words)
        changed, load = worse(arrangement, search.load)
        carried = goodput(changed.groups, load, search.slo, search.share).rate_per_s
        found.append(
            Assumption(words=words, goodput_per_s=carried, lost=1 - carried / planned_per_s)
        )
    return sorted(found, key=lambda item: -item.lost)


_Pair = tuple[FleetInstance, ServiceLoad]


def _room(arrangement: FleetInstance) -> int:
    """Return the tokens of the longest request that every micro-batch holds."""
    return min(group.blocks * group.block_size for group in arrangement.groups)


def _longer_prompts(arrangement: FleetInstance, load: ServiceLoad) -> _Pair:
    """Return longer prompts; what no micro-batch could hold is cut, as a server would refuse it."""
    return arrangement, load.with_prompts(_LONGER, most=_room(arrangement))


def _longer_outputs(arrangement: FleetInstance, load: ServiceLoad) -> _Pair:
    """Return longer outputs, cut in the same way."""
    longer = np.rint(load.output_tokens * _LONGER).astype(np.int64)
    room = np.maximum(_room(arrangement) - load.input_tokens, 1)
    return arrangement, replace(load, output_tokens=np.clip(longer, 1, room))


def _burstier(arrangement: FleetInstance, load: ServiceLoad) -> _Pair:
    """Return gaps that vary more; the same draw for every arrangement."""
    generator = np.random.default_rng(_SEED)
    return arrangement, load.with_variation(_BURSTIER * load.variation, generator)


def _slower(arrangement: FleetInstance, load: ServiceLoad) -> _Pair:
    """Return chips that take longer for every step."""
    return replace(arrangement, groups=paced(arrangement.groups, _SLOWER)), load


def _less_shared(arrangement: FleetInstance, load: ServiceLoad) -> _Pair:
    """Return prompts of which only some share what they did."""
    return arrangement, load.less_shared(_SHARING_KEPT, np.random.default_rng(_SEED))


_SHARING: dict[str, Callable[[FleetInstance, ServiceLoad], _Pair]] = {
    f"{1 - _SHARING_KEPT:.0%} of the prompts share no prefix": _less_shared
}
_WORSE: dict[str, Callable[[FleetInstance, ServiceLoad], _Pair]] = {
    f"prompts {_LONGER - 1:.0%} longer": _longer_prompts,
    f"outputs {_LONGER - 1:.0%} longer": _longer_outputs,
    f"gaps between arrivals vary {_BURSTIER:g} times as much": _burstier,
    f"steps take {_SLOWER - 1:.0%} longer": _slower,
}
