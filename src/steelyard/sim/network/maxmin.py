"""Max-min fair rates, and the times at which flows finish under them."""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit
from steelyard.sim.network.flows import RoutedFlows
from steelyard.sim.network.graph import Network, by_key
from steelyard.sim.network.paths import Bundles

__all__ = ["FlowCompletion", "fair_rates", "link_bytes", "simulate_flows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowCompletion:
    """When flows finished.

    Attributes:
        finish_s: time of the last byte's arrival of each flow, float [F].
        num_events: times at which rates were computed.
    """

    finish_s: NDArray[np.float64]
    num_events: int

    @property
    def makespan_s(self) -> float:
        """When the last flow finished: what a collective waits for."""
        return float(self.finish_s.max())


_Sets = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def fair_rates(network: Network, routed: RoutedFlows) -> NDArray[np.float64]:
    """Return the max-min fair rates of pieces that all send at once.

    The rates of all rise together; where a link is full, the pieces on it stay at the rate they
    have, and the others rise on (water filling). No piece can then gain except from one that has no
    more than it. Congestion controls that share a link evenly come near these rates.

    Args:
        network: links with their rates.
        routed: pieces with their links.

    Returns:
        Bytes per second of each piece, float [S].

    Source: Bertsekas and Gallager 1992, section 6.5.2.
    """
    rates = np.empty(len(routed))
    sets = _sets(network, routed.bundles)
    everyone = np.arange(len(routed), dtype=np.int64)
    hops = np.ascontiguousarray(routed.hops)
    _fill(*[everyone, hops, *sets, network.bytes_per_s, rates])
    return rates


def simulate_flows(
    network: Network, routed: RoutedFlows, *, tolerance: float = 0.0
) -> FlowCompletion:
    """Let pieces send at max-min fair rates until all have finished.

    Rates change when a piece begins or finishes. This is the compiled inner loop of the event loop
    `sim.EventLoop`: begins and finishes are its events, and a test compares both.

    Args:
        network: links with their rates and latencies.
        routed: pieces with their links.
        tolerance: rates hold at least for this fraction of the time so far, so that of a million
            pieces those that finish nearly together count as one event. What a piece leaves free is
            given on that much later. 0 is exact.

    Returns:
        Times at which flows finish, latency of their ways included.
    """
    finish = np.empty(len(routed))
    sets = _sets(network, routed.bundles)
    begin = routed.flows.start_s[routed.flow]
    hops = np.ascontiguousarray(routed.hops)
    order = np.argsort(begin, kind="stable")
    sizes = network.bytes_per_s, routed.size_bytes
    events = _run(*[hops, *sets, *sizes, begin, order, tolerance, finish])
    finish += _latency_s(network, routed)
    last = np.zeros(len(routed.flows))
    np.maximum.at(last, routed.flow, finish)
    return FlowCompletion(finish_s=last, num_events=int(events))


def link_bytes(network: Network, routed: RoutedFlows) -> NDArray[np.float64]:
    """Return the bytes that pass each link in all, float [L]."""
    links, bundles = network.num_links, routed.bundles
    kept = routed.hops >= 0
    size = np.broadcast_to(routed.size_bytes[:, None], routed.hops.shape)[kept]
    load = np.bincount(routed.hops[kept], weights=size, minlength=links + len(bundles))
    shared = load[links:][bundles.owner] * bundles.share
    passed = np.bincount(bundles.link, weights=shared, minlength=links)
    return (load[:links] + passed).astype(float)


def _latency_s(network: Network, routed: RoutedFlows) -> NDArray[np.float64]:
    """Return the latency of each piece's way; of a bundle, the mean over its shares."""
    bundles = routed.bundles
    parts = network.latency_s[bundles.link] * bundles.share
    mean = np.bincount(bundles.owner, weights=parts, minlength=len(bundles))
    # The last entry is what a hop of -1 finds.
    each = np.concatenate([network.latency_s, mean, [0.0]])
    return each[routed.hops].sum(axis=1)


def _sets(network: Network, bundles: Bundles) -> _Sets:
    """Return links and bundles as one list of link sets, by set and by link."""
    count = network.num_links
    offset = np.concatenate([np.arange(count), count + bundles.offset])
    link = np.concatenate([np.arange(count), bundles.link])
    share = np.concatenate([np.ones(count), bundles.share])
    owner = np.concatenate([np.arange(count), count + bundles.owner])
    by_link, entries = by_key(link, count)
    return offset, link, share, by_link, owner[entries], share[entries]


@njit()
def _fill(
    active,
    hops,
    set_offset,
    set_link,
    set_share,
    link_offset,
    link_set,
    link_share,
    capacity,
    rates,
):  # pragma: no cover - compiled
    """Write the max-min fair rates of the active pieces."""
    num_sets, num_links, width = len(set_offset) - 1, len(capacity), hops.shape[1]
    # Pieces by set, by counting sort.
    bounds = np.zeros(num_sets + 1, dtype=np.int64)
    for piece in active:
        rates[piece] = -1.0
        for at in range(width):
            if hops[piece, at] < 0:
                break
            bounds[hops[piece, at] + 1] += 1
    waiting = bounds[1:].copy()
    bounds = np.cumsum(bounds)
    place = bounds[:-1].copy()
    members = np.empty(bounds[-1], dtype=np.int32)
    for piece in active:
        for at in range(width):
            found = hops[piece, at]
            if found < 0:
                break
            members[place[found]] = piece
            place[found] += 1
    # A link's demand is what its load grows by when the rate of all waiting pieces grows by 1.
    demand, used = np.zeros(num_links), np.zeros(num_links)
    for number in range(num_sets):
        if waiting[number]:
            for at in range(set_offset[number], set_offset[number + 1]):
                demand[set_link[at]] += waiting[number] * set_share[at]
    doubtful = 1e-6 * demand
    heap = [(capacity[link] / demand[link], link) for link in range(num_links) if demand[link] > 0]
    heapq.heapify(heap)
    change = np.zeros(num_sets, dtype=np.int64)
    touched = np.empty(num_sets, dtype=np.int64)
    while heap:
        seen, link = heapq.heappop(heap)
        if demand[link] <= doubtful[link]:  # perhaps nothing but rounding: added up anew
            demand[link] = 0.0
            for at in range(link_offset[link], link_offset[link + 1]):
                demand[link] += waiting[link_set[at]] * link_share[at]
            if demand[link] == 0.0:
                continue
        level = max(seen, (capacity[link] - used[link]) / demand[link])
        # Levels only rise as pieces leave, so the heap needs no updates: what rose goes back.
        if level > seen * (1 + 1e-12):
            heapq.heappush(heap, (level, link))
            continue
        num_touched = 0
        for at in range(link_offset[link], link_offset[link + 1]):
            number = link_set[at]
            if waiting[number] == 0:
                continue
            for slot in range(bounds[number], bounds[number + 1]):
                piece = members[slot]
                if rates[piece] >= 0:
                    continue
                rates[piece] = level
                for hop in range(width):
                    found = hops[piece, hop]
                    if found < 0:
                        break
                    if change[found] == 0:
                        touched[num_touched] = found
                        num_touched += 1
                    change[found] += 1
        for at in range(num_touched):
            number = touched[at]
            count = change[number]
            change[number] = 0
            waiting[number] -= count
            for entry in range(set_offset[number], set_offset[number + 1]):
                part = count * set_share[entry]
                demand[set_link[entry]] -= part
                used[set_link[entry]] += part * level


@njit()
def _run(
    hops,
    set_offset,
    set_link,
    set_share,
    link_offset,
    link_set,
    link_share,
    capacity,
    size,
    begin,
    order,
    tolerance,
    finish,
):  # pragma: no cover - compiled
    """Write the time at which each piece has sent its last byte; return the number of events."""
    total = len(size)
    left = size.copy()
    rates = np.empty(total)
    active = np.empty(total, dtype=np.int64)
    count, ahead, events = 0, 0, 0
    now = 0.0
    while count or ahead < total:
        if count == 0:
            now = max(now, begin[order[ahead]])
        while ahead < total and begin[order[ahead]] <= now:
            active[count] = order[ahead]
            count += 1
            ahead += 1
        _fill(
            active[:count],
            hops,
            set_offset,
            set_link,
            set_share,
            link_offset,
            link_set,
            link_share,
            capacity,
            rates,
        )
        events += 1
        span = np.inf
        for at in range(count):
            span = min(span, left[active[at]] / rates[active[at]])
        # A hair more, so that pieces which finish together by arithmetic do so by rounding too.
        span = max(span * (1 + 1e-9), tolerance * now)
        then = now + span
        if ahead < total and begin[order[ahead]] < then:
            then = begin[order[ahead]]  # exactly, or rounding could stop the clock just before it
            span = then - now
        kept = 0
        for at in range(count):
            piece = active[at]
            need = left[piece] / rates[piece]
            if need <= span:
                finish[piece] = now + need
            else:
                left[piece] -= rates[piece] * span
                active[kept] = piece
                kept += 1
        count = kept
        now = then
    return events
