"""The largest models of the catalog that one machine serves at a bearable pace."""

from collections.abc import Mapping, Sequence

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.catalog.parameters import count_parameters
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import WEIGHT_TYPES, stored_bytes
from steelyard.plan.fit import Placement, place

__all__ = ["largest_served"]

_PACE = 5.0
"""Tokens per second that a reader can follow."""


def largest_served(
    record: Accelerator,
    machines: Mapping[str, Machine],
    *,
    context: int = 4096,
    weights: Sequence[str] = tuple(WEIGHT_TYPES),
    pace: float = _PACE,
) -> list[tuple[Architecture, Placement]]:
    """List the decoders that a machine serves to one user, the largest first.

    Args:
        record: the machine.
        machines: its measured rooflines by number format, none for published peaks.
        context: tokens of the sequence.
        weights: weight types to try.
        pace: least output tokens per second.

    Returns:
        Models with their placement of the widest weights that keep the pace.
    """
    found: list[tuple[Architecture, Placement]] = []
    for name in catalog.names("architectures"):
        arch = catalog.architecture_by_name(name)
        if arch.kind != "decoder":
            continue
        # Most of the catalog fails here, long before anything is timed.
        small = [
            kind
            for kind in weights
            if stored_bytes(arch, WEIGHT_TYPES[kind]) <= record.memory_bytes
        ]
        placed = {
            item.weights: item
            for item in place(
                arch, [(record, machines)], context=context, weights=small, counts=(1,)
            )
            if item.fits and item.tokens_per_s and item.tokens_per_s.value >= pace
        }
        if placed:
            found.append((arch, next(placed[kind] for kind in weights if kind in placed)))
    return sorted(found, key=lambda item: -count_parameters(item[0]).total)
