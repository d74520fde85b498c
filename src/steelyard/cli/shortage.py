"""Says of a model that does not fit what it needs, what there is, and how many would do."""

from typing import TYPE_CHECKING

from steelyard import catalog
from steelyard.catalog import Architecture
from steelyard.cost import Machine
from steelyard.cost.weights import WEIGHT_TYPES
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.plan.rates import Use

__all__ = ["shortage"]


def shortage(
    arch: Architecture,
    device: Machine,
    needs_bytes: float,
    use: "Use",
    *,
    context: int,
    users: int = 1,
) -> str:
    """Say what a model that does not fit needs, has, and how many would do.

    Args:
        arch: model.
        device: accelerator it is asked about.
        needs_bytes: memory it takes there.
        use: what for.
        context: tokens of each sequence.
        users: sequences served together.

    Returns:
        A sentence; empty where the model fits.
    """
    if needs_bytes <= device.memory_bytes:
        return ""
    has = pretty(device.memory_bytes, "byte")
    said = f"{arch.name} does not fit: needs {pretty(needs_bytes, 'byte')}, has {has}"
    # This machine has no second of its kind, and other formats (fp16) are no type of weights here.
    if device.provenance == "measured" or device.dtype not in WEIGHT_TYPES:
        return said
    # Planning is loaded for this one answer, not for the help of every verb.
    from steelyard.plan.fit import fits_on

    record = catalog.accelerator(device.name)
    count = fits_on(arch, record, use=use, weights=device.dtype, context=context, users=users)
    return f"{said}; fits on {count}" if count else said
