"""The part of `steelyard plan layout` that splits each kind of state over its own links."""

from typing import Any

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.advice import LayoutAdvice
from steelyard.plan.sharding import PLAIN, QUANTIZED, ShardSearch, search_shards
from steelyard.runs.report import Cell, Column, Section, Table, Text
from steelyard.units import pretty

__all__ = ["plain_shards", "shard_section"]

_WIRES = {"compute dtype": PLAIN, "8-bit weights, 4-bit gradients": QUANTIZED}
_STATES = {
    "weight": "weights",
    "weight_copy": "second copy",
    "gradient": "gradients",
    "optimizer": "optimizer",
}


def shard_section(advice: LayoutAdvice) -> list[Section]:
    """Show the best groups of replicas for each kind of state, on the wire of two kinds.

    Args:
        advice: ranked layouts; the batch is that of the best one.

    Returns:
        One section; nothing where a model needs more than replicas to fit, or its batch does not
        divide over them.
    """
    rows: list[list[Cell]] = [[name, *_cells(found)] for name, found in _found(advice)]
    if not rows:
        return []
    words = (
        "Replicas alone, each kind of state over the group of them that suits it; a group of 1 "
        "keeps all. The engines that layouts are exported to split all states alike."
    )
    heads = [*_STATES.values(), "micro-batch", "step", "memory"]
    columns = [Column("on the wire"), *(Column(name, align="right") for name in heads)]
    return [Section("Shards by kind of state", [Text(words), Table(columns, rows)])]


def plain_shards(advice: LayoutAdvice) -> dict[str, Any]:
    """Return the same as JSON values, by what is on the wire.

    Args:
        advice: ranked layouts.

    Returns:
        Groups, micro-batch, seconds of a step and bytes of memory; empty as `shard_section`.
    """
    return {
        name: {
            "groups": found.choice(found.best).groups,
            "micro_batch": found.choice(found.best).micro_batch,
            "step_s": found.cost.at(found.best).time_s,
            "memory_bytes": found.cost.at(found.best).memory.total,
        }
        for name, found in _found(advice)
    }


def _found(advice: LayoutAdvice) -> list[tuple[str, ShardSearch]]:
    """Search with each wire; nothing where no candidate fits, or the batch does not divide."""
    chosen = advice.search.choice(advice.chosen)
    batch = chosen["data"] * chosen["micro_batch"] * chosen["accumulation"]
    try:
        return [
            (
                name,
                search_shards(
                    advice.arch,
                    advice.machine,
                    count=chosen["num_accelerators"],
                    global_batch=batch,
                    sequence_length=advice.search.sequence_length,
                    wires=(wire,),
                ),
            )
            for name, wire in _WIRES.items()
        ]
    except (ConfigError, InfeasibleError):
        return []


def _cells(found: ShardSearch) -> list[Cell]:
    """Return the cells of the best candidate."""
    best = found.choice(found.best)
    cost = found.cost.at(found.best)
    groups = [
        f"{size} ({best.levels[state]})" if size > 1 else str(size or "-")
        for state, size in best.groups.items()
    ]
    return [
        *groups,
        str(best.micro_batch),
        pretty(cost.time_s, "s"),
        pretty(cost.memory.total, "byte"),
    ]
