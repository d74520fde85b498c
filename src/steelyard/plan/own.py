"""What the engine and the trainer of this package run, and the memory they take on this machine."""

from collections.abc import Mapping

from steelyard.catalog.architecture import Architecture
from steelyard.cost.memory import MemoryBreakdown
from steelyard.cost.resident import resident_serving_memory, resident_training_memory
from steelyard.cost.roofline import Machine
from steelyard.nn.traits import unsupported_traits
from steelyard.plan.rates import Load, Use

__all__ = ["has_engine", "own_memory"]


def has_engine(arch: Architecture, weights: str, use: Use) -> bool:
    """Return whether an engine or trainer of this package computes with such weights.

    Args:
        arch: model.
        weights: name of the weight type.
        use: what for; there is no trainer of adapters.

    Returns:
        Whether it does.
    """
    return weights in ("fp32", "bf16") and use != "lora" and not unsupported_traits(arch)


def own_memory(
    arch: Architecture, weights: str, load: Load, measured: Mapping[str, Machine]
) -> MemoryBreakdown | None:
    """Forecast the resident memory of this package's own process on a calibrated machine.

    Args:
        arch: model.
        weights: name of the weight type.
        load: use, context and users; training takes micro-batches of one sequence.
        measured: rooflines of the machine by number format.

    Returns:
        Bytes per kind; None where the package has no engine for the model, or the machine is not a
        calibrated CPU.
    """
    machine = next(iter(measured.values()), None)
    if machine is None or not machine.engine_process_bytes:
        return None
    if not has_engine(arch, weights, load.use):
        return None
    dtype = "fp32" if weights == "fp32" else "bf16"
    if load.use == "serve":
        return resident_serving_memory(
            arch,
            sequences=load.users,
            context=load.context,
            dtype=dtype,
            process_bytes=machine.engine_process_bytes,
        )
    return resident_training_memory(
        arch,
        batch=1,
        sequence_length=load.context,
        accumulation=2,  # a step has many sequences, so gradients wait for each other
        dtype=dtype,
        process_bytes=machine.trainer_process_bytes,
    )
