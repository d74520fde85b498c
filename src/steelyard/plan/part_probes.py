"""Parts of a step that can be measured alone: one product, and one collective of each kind."""

from functools import partial
from typing import Any, NamedTuple

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_gather_s, all_reduce_s, all_to_all_s
from steelyard.cost.held import stage_parameters
from steelyard.cost.roofline import Machine
from steelyard.plan.probes import PartProbe
from steelyard.units import pretty

__all__ = ["part_probes"]


class _Exchange(NamedTuple):
    """A collective of one kind, as a step has it."""

    name: str
    part: str
    size_bytes: float
    members: int
    stride: int
    seconds: Any


def part_probes(
    arch: Architecture, machine: Machine, choice: dict[str, Any], sequence_length: int
) -> list[PartProbe]:
    """List the parts of a layout's step that can be measured alone.

    Args:
        arch: the model.
        machine: accelerator with its links.
        choice: the layout with its batch, as `LayoutSearch.choice` returns it.
        sequence_length: tokens per sequence.

    Returns:
        A product, and a collective of each kind that the layout has.
    """
    whole = choice["micro_batch"] * sequence_length
    exchanges = _exchanges(arch, machine, choice, whole)
    return [_product(arch, machine, choice, whole)] + [
        PartProbe(
            name=f"{item.name} of {pretty(item.size_bytes, 'byte')} over {item.members} "
            f"accelerators{f', every {item.stride}th' if item.stride > 1 else _BESIDE}",
            part=item.part,
            forecast_s=float(item.seconds(machine, item.size_bytes, item.members, item.stride)),
        )
        for item in exchanges
        if item.members > 1
    ]


_BESIDE = " next to each other"


def _product(arch: Architecture, machine: Machine, choice: dict[str, Any], whole: int) -> PartProbe:
    """Return the largest product of a layer on one accelerator."""
    tokens, hidden = whole // choice["context"], arch.hidden_size
    # A gated MLP multiplies by its two first matrices at once, side by side; what a group of
    # experts is given differs from step to step, so theirs is no product to measure.
    inner = (2 if arch.is_gated else 1) * arch.intermediate_size
    width = (arch.num_heads * arch.head_dim if arch.num_experts else inner) // choice["tensor"]
    rate = float(machine.matmul_rate(tokens, width, hidden))
    return PartProbe(
        name=f"a product of {tokens:,} x {hidden:,} x {width:,} in {machine.dtype}",
        part="compute_s",
        forecast_s=2.0 * tokens * hidden * width / rate,
    )


def _exchanges(
    arch: Architecture, machine: Machine, choice: dict[str, Any], whole: int
) -> list[_Exchange]:
    """List the collectives of a layout, groups of one among them."""
    tensor, context, expert = (choice[name] for name in ("tensor", "context", "expert"))
    width, states = machine.dtype_bytes, whole // context * arch.hidden_size
    dense, routed = stage_parameters(arch, choice)
    # Whole experts have replicas of their own.
    held = float(dense if expert > 1 else dense + routed)
    heads = max(arch.num_kv_heads // tensor, 1)
    kept = 2 * width * whole * heads * arch.head_dim
    ring = partial(all_gather_s, algorithm="ring")
    replicas = choice["data"] * context
    sent = width * states * arch.experts_per_token / tensor
    return [
        _Exchange("an all-reduce", "tensor_s", width * states, tensor, 1, all_reduce_s),
        _Exchange("an all-gather", "data_s", width * held, replicas, tensor, all_gather_s),
        _Exchange("a ring of keys and values", "context_s", kept, context, tensor, ring),
        _Exchange("an all-to-all", "expert_s", sent, expert, 1, all_to_all_s),
    ]
