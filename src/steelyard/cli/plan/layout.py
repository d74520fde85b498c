"""`steelyard plan layout`: how a model lies best over given machines."""

from pathlib import Path
from typing import Any

import numpy as np

from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.output import Switch, print_json
from steelyard.cli.plan import shards
from steelyard.cli.plan.exporting import Engine, export_text
from steelyard.config import to_plain
from steelyard.cost.bill import bill
from steelyard.cost.flops import model_flops_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.advice import LayoutAdvice, advise
from steelyard.plan.layouts import search_layouts
from steelyard.plan.machines import Machines, machines_of
from steelyard.plan.shapes import learning_rate, model_of
from steelyard.plan.types import Plan, layout_words
from steelyard.runs.pareto import pareto
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import parse, pretty

__all__ = ["layout"]

_PARTS = {
    "compute_s": "kernels",
    "tensor_s": "tensor-parallel traffic",
    "context_s": "context-parallel traffic",
    "expert_s": "expert traffic",
    "bubble_s": "pipeline bubble and transfers",
    "data_s": "data-parallel traffic",
    "host_s": "host transfers",
    "update_s": "optimizer update",
}


def layout(
    *,
    model: str,
    cluster: str = "",
    accelerator: str = "",
    count: int = 0,
    nodes: int = 0,
    global_batch: int = 0,
    sequence_length: int = 2048,
    tokens: str = "",
    dtype: str = "",
    top: int = 8,
    measured: str = "",
    chart: Path | None = None,
    export: Engine | None = None,
    json: Switch = False,
) -> None:
    """Rank the ways to lay a model over machines: time, memory, and how sure the order is.

    Example: steelyard plan layout --model gpt3-175b --cluster Selene --nodes 128

    Args:
        model: catalog name of the model, or its size, such as 1B.
        cluster: catalog name of the cluster, or this-machine.
        accelerator: catalog name of an accelerator to rent, in place of a cluster.
        count: accelerators to use; all of a cluster and 8 of an accelerator when 0.
        nodes: nodes of the cluster to use, 0 for all.
        global_batch: sequences of a step; about 4 million tokens when 0.
        sequence_length: tokens per sequence.
        tokens: training tokens of the run, such as 300B, for its time and money; 20 per parameter
            when empty.
        dtype: number format of the products; bf16 when empty.
        top: layouts to show.
        measured: time that the measurement took which the last answer asked for, such as "13 ms".
        chart: file of a page with charts.
        export: print what an engine is started with, in place of the ranking.
        json: print the ranking as JSON.
    """
    if THIS_MACHINE in (cluster, accelerator):
        raise ConfigError(
            "this-machine has one accelerator: there is nothing to lay out",
            hint="ask `steelyard plan train --cluster this-machine` instead",
        )
    if top < 1:
        raise ConfigError(f"--top is {top}, but must be at least 1")
    machines = machines_of(
        cluster=cluster, accelerator=accelerator, count=count, nodes=nodes, dtype=dtype
    )
    advice, run_tokens = _advice(machines, model, sequence_length, global_batch, tokens)
    asked = advice.probes()[0] if measured else None
    if asked:
        advice = advice.answered(parse(measured, "s", where="--measured"))
    if export:
        made = _plan(advice, machines, run_tokens)
        print(export_text(made, export, per_node=machines.cluster.accelerators_per_node), end="")
        return
    report = _report(advice, machines, run_tokens, top, asked.name if asked else "")
    if chart:
        report.write_html(chart)
    if json:
        print_json(_plain(advice, run_tokens, top))
    else:
        report.print()


