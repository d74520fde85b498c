"""What `steelyard sim serve` prints: times of requests, and what each instance did."""

from typing import Any

from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.serve.fleet_replay import FleetReplay
from steelyard.units import pretty

__all__ = ["page", "values"]

_HOUR_S = 3600.0
_NAMES = {
    "ttft": "time to the first token",
    "tpot": "time per further token",
    "completion": "completion",
}


def values(replay: FleetReplay) -> dict[str, Any]:
    """Return the figures for programs."""
    return {
        "requests": len(replay.jobs),
        "span_s": replay.span_s,
        "seconds": replay.quantiles(),
        "prefix_hits": replay.prefix_hits,
        "instance_hours": replay.instance_s / _HOUR_S,
        "cold_starts": replay.num_starts,
        "provenance": "simulated",
        "instances": [
            {
                "role": item.role,
                "prompts": sum(job.first == place for job in replay.jobs),
                "busy": busy,
            }
            for place, (item, busy) in enumerate(zip(replay.replicas, replay.busy(), strict=True))
        ],
    }


def page(replay: FleetReplay, told: dict[str, Any]) -> Report:
    """Make the page."""
    figures = values(replay)
    said = Text(
        f"{replay.prefix_hits:.1%} of the prompt tokens were found in a cache; "
        f"{figures['instance_hours']:,.2f} instance-hours, {replay.num_starts} cold starts."
    )
    learned = f", after {told['learned_from']} that taught lengths" if told["learned_from"] else ""
    return Report(
        f"{told['model']} on {len(replay.replicas)} instances, routing {told['routing']}",
        f"{len(replay.jobs):,} requests in {pretty(replay.span_s, 's')}{learned}; simulated",
        [
            Section("Requests", [_times(replay), said]),
            Section("Instances", [_instances(figures)]),
        ],
    )


def _times(replay: FleetReplay) -> Table:
    """List the times of requests."""
    rows: list[list[Cell]] = []
    heads: list[str] = []
    for name, found in replay.quantiles().items():
        heads = list(found)
        rows.append([_NAMES[name], *(pretty(value, "s") for value in found.values())])
    return Table([Column("time"), *(Column(name, align="right") for name in heads)], rows)


def _instances(figures: dict[str, Any]) -> Table:
    """List the instances."""
    rows: list[list[Cell]] = [
        [str(place), item["role"], f"{item['prompts']:,}", f"{item['busy']:.0%}"]
        for place, item in enumerate(figures["instances"])
    ]
    heads = [
        Column("instance"),
        Column("role"),
        Column("prompts", align="right"),
        Column("busy", align="right"),
    ]
    return Table(heads, rows)
