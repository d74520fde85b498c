"""The part of `steelyard plan layout` that splits each kind of state over its own links."""

from typing import Any

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.advice import LayoutAdvice
from steelyard.plan.sharding import PLAIN, QUANTIZED, ShardSearch, search_shards
from steelyard.runs.report import Block, Cell, Column, Section, Table, Text
from steelyard.units import pretty

__all__ = ["plain_shards", "shard_section"]

_WIRES = {"compute dtype": PLAIN, "8-bit weights, 4-bit gradients": QUANTIZED}
_STATES = {
    "weight": "weights",
    "weight_copy": "second copy",
    "gradient": "gradients",
    "optimizer": "optimizer",
}


def shard_section(advice: LayoutAdvice) -> Section:
    """Show the best groups of replicas for each kind of state, on the wire of two kinds.

    Args:
        advice: ranked layouts; the batch is that of the best one.

    Returns:
        A table, and why a wire has none: replicas alone may not fit, or the batch not divide.
    """
    found, left_out = _found(advice)
    rows: list[list[Cell]] = [[name, *_cells(item)] for name, item in found.items()]
    blocks: list[Block] = [Text(f"None with {name}: {why}.") for name, why in left_out.items()]
    if rows:
        words = (
            "Replicas alone, each kind of state over the group of them that suits it; a group of 1 "
            "keeps all. The engines that layouts are exported to split all states alike."
        )
        heads = [*_STATES.values(), "micro-batch", "step", "memory"]
        columns = [Column("on the wire"), *(Column(name, align="right") for name in heads)]
        blocks = [Text(words), Table(columns, rows), *blocks]
    return Section("Shards by kind of state", blocks)


def plain_shards(advice: LayoutAdvice) -> dict[str, Any]:
    """Return the same as JSON values, by what is on the wire.

    Args:
        advice: ranked layouts.

    Returns:
        Groups, micro-batch, seconds of a step and bytes of memory, or why there are none.
    """
    found, left_out = _found(advice)
    return {name: {"left_out": why} for name, why in left_out.items()} | {
        name: {
            "groups": item.choice(item.best).groups,
            "micro_batch": item.choice(item.best).micro_batch,
            "step_s": item.cost.at(item.best).time_s,
            "memory_bytes": item.cost.at(item.best).memory.total,
        }
        for name, item in found.items()
    }


def _found(advice: LayoutAdvice) -> tuple[dict[str, ShardSearch], dict[str, str]]:
    """Search with each wire; return what was found, and why nothing was."""
    chosen = advice.search.choice(advice.chosen)
    batch = chosen["data"] * chosen["micro_batch"] * chosen["accumulation"]
    found, left_out = {}, {}
    for name, wire in _WIRES.items():
        try:
            found[name] = search_shards(
                advice.arch,
                advice.machine,
                count=chosen["num_accelerators"],
                global_batch=batch,
                sequence_length=advice.search.sequence_length,
                wires=(wire,),
            )
        except (ConfigError, InfeasibleError) as error:
            # A model that needs tensor or pipeline groups has no answer here: that is one.
            left_out[name] = str(error)
    return found, left_out


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