def _advice(
    machines: Machines, model: str, sequence_length: int, global_batch: int, tokens: str
) -> tuple[LayoutAdvice, float]:
    """Search the layouts, and return the advice and the run's tokens."""
    arch, _ = model_of(model, sequence_length=sequence_length)
    machine = Machine.from_accelerator(
        machines.accelerator, dtype=machines.dtype, cluster=machines.cluster
    )
    count = machines.cluster.num_accelerators
    batch = global_batch or max(1, round(2**22 / sequence_length))
    search = search_layouts(
        arch, machine, counts=[count], global_batch=batch, sequence_length=sequence_length
    )
    if not len(search.fits):
        raise InfeasibleError(
            f"batch: no split of {count} accelerators divides {batch} sequences and "
            f"{arch.num_layers} layers",
            hint="change --global-batch or --nodes",
        )
    if not search.fits.any():
        least = float(search.memory_bytes.min())
        raise InfeasibleError(
            f"memory: {arch.name} needs at least {pretty(least, 'byte')} on each of {count} "
            f"{machine.name}, and {pretty(search.limit_bytes, 'byte')} are there after the reserve",
            hint=f"use about {np.ceil(least / search.limit_bytes):.0f} times as many --nodes, or "
            "accelerators with more memory",
        )
    flops = model_flops_per_token(arch, sequence_length)
    run_tokens = parse(tokens, "token", where="--tokens") if tokens else 20 * flops / 6
    duration_s = run_tokens / float(search.tokens_per_s[search.best(search.fits)])
    costs = bill(
        duration_s=duration_s,
        num_accelerators=count,
        accelerator=machines.accelerator,
        site=machines.site,
        pue=machines.cluster.pue,
        duration_relative=machine.time_relative,
    )
    spent = {item.quantity: item.value for item in costs.forecasts}.get("run.cost", float("nan"))
    return advise(search, arch, machine, run_usd=spent), run_tokens


def _report(
    advice: LayoutAdvice, machines: Machines, run_tokens: float, top: int, answered: str
) -> Report:
    """Lay the ranking out."""
    count = machines.cluster.num_accelerators
    sections = [
        Section("Layouts", [_ranking(advice, top), *_answered(advice, answered)]),
        Section("Time of a step", [_parts(advice)]),
        *shards.shard_section(advice),
        Section("How sure", [Text(words) for words in _doubt(advice)]),
        Section("Charts", [_pareto(advice)]),
    ]
    days = run_tokens / float(advice.search.tokens_per_s[advice.chosen])
    head = f"{count} x {machines.accelerator.name} of {machines.cluster.name}"
    return Report(
        f"{advice.arch.name} on {head}",
        f"{pretty(run_tokens, 'token')} take {pretty(days, 's')} with the first one; simulated",
        sections,
    )


def _ranking(advice: LayoutAdvice, top: int) -> Table:
    """Make the table of the fastest layouts."""
    search, regret = advice.search, advice.regret
    middle, low, high = advice.interval()
    places = np.argsort(middle, kind="stable")[:top].tolist()
    mfu = np.broadcast_to(search.cost.mfu, search.fits.shape)
    rows: list[list[Cell]] = []
    for place in places:
        at = int(advice.order[place])
        faster = float(advice.seconds[place] / middle[place])
        rows.append(
            [
                advice.words[place],
                pretty(float(middle[place]), "s"),
                f"{pretty(float(low[place]), 's')} to {pretty(float(high[place]), 's')}",
                pretty(float(search.tokens_per_s[at]) * faster, "token/s"),
                f"{100 * float(mfu[at]) * faster:.1f} %",
                pretty(float(search.memory_bytes[at]), "byte"),
                f"{100 * float(regret.wins[place]):.0f} %",
            ]
        )
    heads = ("step", "80 % interval", "throughput", "MFU", "memory", "is fastest in")
    columns = [Column("layout"), *(Column(name, align="right") for name in heads)]
    return Table(columns, rows)


def _parts(advice: LayoutAdvice) -> Table:
    """Make the table of what the first layout's step consists of."""
    cost = advice.search.cost.at(advice.chosen)
    rows: list[list[Cell]] = [
        [words, pretty(float(getattr(cost, name)), "s"), f"{100 * share:.1f} %"]
        for name, words in _PARTS.items()
        if (share := float(getattr(cost, name)) / float(cost.time_s)) > 0
    ]
    return Table([Column("part"), Column("time", align="right"), Column("share")], rows)


