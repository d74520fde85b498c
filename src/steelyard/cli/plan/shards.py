"""The part of `steelyard plan layout` that splits each kind of state over its own links."""

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.advice import LayoutAdvice
from steelyard.plan.sharding import PLAIN, QUANTIZED, ShardSearch, WireBits, search_shards
from steelyard.runs.report import Cell, Column, Section, Table, Text
from steelyard.units import pretty

__all__ = ["shard_section"]

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
    rows = [row for name, wire in _WIRES.items() for row in _row(advice, name, wire)]
    if not rows:
        return []
    words = (
        "Replicas alone, each kind of state over the group of them that suits it; a group of 1 "
        "keeps all. The engines that layouts are exported to split all states alike."
    )
    heads = [*_STATES.values(), "micro-batch", "step", "memory"]
    columns = [Column("on the wire"), *(Column(name, align="right") for name in heads)]
    return [Section("Shards by kind of state", [Text(words), Table(columns, rows)])]


def _row(advice: LayoutAdvice, name: str, wire: WireBits) -> list[list[Cell]]:
    """Return the row of the best groups, nothing where there are none."""
    chosen = advice.search.choice(advice.chosen)
    try:
        found = search_shards(
            advice.arch,
            advice.machine,
            count=chosen["num_accelerators"],
            global_batch=chosen["data"] * chosen["micro_batch"] * chosen["accumulation"],
            sequence_length=advice.search.sequence_length,
            wires=(wire,),
        )
    except (ConfigError, InfeasibleError):
        return []
    return [[name, *_cells(found)]]


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
