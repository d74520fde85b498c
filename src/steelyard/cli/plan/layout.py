"""`steelyard plan layout`: how a model lies best over given machines."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_json
from steelyard.cli.plan import shards
from steelyard.cli.plan.exporting import Engine, export_text
from steelyard.cli.plan.job_options import MOST_PASSES
from steelyard.cli.plan.no_plan import say_why_not
from steelyard.cli.plan.space_options import SpaceOptions
from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.plan.advice import LayoutAdvice
from steelyard.plan.changes import NoPlanError
from steelyard.plan.layouts import LayoutSearch
from steelyard.plan.machines import Machines, machines_of
from steelyard.plan.run_advice import advise_run, plan_of
from steelyard.plan.shapes import model_of
from steelyard.plan.types import layout_words
from steelyard.quantity import Z80
from steelyard.runs.pareto import pareto
from steelyard.runs.report import Cell, Chart, Column, Report, Section, Table, Text
from steelyard.units import parse, pretty

__all__ = ["layout"]

_MOST_DRAWN = 2_000
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
    space: SpaceOptions | None = None,
    json: Switch = False,
) -> int:
    """Rank the ways to lay a model over machines: time, memory, and how sure the order is.

    Every layout is tried: data, tensor (within a node), pipeline, context (parts of 4,096 tokens
    and more) and expert groups, chunks of layers, 1f1b and zero-bubble schedules, ZeRO stages over
    all replicas or groups of them, micro-batches of 1 to 8, no or full recomputation. An option
    that is given sets its axis.

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
        export: print what an engine is started with, in place of the ranking; only layouts that it
            runs are searched.
        space: axes of the layouts; one that is not given is searched.
        json: print the ranking as JSON.

    Returns:
        Exit status: 1 where no layout fits; the nearest changes that make one fit are said.
    """
    _refuse_one(cluster, accelerator)
    _check_least(
        ("--top", top, 1),
        ("--global-batch", global_batch, 0),
        ("--sequence-length", sequence_length, 1),
    )
    named = {"cluster": cluster, "accelerator": accelerator, "dtype": dtype}
    machines = machines_of(**named, count=count, nodes=nodes)
    arch, _ = model_of(model, sequence_length=sequence_length)
    wanted = parse(tokens, "token", where="--tokens") if tokens else 0.0
    axes = (space or SpaceOptions()).space(export=export)
    sizes = {"global_batch": global_batch, "sequence_length": sequence_length}
    try:
        advice = advise_run(arch, machines, tokens=wanted, space=axes, **sizes)
    except NoPlanError as error:
        return say_why_not(error, machines, json=json)
    # Named before it is answered: afterwards another measurement is the most telling one.
    asked = advice.probes()[0] if measured else None
    if asked:
        advice = advice.answered(parse(measured, "s", where="--measured"))
    if export:
        made = plan_of(advice, machines)
        print(export_text(made, export, per_node=machines.cluster.accelerators_per_node), end="")
        return 0
    report = _report(advice, machines, top, asked.name if asked else "")
    if chart:
        report.write_html(chart)
    if json:
        print_json(_plain(advice, top))
    else:
        _print(report, advice, model, named)
    return 0


def _print(report: Report, advice: LayoutAdvice, model: str, named: dict[str, str]) -> None:
    """Print the ranking, and how the first layout's step is looked at."""
    report.print()
    choice, arch = advice.search.choice(advice.chosen), advice.arch
    stages = choice["pipeline"] * choice["virtual_stages"]
    # Steps of dense decoders from the catalog are simulated, stages all alike.
    if arch.name != model or arch.num_experts or arch.num_layers % stages:
        return
    if choice["context"] > 1 or stages * choice["accumulation"] > MOST_PASSES:
        return
    words: list[object] = ["--model", model]
    for name in ("cluster", "accelerator"):
        words += [f"--{name}", named[name]] if named[name] else []
    for name in ("tensor", "pipeline", "data", "micro_batch", "schedule"):
        words += [f"--{name.replace('_', '-')}", choice[name]]
    words += ["--chunks", choice["virtual_stages"], "--micro-batches", choice["accumulation"]]
    words += ["--sequence-length", advice.search.sequence_length]
    words += ["--recompute"] if choice["recompute"] == "full" else []
    say_next("plan", "timeline", *words)


