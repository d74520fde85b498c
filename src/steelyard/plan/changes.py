"""Single changes to a planned run: which shortens it most, and which is the nearest that fits."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from steelyard.catalog.parameters import count_parameters
from steelyard.cost.efficiency import MatmulCurve
from steelyard.cost.roofline import Machine
from steelyard.errors import InfeasibleError
from steelyard.plan.interruptions import kept_share
from steelyard.plan.layouts import search_layouts
from steelyard.plan.training_search import TrainingSearch
from steelyard.plan.types import Change
from steelyard.units import pretty

__all__ = ["NoPlanError", "nearest_changes", "what_helps"]

_TWICE = 2
_MOST_NODES = 2**17
_SHORTEST = 128
_RESERVES = (0.08, 0.05)
_GAIN = 0.005
"""Share of the time that a change saves at least to be named."""


class NoPlanError(InfeasibleError):
    """No layout fits; the changes that make one fit are searched when they are asked for.

    Attributes:
        search: what was searched for.
    """

    def __init__(self, error: InfeasibleError, search: TrainingSearch) -> None:
        """Keep what was searched for beside what is wrong.

        Args:
            error: what is wrong.
            search: what was searched for.
        """
        super().__init__(str(error), hint=error.hint)
        self.search = search

    @cached_property
    def changes(self) -> list[Change]:
        """Single changes that make it fit, the nearest ones of each kind."""
        return nearest_changes(self.search)


def what_helps(search: TrainingSearch) -> list[Change]:
    """Price a run anew with one thing better at a time.

    Args:
        search: run that has a plan.

    Returns:
        Twice of each thing on as many accelerators, twice of these, other batches and half of the
        failures, by the time they save; without those that change nothing.
    """
    # Another number of accelerators would be a second change.
    same = replace(search, counts=(search.count,), deadline_s=math.inf)
    before_s = search.duration_s
    tried = [_priced(name, other, before_s) for name, other in _better(same)]
    tried.append(_steadier(search))
    found = [item for item in tried if item is not None and item.saved > _GAIN]
    return sorted(found, key=lambda item: -item.saved)


def _better(search: TrainingSearch) -> Iterator[tuple[str, TrainingSearch]]:
    """List the run with one thing twice as large."""
    machine = search.machine

    def of(name: str, **fields: Any) -> tuple[str, TrainingSearch]:
        return name, replace(search, machine=replace(machine, **fields))

    yield of("twice the rate of products", **_faster(machine))
    yield of("twice the memory", memory_bytes=_TWICE * machine.memory_bytes)
    yield of("twice the memory bandwidth", memory_bytes_per_s=_TWICE * machine.memory_bytes_per_s)
    if machine.provenance != "measured":  # this machine is one, without links
        count = _TWICE * search.counts[0]
        nodes = max(search.num_nodes, search.nodes_of(count))
        more = replace(_with_nodes(search, nodes), counts=(count,))
        yield f"twice the accelerators ({count:,})", more
        yield of(
            "twice the rate within nodes",
            scale_up_bytes_per_s=_TWICE * machine.scale_up_bytes_per_s,
            levels=_levels(machine, inside=_TWICE),
        )
        yield of(
            "twice the network",
            injection_bytes_per_s=_TWICE * machine.injection_bytes_per_s,
            levels=_levels(machine, outside=_TWICE),
        )
    for batch in (_TWICE * search.global_batch, search.global_batch // _TWICE):
        if batch:
            yield f"a batch of {batch:,} sequences", replace(search, global_batch=batch)


def _steadier(search: TrainingSearch) -> Change | None:
    """Price the run with half as many failures; None where they are not known."""
    if search.machine.provenance == "measured":
        return None
    size, count = count_parameters(search.arch).total, search.count
    # Half as many accelerators fail half as often.
    kept = kept_share(size, count / _TWICE, search.nodes_of(count))
    saved = 1 - search.kept(count) / kept
    return Change(
        name="half as many failures",
        duration_s=search.duration_s * (1 - saved),
        saved=saved,
        layout=search.found.choice(search.chosen),
    )


def _faster(machine: Machine) -> dict[str, Any]:
    """Return the fields of a machine whose products are twice as fast."""
    found: dict[str, Any] = {"peak_flops_per_s": _TWICE * machine.peak_flops_per_s}
    if machine.curve is not None:
        rates = _TWICE * machine.curve.flops_per_s
        found["curve"] = MatmulCurve(machine.curve.log_sizes, rates)
    return found


def _levels(machine: Machine, *, inside: float = 1.0, outside: float = 1.0) -> tuple[Any, ...]:
    """Return the levels of links with other rates, the first of which is the node's."""
    return tuple(
        replace(item, bytes_per_s=item.bytes_per_s * (outside if place else inside))
        for place, item in enumerate(machine.levels)
    )


