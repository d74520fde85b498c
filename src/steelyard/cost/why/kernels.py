"""The time of a pass as a reader adds it up: products, attention, memory traffic, launches."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.collectives import all_reduce_s, group_bandwidth
from steelyard.cost.operators import OperatorTable
from steelyard.cost.roofline import Machine, operator_parts
from steelyard.cost.why.chain import ChainStep

__all__ = ["all_reduce_step", "kernel_steps"]

_PRODUCTS = "FLOP of the operators that compute longer than they wait for memory"


def kernel_steps(
    table: OperatorTable,
    machine: Machine,
    *,
    prefix: str = "",
    among: NDArray[np.bool_] | None = None,
) -> list[ChainStep]:
    """Show how the times of operators add up to that of a pass.

    Args:
        table: operators of the pass, of one layout.
        machine: accelerator they run on.
        prefix: beginning of the names, such as "prompt_".
        among: which operators run, [operators]; all when not given.

    Returns:
        Steps; the last one is the time of the pass.
    """
    parts = operator_parts(table, machine)
    runs = np.ones(len(table.names), bool) if among is None else among
    # An operator counts where it waits: with equal times it is as bound by memory as by compute.
    computes = runs & (parts.compute_s > parts.memory_s).reshape(-1)
    moves = runs & ~computes
    times: dict[str, float] = {}
    steps: list[ChainStep] = []
    for kind, tell in (("matmul", _product_steps), ("attention", _attention_steps)):
        chosen = computes & table.mask(kind)
        if chosen.any():
            flops, seconds = (_sum(table, item, chosen) for item in (table.flops, parts.compute_s))
            steps += tell(machine, prefix, flops, seconds)
            times[steps[-1].name] = seconds
    if moves.any():
        steps += _memory_steps(table, machine, prefix, moves, _sum(table, parts.memory_s, moves))
        times[steps[-1].name] = steps[-1].value
    launches = {
        "launches": _sum(table, table.launches, runs),
        "launch_time": machine.efficiencies.launch_s,
    }
    whole = ChainStep(
        name=f"{prefix}kernel_time",
        formula=" + ".join([*times, "launches x launch_time"]),
        numbers=times | launches,
        value=_sum(table, parts.total_s, runs),
        unit="s",
        source="each operator takes the longer of computing and moving its data, and its launches",
    )
    return [*steps, whole]


def _sum(table: OperatorTable, column: Any, chosen: NDArray[np.bool_]) -> float:
    """Sum a column over some operators, each times its count."""
    return float((table.count * np.broadcast_to(column, table.count.shape))[chosen].sum())


def _product_steps(machine: Machine, prefix: str, flops: float, seconds: float) -> list[ChainStep]:
    """Show the time of matrix products."""
    reached = {f"{prefix}product_flops": flops, f"{prefix}product_rate": flops / seconds}
    spent = ChainStep(
        name=f"{prefix}product_time",
        formula=" / ".join(reached),
        numbers=reached,
        value=seconds,
        unit="s",
        source=_PRODUCTS
        if machine.curve is None
        else f"{_PRODUCTS}; mean of the rates measured at their sizes: {machine.source}",
    )
    # A calibrated machine has a measured rate for each size, and no one share of a peak.
    if machine.curve is not None:
        return [spent]
    peak, share = machine.peak_flops_per_s, machine.efficiencies.matmul
    rate = ChainStep(
        name=f"{prefix}product_rate",
        formula="peak x matmul_share x tile_share",
        numbers={
            "peak": peak,
            "matmul_share": share,
            "tile_share": flops / seconds / (peak * share),
        },
        value=flops / seconds,
        unit="FLOP/s",
        source=f"{machine.source}; tile_share is what small sizes leave of it, on average",
    )
    return [rate, spent]


def _attention_steps(
    machine: Machine, prefix: str, flops: float, seconds: float
) -> list[ChainStep]:
    """Show the time of attention that is bound by compute."""
    return [
        ChainStep(
            name=f"{prefix}attention_time",
            formula="attention_flops / (peak x attention_share)",
            numbers={
                "attention_flops": flops,
                "peak": machine.peak_flops_per_s,
                "attention_share": machine.efficiencies.attention,
            },
            value=seconds,
            unit="s",
            source="scores and weighted values of the pairs that are not masked",
        )
    ]


def _memory_steps(
    table: OperatorTable,
    machine: Machine,
    prefix: str,
    moves: NDArray[np.bool_],
    seconds: float,
) -> list[ChainStep]:
    """Show the time of the operators that wait for memory."""
    rest = table.bytes_moved - table.weight_bytes
    numbers = {
        "weights_read": _sum(table, table.weight_bytes, moves),
        "keys_and_values": _sum(table, rest, moves & table.mask("attention")),
        "activations_moved": _sum(table, rest, moves & ~table.mask("attention")),
    }
    numbers = {name: value for name, value in numbers.items() if value}
    moved = sum(numbers.values())
    bandwidth = moved / seconds
    steps = [
        ChainStep(
            name=f"{prefix}moved_bytes",
            formula=" + ".join(numbers),
            numbers=numbers,
            value=moved,
            unit="byte",
            source="what the operators read and write that wait for memory",
        )
    ]
    said = f"mean over the measured rates of caches and memory: {machine.source}"
    # Measured bandwidths differ by cache level, so that no one figure times a share gives them.
    if machine.provenance != "measured":
        steps.append(_bandwidth_step(machine))
        said = "bytes over bandwidth"
    moving = {f"{prefix}moved_bytes": moved, "bandwidth": bandwidth}
    steps.append(
        ChainStep(
            name=f"{prefix}memory_time",
            formula=" / ".join(moving),
            numbers=moving,
            value=seconds,
            unit="s",
            source=said,
        )
    )
    return steps


def _bandwidth_step(machine: Machine) -> ChainStep:
    """Show the bandwidth of a published machine."""
    share = machine.efficiencies.memory
    return ChainStep(
        name="bandwidth",
        formula="published_bandwidth x memory_share",
        numbers={
            "published_bandwidth": machine.memory_bytes_per_s / share,
            "memory_share": share,
        },
        value=machine.memory_bytes_per_s,
        unit="byte/s",
        source=machine.source,
    )


def all_reduce_step(
    machine: Machine, size_bytes: float, members: int, *, name: str = "all_reduce_time"
) -> ChainStep:
    """Show the time of one sum over a group of accelerators.

    Args:
        machine: accelerator with its links.
        size_bytes: bytes that each member holds.
        members: accelerators of the group, at least 2.
        name: what the step is called.

    Returns:
        The step.
    """
    return ChainStep(
        name=name,
        formula="2 x ((members - 1) / members x summed_bytes / link_rate + hops x hop_time)",
        numbers={
            "members": float(members),
            "summed_bytes": size_bytes,
            "link_rate": float(group_bandwidth(machine, members)),
            "hops": float(np.log2(members)),
            "hop_time": machine.topology.levels[0].latency_s,
        },
        value=float(all_reduce_s(machine, size_bytes, members)),
        unit="s",
        source="halving and doubling over the node; hops is the logarithm of the members",
    )