def _doubt(advice: LayoutAdvice) -> list[str]:
    """Say how often the choice loses, what that costs, and what to measure."""
    regret, words = advice.regret, []
    if regret.runner_up >= 0:
        lost = f"{100 * regret.lost_s:.1f} % of the time"
        money = f", {pretty(regret.lost_usd, 'USD')} of the run" if regret.lost_usd > 0 else ""
        words.append(
            f"The first one is fastest in {100 * float(regret.wins[regret.chosen]):.0f} %, "
            f"{advice.words[regret.runner_up]} in {100 * regret.runner_up_wins:.0f} %. Choosing "
            f"wrongly costs {lost}{money} on average."
        )
    probe = advice.probes()[0]
    before = float(advice.doubt.spread[regret.chosen])
    widths = [f"{100 * (np.exp(1.2816 * spread) - 1):.0f} %" for spread in (before, probe.spread)]
    words.append(
        f"Measure {probe.name} (forecast {pretty(probe.forecast_s, 's')}): the step's interval "
        f"narrows from {widths[0]} to {widths[1]} either way. Give its time with --measured."
    )
    return words


def _answered(advice: LayoutAdvice, asked: str) -> list[Text]:
    """Say what was measured, where something was."""
    shift = float(np.exp(advice.doubt.shift[advice.regret.chosen]))
    told = f"With {asked} measured, the first one's time is {shift:.2f} times its forecast."
    return [Text(told)] if asked else []


def _pareto(advice: LayoutAdvice) -> Chart:
    """Draw all layouts that fit by time and memory."""
    search = advice.search
    places = np.flatnonzero(search.fits)
    spec = pareto(
        [layout_words(search.choice(int(place))) for place in places],
        (1e6 / search.tokens_per_s[places]).tolist(),
        search.memory_bytes[places].tolist(),
        titles=("time of a million tokens", "memory of an accelerator"),
        units=("s", "byte"),
        title="Layouts that fit, by time and memory",
    )
    return Chart(spec, "Those on the line are beaten by none in both. Simulated.")


def _plain(advice: LayoutAdvice, run_tokens: float, top: int) -> dict[str, Any]:
    """Return the ranking as JSON values."""
    middle, low, high = advice.interval()
    regret, probe = advice.regret, advice.probes()[0]
    return {
        "layouts": [
            advice.search.choice(int(advice.order[place]))
            | {
                "step_s": [float(item[place]) for item in (middle, low, high)],
                "wins": float(regret.wins[place]),
                "memory_bytes": float(advice.search.memory_bytes[advice.order[place]]),
            }
            for place in np.argsort(middle, kind="stable")[:top].tolist()
        ],
        "shards": shards.plain_shards(advice),
        "lost_share": regret.lost_s,
        "lost_usd": None if np.isnan(regret.lost_usd) else regret.lost_usd,
        "probe": {"name": probe.name, "forecast_s": probe.forecast_s, "spread": probe.spread},
        "tokens": run_tokens,
    }


def _plan(advice: LayoutAdvice, machines: Machines, run_tokens: float) -> Plan:
    """Return the first layout as a plan, for exports."""
    choice = advice.search.choice(advice.chosen)
    length = advice.search.sequence_length
    batch = choice["data"] * choice["micro_batch"] * choice["accumulation"]
    flops = run_tokens * model_flops_per_token(advice.arch, length)
    return Plan(
        choice=choice
        | {
            "architecture": to_plain(advice.arch),
            "sequence_length": length,
            "steps": max(1, round(run_tokens / (batch * length))),
            "learning_rate": float(f"{learning_rate(flops):.3g}"),
            "dtype": machines.dtype,
            "accelerator": machines.cluster.accelerator,
        },
        forecasts=[],
    )
