"""Which layouts the engines run that plans are exported to, as a mask over arrays of layouts."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.layout import RECOMPUTE, SCHEDULES

__all__ = ["EngineName", "runs_on"]

EngineName = Literal["", "megatron", "torchtitan", "own"]
Array = NDArray[Any]


def runs_on(engine: EngineName, arch: Architecture, columns: dict[str, Array]) -> Array:
    """Return which layouts an engine runs; `plan.exports` refuses the others by name.

    Args:
        engine: the engine; every layout runs on the empty one.
        arch: model that is trained.
        columns: fields of `cost.layout.Layout` [layouts], words as their indices.

    Returns:
        Truth values [layouts].
    """
    if not engine:
        return np.ones(len(columns["data"]), bool)
    plain = columns["schedule"] == SCHEDULES.index("1f1b")
    here = ~(columns["offload_optimizer"] | columns["offload_activations"]).astype(bool)
    rules = {"megatron": _megatron, "torchtitan": _torchtitan, "own": _own}
    return here & plain & rules[engine](arch, columns)


def _grouped(columns: dict[str, Array]) -> Array:
    """Return where some state is shared by fewer than all replicas."""
    return columns["optimizer_shards"] + columns["gradient_shards"] + columns["weight_shards"] > 0


def _alike(columns: dict[str, Array]) -> Array:
    """Return where one size of group shares all that the stage shards."""
    stage, size = columns["zero_stage"], columns["optimizer_shards"]
    gradients = np.where(stage >= 2, columns["gradient_shards"] == size, True)
    return gradients & np.where(stage >= 3, columns["weight_shards"] == size, True)


def _megatron(arch: Architecture, columns: dict[str, Array]) -> Array:
    """Return what Megatron-LM runs: no gradients or weights are sharded under a pipeline."""
    del arch
    whole = (columns["zero_stage"] < 2) | (columns["pipeline"] == 1)
    # Whole experts have replicas of their own, and its groups would have to divide both.
    apart = (columns["expert"] == 1) | ~_grouped(columns)
    # It sums over tensor groups between experts only where these split the sequence.
    lone = (columns["expert"] == 1) | (columns["tensor"] == 1)
    split = lone | (columns["sequence_parallel"] > 0)
    return whole & apart & split & _alike(columns)


def _torchtitan(arch: Architecture, columns: dict[str, Array]) -> Array:
    """Return what torchtitan runs: it shards more than optimizer states, and splits layers evenly.

    Parts of a sequence always share states there.
    """
    stage, parts = columns["zero_stage"], columns["context"]
    even = arch.num_layers % (columns["pipeline"] * columns["virtual_stages"]) == 0
    shared = (stage > 0) | (parts == 1)
    size = columns["optimizer_shards"]
    apart = (columns["expert"] == 1) | ~_grouped(columns)
    return (stage != 1) & even & shared & (size % parts == 0) & apart & _alike(columns)


def _own(arch: Architecture, columns: dict[str, Array]) -> Array:
    """Return what this package's trainer runs: tensor and data parallelism, nothing recomputed."""
    del arch
    degrees = [columns[name] == 1 for name in ("pipeline", "context", "expert", "virtual_stages")]
    stages = np.isin(columns["zero_stage"], (0, 3))
    kept = columns["recompute"] == RECOMPUTE.index("none")
    return np.logical_and.reduce([*degrees, stages, kept, ~_grouped(columns)])
