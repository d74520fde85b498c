"""The chain behind a placement: its memory, its tokens per second and their money."""

from collections.abc import Mapping

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.roofline import Machine, operator_times_s
from steelyard.cost.weights import WEIGHT_TYPES, stored_bytes
from steelyard.cost.why.chain import ChainStep
from steelyard.cost.why.engine import engine_step
from steelyard.cost.why.kernels import all_reduce_step, kernel_steps
from steelyard.cost.why.memory import fit_step, serving_memory_steps, training_memory_steps
from steelyard.cost.why.money import hour_steps, per_million_step
from steelyard.cost.why.training import step_time_steps
from steelyard.plan.fit import (
    RESERVE,
    Placement,
    adapter_parameters,
    known_hour,
    placed_precision,
    product_machines,
)
from steelyard.plan.own import own_candidate
from steelyard.plan.rates import (
    Load,
    accumulation_of,
    adapter_passes,
    listed,
    summed_bytes,
    training_cost,
)

__all__ = ["placement_chain"]


def placement_chain(
    arch: Architecture,
    record: Accelerator,
    measured: Mapping[str, Machine],
    item: Placement,
    *,
    context: int,
    users: int = 1,
    site: Site | None = None,
) -> list[ChainStep]:
    """Show how a placement's figures follow from one another.

    Args:
        arch: model that is placed.
        record: its accelerator.
        measured: measured rooflines of the accelerator by number format, none for published peaks.
        item: the placement.
        context: tokens of each sequence.
        users: sequences served together.
        site: place whose electricity own machines pay.

    Returns:
        Steps, each after those it needs: memory, then speed and money where they are known.
    """
    load = Load(use=item.use, context=context, users=users)
    steps = _memory_chain(arch, record, item, load)
    if item.tokens_per_s is None:
        return steps
    kind = WEIGHT_TYPES[item.weights]
    machines = product_machines(record, measured, kind, item.use)
    machine = next(found for found in machines if found.dtype == item.dtype)
    chains = {"serve": _decode_chain, "train": _training_chain, "lora": _adapter_chain}
    steps += chains[item.use](arch, machine, item, load)
    hour = known_hour(record, site)
    if hour and site and item.usd_per_million is not None:
        rate = item.tokens_per_s.value
        steps += hour_steps(record, site, hour)
        steps.append(per_million_step(hour, item.count, rate, item.usd_per_million))
    return steps


def _memory_chain(
    arch: Architecture, record: Accelerator, item: Placement, load: Load
) -> list[ChainStep]:
    """Show the bytes on each accelerator and what it offers."""
    kind = WEIGHT_TYPES[item.weights]
    offered = fit_step(record.memory_bytes, RESERVE, item.limit_bytes, record.name)
    if item.use == "serve":
        kept = serving_memory_steps(
            arch,
            item.memory,
            bytes_per_weight=kind.bytes_per_weight,
            table_bytes=kind.table_bytes,
            element_bytes=kind.activation_bytes,
            tokens_resident=load.context * load.users,
            count=item.count,
        )
        return [*kept, offered]
    kept = training_memory_steps(
        arch,
        item.memory,
        layout=item.layout,
        precision=placed_precision(arch, kind, item.use),
        micro_batch=1,
        sequence_length=load.context,
        adapters=adapter_parameters(arch) if item.use == "lora" else 0.0,
    )
    return [*kept, offered]


def _rate_step(item: Placement, formula: str, numbers: dict[str, float], said: str) -> ChainStep:
    """Show the tokens per second that the placement states."""
    assert item.tokens_per_s
    rate = item.tokens_per_s
    return ChainStep(
        name="tokens_per_s",
        formula=formula,
        numbers=numbers,
        value=rate.value,
        unit="token/s",
        source=said,
    )


def _decode_chain(
    arch: Architecture, machine: Machine, item: Placement, load: Load
) -> list[ChainStep]:
    """Show the time of one token of each user."""
    kind = WEIGHT_TYPES[item.weights]
    own = own_candidate(arch, load, machine, item.weights) if item.count == 1 else None
    steps = (
        [engine_step(own.parts, own.step_tpot.source)]
        if own
        else kernel_steps(listed(arch, "decode", load, kind.name, item.count), machine)
    )
    numbers = {"users": float(load.users), "kernel_time": steps[-1].value}
    if item.count == 1:
        said = "every user gets one token per pass"
        return [*steps, _rate_step(item, "users / kernel_time", numbers, said)]
    steps.append(all_reduce_step(machine, summed_bytes(arch, kind, load), item.count))
    numbers |= {"layers": float(arch.num_layers), "all_reduce_time": steps[-1].value}
    formula = "users / (kernel_time + 2 x layers x all_reduce_time)"
    said = "each layer sums over the group twice (arXiv 1909.08053, section 3)"
    return [*steps, _rate_step(item, formula, numbers, said)]


def _training_chain(
    arch: Architecture, machine: Machine, item: Placement, load: Load
) -> list[ChainStep]:
    """Show the time of an optimizer step."""
    cost = training_cost(arch, machine, load, item.layout)
    steps = step_time_steps(
        arch,
        machine,
        cost,
        layout=item.layout,
        micro_batch=1,
        accumulation=accumulation_of(load, item.layout),
        sequence_length=load.context,
    )
    numbers = {"step_tokens": cost.tokens, "step_time": cost.time_s}
    said = "tokens of a step on all accelerators"
    return [*steps, _rate_step(item, "step_tokens / step_time", numbers, said)]


def _adapter_chain(
    arch: Architecture, machine: Machine, item: Placement, load: Load
) -> list[ChainStep]:
    """Show the time of a pass with adapters: no gradients of the frozen weights."""
    kind = WEIGHT_TYPES[item.weights]
    table = listed(arch, "train", load, kind.name, 1)
    frozen, forward = adapter_passes(table)
    steps = kernel_steps(table, machine, among=frozen)
    numbers = {
        "replicas": float(item.layout.data),
        "context": float(load.context),
        "kernel_time": steps[-1].value,
    }
    pass_time = "kernel_time"
    if item.layout.recompute == "full":
        times = table.count * operator_times_s(table, machine)
        numbers["repeated_time"] = float(times[forward].sum())
        pass_time = "(kernel_time + repeated_time)"
    if item.layout.zero_stage == 3:
        # Frozen weights are gathered for the forward and the backward pass.
        size = stored_bytes(arch, kind)
        steps.append(all_reduce_step(machine, size, item.layout.data, name="gather_time"))
        numbers["gather_time"] = float(all_reduce_s(machine, size, item.layout.data))
        pass_time = f"max({pass_time}, gather_time)"
    said = "forward and backward without gradients of frozen weights (arXiv 2106.09685)"
    return [*steps, _rate_step(item, f"replicas x context / {pass_time}", numbers, said)]