def _with_nodes(search: TrainingSearch, num_nodes: int) -> TrainingSearch:
    """Return the run on another number of nodes."""
    machine = search.machine
    levels = machine.levels
    if levels and num_nodes > search.num_nodes:
        # The outermost level joins more of what it joins now.
        members = -(-levels[-1].members * num_nodes // max(search.num_nodes, 1))
        levels = (*levels[:-1], replace(levels[-1], members=members))
    machine = replace(machine, num_nodes=num_nodes, levels=levels)
    return replace(search, machine=machine, num_nodes=num_nodes)


def _priced(name: str, search: TrainingSearch, before_s: float | None) -> Change | None:
    """Price a run; None where it has no plan."""
    try:
        duration_s, layout = search.duration_s, search.found.choice(search.chosen)
    except InfeasibleError:
        return None
    saved = 1 - duration_s / before_s if before_s else 0.0
    return Change(name=name, duration_s=duration_s, saved=saved, layout=layout)


def nearest_changes(search: TrainingSearch) -> list[Change]:
    """Search the nearest single change of each kind that gives a run a plan.

    Splits, schedules, micro-batches, sharding and recomputation are part of every search: none of
    them was enough, but one that was set by hand may be in the way.

    Args:
        search: run without a plan.

    Returns:
        Changes that do: more nodes, memory, axes that are set by hand left free, host memory, less
        of a reserve, shorter sequences, another batch, or more time; empty where no single one
        does.
    """
    ways = (_nodes, _memory, _reserve, _length, _batch, _deadline)
    nodes, memory, *others = (way(search) for way in ways)
    found = [nodes, memory, *_axes(search), *_offloads(search), *others]
    return [item for item in found if item is not None]


def _axes(search: TrainingSearch) -> Iterator[Change | None]:
    """Leave one axis free that was set by hand, and say which value it takes then."""
    for axis, value in search.space.pinned.items():
        free = _priced("", replace(search, space=search.space.freed(axis)), None)
        if free is None:
            continue
        set_to = " or ".join(map(str, value)) if isinstance(value, tuple) else value
        words = axis.replace("virtual_stages", "chunks").replace("_", " ")
        found = free.layout.get(axis, "any")
        yield replace(free, name=f"{words} {found} in place of {set_to}")


def _offloads(search: TrainingSearch) -> Iterator[Change | None]:
    """Move what the search keeps on the accelerators into host memory."""
    kinds = {
        "offload_optimizer": "optimizer states in host memory",
        "offload_activations": "inputs of layers in host memory",
    }
    for axis, words in kinds.items():
        if True not in getattr(search.space, axis):
            yield _priced(
                words, replace(search, space=replace(search.space, **{axis: (True,)})), None
            )


def _nodes(search: TrainingSearch) -> Change | None:
    """Find the fewest nodes that do."""
    if search.machine.provenance == "measured":
        return None

    def tried(count: int) -> Change | None:
        more = _with_nodes(search, count)
        if search.counts:  # a run on all of the nodes stays one
            more = replace(more, counts=(count * search.per_node,))
        return _priced(f"{count:,} nodes", more, None)

    high = _TWICE * search.num_nodes
    while (found := tried(high)) is None:
        high *= _TWICE
        if high > _MOST_NODES:
            return None
    # Counts that divide badly have no layout although smaller ones have: what is found is the least
    # of those tried, and its own layouts are searched.
    low = high // _TWICE
    while high - low > 1:
        middle = (low + high) // 2
        other = tried(middle)
        low, high, found = (middle, high, found) if other is None else (low, middle, other)
    return found


def _memory(search: TrainingSearch) -> Change | None:
    """Find the least memory that holds a layout."""
    least = _least_bytes(search)
    if least <= search.machine.memory_bytes * (1 - search.reserve_fraction):
        return None
    wanted = 1.0001 * least / (1 - search.reserve_fraction)
    machine = replace(search.machine, memory_bytes=wanted)
    return _priced(
        f"accelerators with {pretty(wanted, 'byte')} of memory",
        replace(search, machine=machine),
        None,
    )


def _least_bytes(search: TrainingSearch) -> float:
    """Return the memory of the layout that needs least; 0 where there is no layout."""
    found = search_layouts(
        search.arch,
        search.machine,
        counts=[search.num_nodes * search.per_node],
        global_batch=search.global_batch,
        sequence_length=search.sequence_length,
        reserve_fraction=search.reserve_fraction,
        space=search.space,
    )
    return float(found.memory_bytes.min()) if len(found.fits) else 0.0


def _first(tries: Iterator[tuple[str, TrainingSearch]]) -> Change | None:
    """Return the first of some runs that has a plan."""
    return next((item for name, run in tries if (item := _priced(name, run, None))), None)


def _reserve(search: TrainingSearch) -> Change | None:
    """Find the largest reserve of memory that does."""
    return _first(
        (f"a reserve of {share:.0%} of the memory", replace(search, reserve_fraction=share))
        for share in _RESERVES
        if share < search.reserve_fraction
    )


def _length(search: TrainingSearch) -> Change | None:
    """Find the longest sequences that do, by halving, with as many tokens in a step."""

    def tries() -> Iterator[tuple[str, TrainingSearch]]:
        length, batch = search.sequence_length // 2, 2 * search.global_batch
        while length >= _SHORTEST:
            name = f"sequences of {length:,} tokens, {batch:,} in a step"
            yield name, replace(search, sequence_length=length, global_batch=batch)
            length, batch = length // 2, 2 * batch

    return _first(tries())


def _batch(search: TrainingSearch) -> Change | None:
    """Find the nearest other batch that does."""
    batches = [search.global_batch * 2**step for step in range(1, 9)]
    batches += [search.global_batch // 2**step for step in range(1, 9)]
    near = sorted({item for item in batches if item}, key=lambda item: _distance(item, search))
    return _first(
        (f"a batch of {batch:,} sequences", replace(search, global_batch=batch)) for batch in near
    )


def _distance(batch: int, search: TrainingSearch) -> float:
    return max(batch / search.global_batch, search.global_batch / batch)


def _deadline(search: TrainingSearch) -> Change | None:
    """Find the time that the run takes at least."""
    try:
        least = search.fastest_s
    except InfeasibleError:
        return None
    return _priced(
        f"{pretty(least, 's')} of time", replace(search, deadline_s=1.0001 * least), None
    )
