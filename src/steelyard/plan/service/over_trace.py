"""Fleets that stay and fleets that follow the load, over the whole of a trace: hours and money."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from steelyard.errors import CapacityError, InfeasibleError
from steelyard.plan.service.case import ServiceCase
from steelyard.plan.service.daily import DailyChoice, DailyService
from steelyard.plan.service.search import ServiceCandidate
from steelyard.serve.traces import TraceRow, rate_of

__all__ = ["TraceFleet", "fleets_over_trace", "is_long_enough"]

_LEAST_SPAN_S = 1200.0
_START_UPS = 5.0
"""A trace shows what following it gives when it spans so many starts of an instance."""
_MOST_ROWS = 200_000
"""Requests that are simulated some twenty times for each arrangement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceFleet:
    """A fleet over a trace.

    Attributes:
        kind: which phases share machines.
        words: how an instance is split.
        fleet: "as planned", "fewest all the time" or "autoscaled".
        most: most instances at once.
        target: share of its goodput up to which an instance is filled; 1 where none comes or goes.
        accelerator_hours: hours of all accelerators over the trace.
        usd: their price; 0 where it is not known.
        attainment: share of the requests that kept both limits.
        per_accelerator: goodput of an instance over its accelerators, requests per second.
        reason: why it is not the best; empty for the best.
    """

    kind: str
    words: str
    fleet: str
    most: int
    target: float
    accelerator_hours: float
    usd: float
    attainment: float
    per_accelerator: float
    reason: str = ""


def is_long_enough(span_s: float, start_up_s: float) -> bool:
    """Return whether a trace spans enough to show what following its load gives."""
    return span_s >= max(_LEAST_SPAN_S, _START_UPS * start_up_s)


def fleets_over_trace(
    case: ServiceCase,
    found: Sequence[ServiceCandidate],
    instances: int,
    rows: Sequence[TraceRow],
    *,
    rate_per_s: float,
    start_up_s: float,
) -> list[TraceFleet]:
    """Serve a trace with the plan, the fewest instances that do, and those that follow the load.

    Args:
        case: what is planned for.
        found: candidates of the search, the best first.
        instances: instances of the plan.
        rows: the trace by arrival; of a long one the 200,000 requests about its middle are taken.
        rate_per_s: mean rate to which the trace is stretched.
        start_up_s: seconds from asking for an instance until it is ready.

    Returns:
        Fleets of the best candidate, and of the best one of the other kind (phases together or
        apart), that which keeps the limits with the fewest accelerator hours first; none where the
        trace shares too much to be followed.

    Raises:
        TraceError: the trace is too short.
    """
    taken = _middle(rows)
    rate_per_s *= rate_of(taken) / rate_of(rows)
    fleets: list[TraceFleet] = []
    for place, item in enumerate(_contenders(found)):
        assert item.goodput is not None
        service = DailyService.of_rows(
            taken,
            item.arrangement,
            item.goodput.rate_per_s,
            rate_per_s=rate_per_s,
            slo=case.slo,
            share=case.share,
            start_up_s=start_up_s,
        )
        try:
            choices = _choices(service, 0 if place else instances)
        except CapacityError:
            continue
        fleets += [_priced(item, name, choice, case) for name, choice in choices]
    return _compared(fleets, case.share)


def _middle(rows: Sequence[TraceRow]) -> Sequence[TraceRow]:
    """Return the rows, or those about the middle where there are very many."""
    first = max(len(rows) - _MOST_ROWS, 0) // 2
    return rows[first : first + _MOST_ROWS]


def _contenders(found: Sequence[ServiceCandidate]) -> list[ServiceCandidate]:
    """Return the best candidate, and the best one that shares or parts the phases unlike it."""
    best, size = found[0], len(found[0].arrangement.groups)
    others = [
        item
        for item in found[1:]
        if item.goodput and item.goodput.rate_per_s and len(item.arrangement.groups) != size
    ]
    return [best, *others[:1]]


def _choices(service: DailyService, instances: int) -> list[tuple[str, DailyChoice]]:
    """Return the fleets of one arrangement, those that break the limits too."""
    choices = [("as planned", service.fixed(instances))] if instances else []
    try:
        choices.append(("fewest all the time", service.static()))
    except InfeasibleError:
        # Not even thousands keep the limits for these requests: following them will not either.
        return choices
    return [*choices, ("autoscaled", service.scaled() or service.following())]


def _priced(
    item: ServiceCandidate, name: str, choice: DailyChoice, case: ServiceCase
) -> TraceFleet:
    """Return a fleet in hours of accelerators and money."""
    hours = choice.instance_hours * item.arrangement.num_devices
    return TraceFleet(
        kind=item.arrangement.kind,
        words=item.arrangement.words,
        fleet=name,
        most=choice.most,
        target=choice.target,
        accelerator_hours=hours,
        usd=hours * case.accelerator.price_usd_per_hour,
        attainment=choice.attainment,
        per_accelerator=item.per_device,
    )


def _compared(fleets: list[TraceFleet], share: float) -> list[TraceFleet]:
    """Sort fleets, and say why each but the first is not the first."""
    order = sorted(fleets, key=lambda item: (item.attainment < share, item.accelerator_hours))
    if not order or order[0].attainment < share:
        return [replace(item, reason=_late(item, share)) for item in order]
    best, *rest = order
    return [best, *(replace(item, reason=_why(item, best, share)) for item in rest)]


def _late(item: TraceFleet, share: float) -> str:
    """Say that a fleet breaks the limits."""
    why = ""
    if item.fleet == "autoscaled":
        why = ": instances are ready too late, however little each is given"
    elif item.fleet == "as planned":
        why = ": requests of this trace differ from those drawn of it"
    return f"keeps both limits for {item.attainment:.1%}, less than {share:.0%}{why}"


def _why(item: TraceFleet, best: TraceFleet, share: float) -> str:
    """Say why a fleet is not the best one."""
    if item.attainment < share:
        return _late(item, share)
    if item.accelerator_hours <= best.accelerator_hours:
        return "the same accelerator hours: as many instances are needed all the time"
    more = f"{item.accelerator_hours / best.accelerator_hours - 1:.0%} more accelerator hours"
    if (item.kind, item.words) != (best.kind, best.words) and item.fleet == best.fleet:
        is_less = item.per_accelerator < best.per_accelerator
        what = "each accelerator carries less" if is_less else "whole instances fit the load worse"
        return f"{more}: {what}"
    words = {
        "as planned": "as large all the time as its fullest minutes need",
        "fewest all the time": "it does not shrink when little comes",
        "autoscaled": "starts and room for what comes meanwhile cost more than they spare",
    }
    return f"{more}: {words[item.fleet]}"
