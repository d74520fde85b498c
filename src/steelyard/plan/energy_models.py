"""Energy models of a served model by the accelerators of a copy, measured where it was."""

from collections.abc import Sequence
from dataclasses import replace

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.power import EnergyModel, measured_model, measured_rows
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import ServeStepTime
from steelyard.errors import FitError, InfeasibleError
from steelyard.plan.concurrency import tensor_parallel_step_time
from steelyard.plan.machines import nodes_of
from steelyard.plan.shapes import model_of

__all__ = ["energy_models", "most_batch"]

_MEMORY_SHARE = 0.92


def energy_models(
    name: str, accelerator: Accelerator, widths: Sequence[int]
) -> dict[int, EnergyModel]:
    """Return energy models of a model by the accelerators of a copy.

    Times and power are those measured where the model was; else times are those of the roofline
    and power has the shares of the rating that A100s were measured to have.

    Args:
        name: catalog name of the model, or its size.
        accelerator: record.
        widths: accelerators of a copy.

    Returns:
        Models by width; widths whose memory does not hold the weights are left out.

    Raises:
        InfeasibleError: no width holds them.
    """
    arch, _ = model_of(name)
    found: dict[int, EnergyModel] = {}
    for width in sorted(set(widths)):
        try:
            if accelerator.name != "A100-SXM4-80GB":
                raise FitError("not measured")
            made = measured_model(arch.name, width)
        except FitError:
            made = _roofline_model(arch, accelerator, width)
        if most_batch(made, 1.0) >= 1:
            found[width] = made
    if not found:
        raise InfeasibleError(
            f"{arch.name} does not fit {max(widths)} x {accelerator.name}",
            hint="allow more accelerators per copy",
        )
    return found


def _roofline_model(arch: Architecture, accelerator: Accelerator, width: int) -> EnergyModel:
    """Make a model from the datasheet, with the power shares of the chip that was measured."""
    machine = Machine.from_accelerator(accelerator, cluster=nodes_of(accelerator, width))
    alone = ServeStepTime.from_roofline(arch, machine)
    first = measured_rows()[0]
    curve = measured_model(first.model, first.tensor_parallel).curve
    idle = accelerator.idle_w / accelerator.tdp_w if accelerator.idle_w else curve.idle
    return EnergyModel(
        arch=arch,
        accelerator=accelerator,
        tensor_parallel=width,
        step_time=tensor_parallel_step_time(alone, arch, machine, width),
        curve=replace(curve, rated_w=accelerator.tdp_w or curve.rated_w, idle=idle),
    )


def most_batch(model: EnergyModel, tokens: float) -> int:
    """Return how many requests the memory of a copy holds beside the weights.

    Args:
        model: a copy.
        tokens: mean tokens of a request, its answer included.

    Returns:
        Requests; below 1 where the weights alone do not fit.
    """
    room = _MEMORY_SHARE * model.accelerator.memory_bytes * model.tensor_parallel
    return int(
        (room - model.weight_bytes) / (kv_bytes_per_token(model.arch, model.dtype_bytes) * tokens)
    )
