"""`steelyard plan tomorrow`: from several days, the fleet that holds on one not seen."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import catalog
from steelyard.cli.output import Switch, print_report
from steelyard.cli.plan.limits import limit_s
from steelyard.errors import ConfigError
from steelyard.plan.service.case import ServiceCase
from steelyard.plan.service.days import DayLoad, days_of
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.tomorrow import DayPlacement, TomorrowPlan, plan_tomorrow
from steelyard.plan.shapes import model_of
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces import read_rows
from steelyard.serve.traces.columns import TraceColumns
from steelyard.units import pretty

__all__ = ["tomorrow"]


def tomorrow(
    *,
    model: str,
    machine: str,
    trace: tuple[Path, ...],
    ttft: str = "1 s",
    tpot: str = "50 ms",
    attainment: float = 0.9,
    sure: float = 0.9,
    draws: int = 12,
    per_node: int = 8,
    token_budget: int = 512,
    requests: int = 1000,
    seed: int = 0,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """From several days, find the fleet that holds on one not seen, beside that for the average.

    Example: steelyard plan tomorrow --model llama-3-8b --machine H100-SXM5-80GB --trace week.csv

    Days that may come are those of the traces, as they were and faster or slower by as much as days
    were found to differ. A minute of each hour is simulated.

    Args:
        model: catalog name of the model, or its size, such as 7B.
        machine: catalog name of the accelerator.
        trace: requests of several days, or of one each; repeat it, in the order of the days.
        ttft: longest time to the first token.
        tpot: longest mean time per further token of a request.
        attainment: share of a day's requests that has to keep both.
        sure: share of the days that may come on which it has to.
        draws: days to draw beside those of the traces.
        per_node: accelerators of a node.
        token_budget: most tokens of a step where prompts are divided.
        requests: requests that the search of arrangements simulates at each rate.
        seed: seed of moments and days.
        json: print both fleets as JSON.
        report: HTML file for the page.
    """
    _refuse_shares(attainment=attainment, sure=sure)
    if draws < 2 or requests < 100 or per_node < 1 or token_budget < 1:
        raise ConfigError("--draws is at least 2, --requests 100, --per-node and --token-budget 1")
    generator = np.random.default_rng(seed)
    days = _days(trace, generator)
    slo = Slo(ttft_s=limit_s(ttft, "--ttft"), tpot_s=limit_s(tpot, "--tpot"))
    load = _pooled(days, generator, requests)
    case = ServiceCase(
        arch=model_of(model)[0],
        accelerator=catalog.accelerator(machine),
        load=load,
        rate_per_s=float(np.mean([day.rate_per_s for day in days])),
        slo=slo,
        share=attainment,
        per_node=per_node,
        token_budget=token_budget,
    )
    progress = _say if sys.stderr.isatty() else lambda _: None
    found = case.search().run(case.rate_per_s)
    made = plan_tomorrow(
        found, days, slo, attainment, generator, sure=sure, draws=draws, progress=progress
    )
    page = _page(made, days, attainment, sure, machine)
    print_report(page, json=json, html=report, values=_both(made, days))


def _refuse_shares(**shares: float) -> None:
    """Refuse options that are shares and lie outside of (0, 1)."""
    for name, value in shares.items():
        if not 0 < value < 1:
            raise ConfigError(f"--{name} is {value}, but must lie between 0 and 1")


def _days(traces: tuple[Path, ...], generator: np.random.Generator) -> list[DayLoad]:
    """Return the days of all traces, in their order."""
    return [
        day
        for path in traces
        for day in days_of(path.name, TraceColumns.of(read_rows(path)), generator)
    ]


def _say(words: str) -> None:
    """Show what is simulated on a terminal."""
    sys.stderr.write(f"\r\x1b[2K{words[:100]}\r")


def _pooled(days: list[DayLoad], generator: np.random.Generator, count: int) -> ServiceLoad:
    """Return requests of all days together; those of the fullest where prompts share prefixes."""
    sharing = [day for day in days if day.shared.block_ids]
    if sharing:
        return max(sharing, key=lambda day: day.peak_per_s).load(generator, count)
    inputs, outputs = (
        np.concatenate([getattr(day, name) for day in days])
        for name in ("input_tokens", "output_tokens")
    )
    variation = float(np.mean([day.load(generator, 100).variation for day in days]))
    return ServiceLoad.drawn(inputs, outputs, generator, count=count, variation=variation)


def _both(made: TomorrowPlan, days: list[DayLoad]) -> dict[str, Any]:
    """Return both fleets as plain values."""
    return {
        "days": [
            {"name": day.name, "rate_per_s": day.rate_per_s, "peak_per_s": day.peak_per_s}
            for day in days
        ],
        "average": _values(made.average),
        "lasting": _values(made.lasting),
        "factors": list(made.factors),
    }


def _values(item: DayPlacement) -> dict[str, Any]:
    """Return a fleet as plain values."""
    return {
        "kind": item.candidate.arrangement.kind,
        "words": item.candidate.arrangement.words,
        "instances": item.instances,
        "accelerators": item.devices,
        "attainment_seen": list(item.seen),
        "attainment_tomorrow": list(item.tomorrow),
    }


def _page(
    made: TomorrowPlan, days: list[DayLoad], share: float, sure: float, machine: str
) -> Report:
    """Lay both fleets out."""
    rows: list[list[Cell]] = [
        [
            name,
            item.devices,
            f"{item.instances} x ({item.candidate.arrangement.words})",
            f"{np.mean(item.seen):.1%}",
            f"{min(item.seen):.1%}",
            f"{np.mean(np.asarray(item.tomorrow) >= share):.0%}",
            f"{min(item.tomorrow):.1%}",
        ]
        for name, item in (("average day", made.average), ("day not seen", made.lasting))
    ]
    heads = ("mean of the days", "worst of them", "days to come held", "worst to come")
    columns = [Column("holds on the"), Column(machine, align="right"), Column("fleet")]
    columns += [Column(head, align="right") for head in heads]
    more = made.lasting.devices - made.average.devices
    said = (
        f"{share:.0%} of the requests keep both limits on {sure:.0%} of the days to come: "
        f"{more:+d} accelerators over the fleet for the average day."
    )
    seen: list[list[Cell]] = [
        [
            day.name,
            pretty(day.rate_per_s, "request/s"),
            pretty(day.peak_per_s, "request/s"),
            f"{one:.1%}",
            f"{other:.1%}",
        ]
        for day, one, other in zip(days, made.average.seen, made.lasting.seen, strict=True)
    ]
    names = ("mean rate", "busiest part", "on the fleet for the average", "on that for tomorrow")
    low, high = min(made.factors), max(made.factors)
    return Report(
        f"A fleet for days to come, from {len(days)} days",
        said,
        [
            Section("", [Table(columns, rows)]),
            Section(
                "Days that were",
                [
                    Table([Column("day"), *(Column(name, align="right") for name in names)], seen),
                    Text(f"Busiest parts of days differ by factors from {low:.2f} to {high:.2f}."),
                    Text("Attainment is simulated; step times are those of the roofline."),
                ],
            ),
        ],
    )
