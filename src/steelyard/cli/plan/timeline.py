"""`steelyard plan timeline`: one step of training, simulated device by device."""

from pathlib import Path

import numpy as np

from steelyard.cli.laws.options import chart_file
from steelyard.cli.output import Switch, print_json
from steelyard.cli.plan.job_options import JobOptions
from steelyard.cli.plan.step_options import StepOptions
from steelyard.errors import ConfigError, SteelyardError
from steelyard.plan.timeline import StepReport, other_schedules, plan_timeline
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.runs.save import save_chart
from steelyard.sim.step import lanes_chart, write_chrome_trace
from steelyard.sim.step.training import TrainingStep
from steelyard.units import pretty

__all__ = ["timeline"]

_MOST_BARS = 20_000
_ROWS = 16


def timeline(
    *,
    job: JobOptions,
    options: StepOptions | None = None,
    trace: Path | None = None,
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Simulate one step of training, device by device, with the closed forms beside.

    Example: steelyard plan timeline --model gpt3-175b --cluster Selene --tensor 8 --pipeline 8
    --micro-batches 16 --schedule zero-bubble --chart step.html

    Args:
        job: model, machines, layout and batch.
        options: overlaps, the model's block and slow machines.
        trace: file of the timeline for chrome://tracing and ui.perfetto.dev.
        chart: file for the picture of the timeline, .html, .svg, .png or .json.
        json: print the numbers as JSON.
    """
    chart_file(chart)
    chosen = options or StepOptions()
    step = job.step(chosen, *_too_long(job, chart))
    made = plan_timeline(step, chosen.slow_machines())
    title = f"{job.model}: one step of {step.num_accelerators:,} x {step.machine.name}"
    _save(made, title, trace, chart)
    if json:
        print_json(_plain(step, made))
    else:
        _print(step, made, title)


def _too_long(job: JobOptions, chart: Path | None) -> list[SteelyardError]:
    """Return what is wrong with drawing so many passes, forward and backward."""
    bars = 2 * job.num_passes
    if chart is None or bars <= _MOST_BARS:
        return []
    return [
        ConfigError(
            f"--chart would have {bars:,} bars or more, but {_MOST_BARS:,} are the most",
            hint="write --trace instead, or use fewer micro-batches",
        )
    ]


def _save(made: StepReport, title: str, trace: Path | None, chart: Path | None) -> None:
    """Write the files that were asked for."""
    if trace is not None:
        write_chrome_trace(made.timeline, trace)
    if chart is not None:
        save_chart(lanes_chart(made.timeline, title), chart)


def _plain(step: TrainingStep, made: StepReport) -> dict[str, object]:
    """Return the numbers as JSON values."""
    return {
        "accelerators": step.num_accelerators,
        "time_s": made.time_s,
        "mfu": made.mfu,
        "idle": made.idle.tolist(),
        "activation_bytes": made.activation_bytes.tolist(),
        "path_s": made.path_s,
        "straggling_s": made.straggling_s,
        "closed": {
            "time_s": made.cost.time_s,
            "mfu": made.cost.mfu,
            "bubble_s": made.cost.bubble_s,
            "idle": made.closed_idle,
            "activation_bytes": made.cost.memory.activations,
            "memory_bytes": made.cost.memory.total,
        },
    }


def _print(step: TrainingStep, made: StepReport, title: str) -> None:
    """Print the numbers as tables."""
    cost, busiest = made.cost, made.idle.min()
    rows: list[list[Cell]] = [
        ["time of the step", pretty(made.time_s, "s"), pretty(cost.time_s, "s")],
        ["MFU", f"{made.mfu:.1%}", f"{cost.mfu:.1%}"],
        ["idle share of the busiest rank", f"{busiest:.1%}", f"{made.closed_idle:.1%}"],
        [
            "most activations of a rank",
            pretty(float(made.activation_bytes.max()), "byte"),
            pretty(cost.memory.activations, "byte"),
        ],
        ["memory of the fullest", "", pretty(cost.memory.total, "byte")],
        ["memory of an accelerator", "", pretty(step.machine.memory_bytes, "byte")],
    ]
    if made.straggling_s is not None:
        slow_mfu = step.mfu(made.straggling_s)
        rows.append(["mean step with slow machines", pretty(made.straggling_s, "s"), ""])
        rows.append(["MFU with slow machines", f"{slow_mfu:.1%}", ""])
    both = Table(columns=[Column(""), *_right("simulated", "closed form")], rows=rows)
    path = Table(
        columns=[Column("on the critical path"), *_right("time", "share")],
        rows=[
            [op.replace("_", " "), pretty(value, "s"), f"{value / made.time_s:.1%}"]
            for op, value in made.path_s.items()
        ],
    )
    subtitle = (
        f"{made.timeline.graph.name}: {step.num_micro_batches} micro-batches over {step.pipeline} "
        f"ranks, {step.tensor} x tensor, {step.data} x data"
    )
    sections = [
        Section("Simulated beside closed forms", [both]),
        Section("Ranks", [_ranks(step, made)]),
        Section("What sets the time", [path]),
    ]
    Report(title, subtitle, sections).print()


def _ranks(step: TrainingStep, made: StepReport) -> Table:
    """Tabulate the ranks of the pipeline, with what other schedules would take below."""
    other = other_schedules(step)
    caption = "; ".join(f"{name} would take {pretty(value, 's')}" for name, value in other.items())
    # Of a long pipeline, ranks are shown that are equally far apart, both ends among them.
    last = step.pipeline - 1
    shown = np.unique(np.linspace(0, last, min(_ROWS, step.pipeline)).round().astype(int))
    return Table(
        columns=[Column("rank", align="right"), *_right("idle", "most activations")],
        rows=[
            [
                f"{rank}",
                f"{made.idle[rank]:.1%}",
                pretty(float(made.activation_bytes[rank]), "byte"),
            ]
            for rank in shown
        ],
        caption=caption,
    )


def _right(*names: str) -> list[Column]:
    return [Column(name, align="right") for name in names]
