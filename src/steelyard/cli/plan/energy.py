"""`steelyard plan energy`: width, copies, clock and batch of least energy for a load."""

import math
from pathlib import Path

import numpy as np

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator
from steelyard.cli.output import Switch, print_report
from steelyard.config import to_plain
from steelyard.cost.carbon import grid_g_per_kwh
from steelyard.cost.energy import J_PER_KWH
from steelyard.errors import ConfigError
from steelyard.plan.energy import (
    EnergyGoal,
    KnobPlan,
    Knobs,
    KnobSetting,
    plan_knobs,
)
from steelyard.plan.energy_models import energy_models
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.serve.traces import TraceRow, load_rows, synthetic_rows
from steelyard.sim.power import HIGH, RowRequests
from steelyard.units import parse, pretty

__all__ = ["energy"]

_SHOWN = 8


def energy(
    *,
    model: str = "llama-2-70b",
    accelerator: str = "A100-SXM4-80GB",
    count: int = 16,
    trace: Path | None = None,
    rate: str = "",
    requests: int = 2000,
    prompt: int = 512,
    output: int = 256,
    ttft: str = "2 s",
    tpot: str = "100 ms",
    violations: float = 0.01,
    widths: tuple[int, ...] = (1, 2, 4, 8),
    clocks: tuple[float, ...] = Knobs().clocks,
    batches: tuple[int, ...] = Knobs().batches,
    power_cap: str = "",
    site: str = "world-average",
    seed: int = 0,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Find width, copies, clock and batch of least energy per token that keep a latency goal.

    Example: steelyard plan energy --rate '2 request/s' --count 16 --ttft '2 s' --tpot '100 ms'

    Args:
        model: catalog name of the model, or its size, such as 7B.
        accelerator: catalog name.
        count: accelerators at hand; those that no copy needs are off.
        trace: file of requests, in any format of serve bench.
        rate: requests per second, such as 2; those of a trace are brought to it.
        requests: requests that are simulated; the first of a trace.
        prompt: mean prompt length in tokens, without a trace.
        output: mean output length in tokens, without a trace.
        ttft: longest time to the first token.
        tpot: longest mean time per further token.
        violations: share of the requests that may miss either.
        widths: accelerators of a copy to try.
        clocks: clocks over the highest to try.
        batches: most requests of a copy at once to try.
        power_cap: power cap of each accelerator, such as "300 W"; none when empty.
        site: catalog name of the place with its grid.
        seed: seed of what is drawn.
        json: print the plan as JSON.
        report: HTML file for the page.
    """
    goal = EnergyGoal(
        ttft_s=parse(ttft, "s", where="--ttft"),
        tpot_s=parse(tpot, "s", where="--tpot"),
        violations=violations,
    )
    if requests < 1 or count < 1:
        raise ConfigError(f"--requests is {requests} and --count {count}, but both are at least 1")
    knobs = Knobs(clocks=clocks, batches=batches, cap_w=_cap_w(power_cap))
    chip = catalog.accelerator(accelerator)
    rows = _rows(trace, rate, requests, prompt, output, seed)
    stream = RowRequests.of(
        [row.arrival_s for row in rows],
        [row.input_tokens for row in rows],
        [row.output_tokens for row in rows],
        np.full(len(rows), HIGH),
    )
    models = energy_models(model, chip, widths)
    made = plan_knobs(models, stream, goal, accelerators=count, knobs=knobs)
    grams = grid_g_per_kwh(catalog.site(site))
    print_report(
        _page(made, chip, model, grams),
        json=json,
        html=report,
        values=to_plain(made) | {"saving": made.saving, "carbon_g_per_kwh": grams},
    )


def _cap_w(text: str) -> float:
    """Read a power cap, infinite when empty."""
    return parse(text, "W", where="--power-cap") if text else math.inf


def _rows(
    trace: Path | None, rate: str, requests: int, prompt: int, output: int, seed: int
) -> list[TraceRow]:
    """Read or draw the requests."""
    rng = np.random.default_rng(seed)
    if trace is None and not rate:
        raise ConfigError(
            "neither --trace nor --rate is given", hint="such as --rate '2 request/s'"
        )
    per_s = parse(rate, "request/s", where="--rate") if rate else None
    if trace is not None:
        return load_rows(trace, rng, limit=requests, rate_per_s=per_s)
    assert per_s is not None
    return synthetic_rows(
        rng,
        num_requests=requests,
        rate_per_s=per_s,
        mean_prompt=prompt,
        mean_output=output,
        max_prompt=8 * prompt,
        max_output=8 * output,
    )


def _page(made: KnobPlan, chip: Accelerator, model: str, grams: float) -> Report:
    """Make the page: the best, the untuned, and what comes next."""
    shown = list(made.settings[:_SHOWN])
    rows = [_row(item, chip, grams) for item in shown]
    # The untuned setting is always a row: the saving is against it.
    if made.fastest is not None and made.fastest not in shown:
        rows.append(_row(made.fastest, chip, grams))
    heads = (
        "copies",
        "clock",
        "batch",
        "power",
        "J a token",
        "g a M token",
        "ttft p99",
        "tpot p99",
    )
    columns = [Column("width"), *(Column(words, align="right") for words in heads)]
    words = [f"What keeps it from taking less: {made.binding}."]
    if made.fastest is not None:
        saved = f"{made.saving:.0%} less energy than {_words(made.fastest, chip)}"
        words.insert(0, f"The first row takes {saved}, the widest copies at the full clock.")
    return Report(
        f"{model} on {_words(made.best, chip)}",
        "least energy per token first; simulated",
        [Section("Settings", [Table(columns, rows), Text(" ".join(words))])],
    )


def _words(item: KnobSetting, chip: Accelerator) -> str:
    """Name a setting."""
    return f"{item.replicas} x {item.tensor_parallel} {chip.name} at {item.clock:.0%} of the clock"


def _row(item: KnobSetting, chip: Accelerator, grams: float) -> list[Cell]:
    """List one setting."""
    return [
        f"{item.tensor_parallel}",
        item.replicas,
        f"{item.clock:.0%}",
        item.batch,
        pretty(item.power_w, "W"),
        f"{item.energy_per_token_j:.3g}",
        f"{item.energy_per_token_j / J_PER_KWH * grams * 1e6:,.0f}",
        pretty(item.ttft_s, "s"),
        pretty(item.tpot_s, "s"),
    ]
