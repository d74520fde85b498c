"""What the engine and the trainer of this package run, and the memory they take on this machine."""

from collections.abc import Mapping
from typing import cast

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import Layout
from steelyard.cost.memory import MemoryBreakdown
from steelyard.cost.resident import (
    StoredIn,
    resident_serving_memory,
    resident_training_memory,
)
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import WeightType
from steelyard.nn.traits import beyond_kernels, unserved_traits
from steelyard.plan.rates import Load, Rated, Use, decode_rate, training_rate
from steelyard.serve.weight_choice import (
    ServingLoad,
    WeightCandidate,
    WeightChoice,
    choose_weights,
)

__all__ = ["has_engine", "own_candidate", "own_choice", "own_memory", "placed_rate"]

_SERVED = ("fp32", "bf16", "int8", "int4")
_TRAINED = ("fp32", "bf16")


def own_choice(
    arch: Architecture, load: Load, machine: Machine, *, max_loss: float = 0.0
) -> WeightChoice | None:
    """Forecast this package's own engine on a calibrated machine, in every type of weights.

    Args:
        arch: model; its weights are taken to be stored in bf16.
        load: use, context and users.
        machine: the calibrated machine, in any number format.
        max_loss: largest relative increase of perplexity that the chosen type may cost.

    Returns:
        What the server would choose, with the forecasts of all types; None where the package has no
        engine for the model, its kernels do not run it, or they were not calibrated there.
    """
    if machine.engine is None or load.use != "serve" or not has_engine(arch, "fp32", "serve"):
        return None
    if beyond_kernels(arch):  # other products run those, of which there are no rates
        return None
    return choose_weights(
        arch,
        machine.engine,
        ServingLoad(users=load.users, prompt_tokens=load.context, output_tokens=0),
        stored="bf16",
        max_loss=max_loss,
        disturbance=machine.disturbance,
    )


def placed_rate(
    arch: Architecture,
    machine: Machine,
    kind: WeightType,
    load: Load,
    layout: Layout,
    count: int,
) -> Rated:
    """Return tokens per second of a placed model.

    Args:
        arch: model.
        machine: one of the accelerators.
        kind: type of the weights.
        load: use, context and users.
        layout: how training is shared.
        count: accelerators that share serving.

    Returns:
        The rate of this package's engine where it runs and was calibrated, else by the roofline;
        what limits it and how far it may be off.
    """
    if load.use != "serve":
        return training_rate(arch, machine, kind, load, layout)
    # The engine runs one model on one machine; shared serving is another engine's.
    own = own_candidate(arch, load, machine, kind.name) if count == 1 else None
    if own is None:
        return decode_rate(arch, machine, kind, load, count)
    tpot = own.step_tpot
    return Rated(
        tokens_per_s=load.users / tpot.value,
        bound="bandwidth" if own.is_memory else "compute",
        relative=tpot.high / tpot.value - 1,
    )


def own_candidate(
    arch: Architecture, load: Load, machine: Machine, weights: str
) -> WeightCandidate | None:
    """Return the forecasts of one type from `own_choice`; None where there are none."""
    choice = own_choice(arch, load, machine)
    found = choice.candidates if choice else ()
    return next((item for item in found if item.weights == weights), None)


def has_engine(arch: Architecture, weights: str, use: Use) -> bool:
    """Return whether an engine or trainer of this package computes with such weights.

    Args:
        arch: model.
        weights: name of the weight type.
        use: what for; there is no trainer of adapters.

    Returns:
        Whether it does.
    """
    has_type = weights in (_SERVED if use == "serve" else _TRAINED)
    return has_type and use != "lora" and not unserved_traits(arch)


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
        Bytes per kind; None where the package has no engine for the model, its kernels do not run
        it, or the machine is not a calibrated CPU.
    """
    machine = next(iter(measured.values()), None)
    if machine is None or not machine.engine_process_bytes:
        return None
    if not has_engine(arch, weights, load.use) or beyond_kernels(arch):
        return None
    if load.use == "serve":
        return resident_serving_memory(
            arch,
            sequences=load.users,
            context=load.context,
            dtype=cast(StoredIn, weights),
            process_bytes=machine.engine_process_bytes,
        )
    return resident_training_memory(
        arch,
        batch=1,
        sequence_length=load.context,
        accumulation=2,  # a step has many sequences, so gradients wait for each other
        dtype="fp32" if weights == "fp32" else "bf16",
        process_bytes=machine.trainer_process_bytes,
    )