def _refuse_one(*names: str) -> None:
    """Refuse this machine, which has one accelerator."""
    if THIS_MACHINE in names:
        raise ConfigError(
            "this-machine has one accelerator: there is nothing to lay out",
            hint="ask `steelyard plan train --cluster this-machine` instead",
        )


def _check_least(*options: tuple[str, int, int]) -> None:
    """Refuse options below their least value, all at once."""
    wrong: list[SteelyardError] = [
        ConfigError(f"{name} is {value}, but must be at least {least}")
        for name, value, least in options
        if value < least
    ]
    if wrong:
        raise merged(wrong)


def _report(advice: LayoutAdvice, machines: Machines, top: int, answered: str) -> Report:
    """Lay the ranking out."""
    count = machines.cluster.num_accelerators
    sections = [
        Section("Layouts", [_ranking(advice, top), *_answered(advice, answered)]),
        Section("Time of a step", [_parts(advice)]),
        shards.shard_section(advice),
        Section("How sure", [Text(words) for words in _doubt(advice)]),
        Section("Charts", [_pareto(advice)]),
    ]
    fits = advice.search.fits
    head = f"{count} x {machines.accelerator.name} of {machines.cluster.name}"
    return Report(
        f"{advice.arch.name} on {head}",
        f"{pretty(advice.run_tokens, 'token')} take {pretty(advice.run_s, 's')} with the first "
        f"one; {len(fits):,} layouts searched, {int(fits.sum()):,} fit; simulated",
        sections,
    )


def _ranking(advice: LayoutAdvice, top: int) -> Table:
    """Make the table of the fastest layouts."""
    search, regret = advice.search, advice.regret
    middle, low, high = advice.interval()
    # An answer may have changed the order of the search: rank by expected times.
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
    # A single candidate that fits loses to none.
    if regret.runner_up >= 0:
        lost = f"{100 * regret.lost_s:.1f} % of the time"
        # An unknown price makes the money NaN, which is not above 0.
        money = f", {pretty(regret.lost_usd, 'USD')} of the run" if regret.lost_usd > 0 else ""
        words.append(
            f"The first one is fastest in {100 * float(regret.wins[regret.chosen]):.0f} %, "
            f"{advice.words[regret.runner_up]} in {100 * regret.runner_up_wins:.0f} %. Choosing "
            f"wrongly costs {lost}{money} on average."
        )
    probe = advice.probes()[0]
    before = float(advice.doubt.spread[regret.chosen])
    widths = [f"{100 * (np.expm1(Z80 * spread)):.0f} %" for spread in (before, probe.spread)]
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
    places = _drawn(search)
    spec = pareto(
        [layout_words(search.choice(int(place))) for place in places],
        (1e6 / search.tokens_per_s[places]).tolist(),
        search.memory_bytes[places].tolist(),
        titles=("time of a million tokens", "memory of an accelerator"),
        units=("s", "byte"),
        title="Layouts that fit, by time and memory",
    )
    left_out = int(search.fits.sum()) - len(places)
    more = f" {left_out:,} slower ones are not drawn." if left_out else ""
    return Chart(spec, f"Those on the line are beaten by none in both. Simulated.{more}")


def _drawn(search: LayoutSearch) -> NDArray[np.int64]:
    """Return the layouts to draw: the fastest, and those that none beats in time and memory."""
    places = np.flatnonzero(search.fits)
    ranked = places[np.argsort(-search.tokens_per_s[places], kind="stable")]
    memory = search.memory_bytes[ranked]
    # Going down from the fastest, what needs less memory than all before is beaten by none.
    before = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    return ranked[(memory < before) | (np.arange(len(ranked)) < _MOST_DRAWN)]


def _plain(advice: LayoutAdvice, top: int) -> dict[str, Any]:
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
        "searched": len(advice.search.fits),
        "fit": int(advice.search.fits.sum()),
        "shards": shards.plain_shards(advice),
        "lost_share": regret.lost_s,
        # JSON has no NaN: null says that the price is not known.
        "lost_usd": None if np.isnan(regret.lost_usd) else regret.lost_usd,
        "probe": {"name": probe.name, "forecast_s": probe.forecast_s, "spread": probe.spread},
        "tokens": advice.run_tokens,
    }
