"""Plans as files of the engines that run them, for `--export`."""

import json
from typing import Literal

from steelyard.config import to_plain
from steelyard.errors import InfeasibleError
from steelyard.plan import Plan
from steelyard.plan.engines import EngineName
from steelyard.plan.exports import (
    TrainingJob,
    to_megatron,
    to_own,
    to_skypilot,
    to_torchtitan,
)

__all__ = ["Engine", "engine_for", "export_text"]

Engine = Literal["megatron", "torchtitan", "own", "skypilot"]


def export_text(made: Plan, engine: Engine, *, per_node: int) -> str:
    """Return what an engine is started with.

    Args:
        made: the plan.
        engine: which engine; "skypilot" rents machines for Megatron-LM, or for torchtitan where
            Megatron-LM lacks what the plan needs.
        per_node: accelerators of a node.

    Returns:
        A shell script, a recipe in JSON, or a SkyPilot task in YAML.

    Raises:
        InfeasibleError: the engine lacks what the plan needs.
    """
    job = TrainingJob.of(made.choice, per_node=per_node)
    if engine == "own":
        return json.dumps(to_plain(to_own(job)), indent=1) + "\n"
    if engine == "skypilot":
        return to_skypilot(made, job, _command(job))
    return (to_megatron if engine == "megatron" else to_torchtitan)(job)


def engine_for(export: Engine | None) -> EngineName:
    """Return the engine that has to run a layout which is exported; empty for none.

    Args:
        export: what is asked for; rented machines run Megatron-LM where it has the model.

    Returns:
        The engine's name.
    """
    return "megatron" if export == "skypilot" else export or ""


def _command(job: TrainingJob) -> str:
    """Return the command of the first engine that runs the job."""
    try:
        return to_megatron(job)
    except InfeasibleError:
        return to_torchtitan(job)
