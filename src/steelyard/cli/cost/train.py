"""`steelyard cost train`: one optimizer step on one accelerator."""

from typing import TYPE_CHECKING, Any

from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.cost.subject import (
    Money,
    Price,
    Subject,
    check_recompute,
    derived,
    parts_of,
    print_costs,
)
from steelyard.cli.following import say_next
from steelyard.cli.records import records_of

if TYPE_CHECKING:
    from steelyard.catalog import Architecture
    from steelyard.cost import Machine, StepCost
    from steelyard.cost.why.chain import ChainStep

__all__ = ["train"]


def train(
    *,
    subject: Subject,
    micro_batch: int = 1,
    sequence_length: int = 2048,
    accumulation: int = 1,
    recompute: str = "none",
    price: Price | None = None,
) -> int:
    """Forecast one optimizer step on one accelerator.

    Example: steelyard cost train --model gpt2-xl --machine L40S --micro-batch 4

    Args:
        subject: model and machine.
        micro_batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step.
        recompute: activations that the backward pass computes again: none, selective or full.
        price: rent, and whether the chain is shown.

    Returns:
        Exit status: 1 where the memory does not suffice.
    """
    check_recompute(recompute)
    from steelyard.cli.shortage import shortage
    from steelyard.cost import Layout, training_step
    from steelyard.plan.intervals import step_relative, timed

    device = subject.roofline()
    arch = subject.architecture()
    shape: dict[str, Any] = {
        "layout": Layout(recompute=recompute),
        "micro_batch": micro_batch,
        "sequence_length": sequence_length,
        "accumulation": accumulation,
    }
    step = training_step(arch, machine=device, **shape)
    rate = step.tokens / step.time_s
    forecasts = timed(
        device,
        {"train.step_time": step.time_s, "train.throughput": rate, "train.mfu": step.mfu},
        relative=step_relative(device, step, arch),
    )
    said = "weights, optimizer and saved activations"
    forecasts.append(derived("train.peak_memory", step.memory.total, 0.15, said))
    asked = price or Price()
    money = Money.of(asked, subject.machine, rate)
    lack = shortage(arch, device, step.memory.total, "train", context=sequence_length)
    print_costs(
        lack or f"Training {subject.model} on {subject.machine}",
        f"{step.tokens:,.0f} tokens per step",
        forecasts,
        parts_of(step, "s", "compute_s", "update_s"),
        json=subject.json,
        money=money,
        why=_chain(arch, device, step, shape, money) if asked.why else None,
        records=records_of(subject.machine, "train"),
    )
    if not subject.json:
        _say_next(subject, bool(lack))
    return 1 if lack else 0


def _chain(
    arch: "Architecture", device: "Machine", step: "StepCost", shape: dict[str, Any], money: Money
) -> "list[ChainStep]":
    """Return the chain from memory and kernels to the time of a step and its money."""
    from steelyard.cost.memory import MIXED, PURE_FP32
    from steelyard.cost.why.memory import training_memory_steps
    from steelyard.cost.why.training import step_time_steps, utilization_step

    precision = PURE_FP32 if device.dtype_bytes >= 4 else MIXED
    return [
        *training_memory_steps(arch, step.memory, precision=precision, **shape),
        *step_time_steps(arch, device, step, **shape),
        utilization_step(device, step, 1),
        *money.steps(),
    ]


def _say_next(subject: Subject, lacks: bool) -> None:
    """Say what to ask after a step: where it fits, or what a day of it buys."""
    if lacks:
        say_next("plan", "fit", subject.model, "--use", "train")
    elif subject.machine == THIS_MACHINE:
        say_next("plan", "train", "--budget", "1 day", "--cluster", THIS_MACHINE)
    else:
        where = ("--accelerator", subject.machine, "--count", "8", "--model", subject.model)
        say_next("plan", "train", "--budget", "1 day", *where)
