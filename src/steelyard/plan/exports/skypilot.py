"""SkyPilot tasks: rented machines that run an exported command."""

import json
import re

from steelyard.errors import ConfigError
from steelyard.plan.exports.job import TrainingJob
from steelyard.plan.types import Plan
from steelyard.units import pretty

__all__ = ["to_skypilot"]

_NAMES = (
    (r"^A100.*80GB", "A100-80GB"),
    (r"^V100.*32GB", "V100-32GB"),
    (r"^RTX-(3090|4090|5090)$", r"RTX\1"),
    (r"^(GH200|B200|H200|H100|A100|V100|P100|L40S|L4|A10|T4|MI300X)\b", r"\1"),
)
"""SkyPilot's names of accelerators, by those of the catalog."""


def to_skypilot(plan: Plan, job: TrainingJob, command: str) -> str:
    """Write a SkyPilot task that runs an exported command on rented machines.

    Args:
        plan: the plan, whose time and money are told in comments.
        job: the plan's job.
        command: script that trains it, as `to_megatron` and `to_torchtitan` return it.

    Returns:
        YAML. Each node runs the script with its rank; the first node's address is SkyPilot's.

    Raises:
        ConfigError: the accelerator has no name in SkyPilot.
    """
    name = _accelerator(str(plan.choice["accelerator"]))
    told = {item.quantity: item for item in plan.forecasts}
    lines = ["# Forecast:"]
    for quantity, unit in (("train.total_time", "s"), ("run.cost", "USD"), ("run.energy", "J")):
        if quantity in told:
            value = told[quantity]
            low, high = pretty(value.low, unit), pretty(value.high, unit)
            lines.append(f"#   {quantity}: {pretty(value.value, unit)} ({low} to {high})")
        elif quantity in plan.unknown:
            lines.append(f"#   {quantity}: unknown, {plan.unknown[quantity]}")
    lines += [
        f"name: {json.dumps(_task_name(job.architecture.name))}",
        f"num_nodes: {job.num_nodes}",
        "resources:",
        f"  accelerators: {json.dumps(f'{name}:{job.processes_per_node}')}",
        "  network_tier: best",
        "run: |",
        '  MASTER=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
    ]
    joined = '--node-rank "$SKYPILOT_NODE_RANK" --master-addr "$MASTER" --master-port 29500'
    body = command.removeprefix("#!/usr/bin/env bash\n").replace('"$@"', "$TRAIN_ARGUMENTS")
    body = body.replace("exec torchrun ", f"torchrun {joined} ", 1)
    lines += [f"  {line}" for line in body.splitlines()]
    lines += ["envs:", "  TRAIN_ARGUMENTS: null  # data, tokenizer, folders"]
    return "\n".join(lines) + "\n"


def _accelerator(name: str) -> str:
    """Return SkyPilot's name of an accelerator."""
    for pattern, told in _NAMES:
        found = re.match(pattern, name)
        if found:
            return found.expand(told)
    raise ConfigError(
        f"SkyPilot's name of {name!r} is not known",
        hint="export the command alone, and choose the machines yourself",
    )


def _task_name(name: str) -> str:
    """Return a task's name: letters, digits and dashes."""
    return "train-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model")
