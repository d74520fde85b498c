"""`steelyard plan timeline`: one step of training, simulated device by device."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from steelyard import catalog
from steelyard.cli.laws.options import chart_file
from steelyard.cli.output import Switch, print_json
from steelyard.cli.plan.step_options import StepOptions
from steelyard.cli.plan.train import check_one
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.plan.machines import machines_of
from steelyard.plan.timeline import StepReport, other_schedules, plan_timeline
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.runs.save import save_chart
from steelyard.sim.step import lanes_chart, write_chrome_trace
from steelyard.sim.step.training import TrainingStep
from steelyard.units import pretty

__all__ = ["ScheduleName", "step_of", "timeline"]

_MOST_PASSES = 300_000
_MOST_BARS = 20_000
_ROWS = 16

ScheduleName = Literal["1f1b", "gpipe", "zero-bubble"]


def timeline(
    *,
    model: str,
    cluster: str = "",
    accelerator: str = "",
    pipeline: int = 1,
    tensor: int = 1,
    data: int = 1,
    chunks: int = 1,
    micro_batches: int = 1,
    micro_batch: int = 1,
    sequence_length: int = 2048,
    schedule: ScheduleName = "1f1b",
    recompute: Switch = False,
    options: StepOptions | None = None,
    dtype: str = "",
    trace: Path | None = None,
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Simulate one step of training, device by device, with the closed forms beside.

    Example: steelyard plan timeline --model gpt3-175b --cluster Selene --tensor 8 --pipeline 8
    --micro-batches 16 --schedule zero-bubble --chart step.html

    Args:
        model: catalog name of a dense decoder.
        cluster: catalog name of the cluster, or this-machine.
        accelerator: catalog name of an accelerator, in place of a cluster.
        pipeline: ranks of the pipeline.
        tensor: accelerators that a layer is split over, with sequence parallelism.
        data: replicas, which share optimizer states.
        chunks: stages per rank; several make 1f1b interleaved.
        micro_batches: micro-batches per step and replica.
        micro_batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        schedule: order of the passes: 1f1b, gpipe or zero-bubble.
        recompute: run each forward pass again before its backward pass.
        options: overlaps, the model's block and slow machines.
        dtype: number format of the products; bf16 on published accelerators when empty.
        trace: file of the timeline for chrome://tracing and ui.perfetto.dev.
        chart: file for the picture of the timeline, .html, .svg, .png or .json.
        json: print the numbers as JSON.
    """
    chart_file(chart)
    chosen = options or StepOptions()
    step = step_of(
        model=model,
        cluster=cluster,
        accelerator=accelerator,
        dtype=dtype,
        sizes={
            "pipeline": pipeline,
            "tensor": tensor,
            "data": data,
            "num_chunks": chunks,
            "num_micro_batches": micro_batches,
            "micro_batch": micro_batch,
            "sequence_length": sequence_length,
        },
        schedule=schedule,
        recompute=recompute,
        options=chosen,
        chart=chart,
    )
    made = plan_timeline(step, chosen.slow_machines())
    title = f"{model}: one step of {step.num_accelerators:,} x {step.machine.name}"
    _save(made, title, trace, chart)
    if json:
        print_json(_plain(step, made))
    else:
        _print(step, made, title)


def _save(made: StepReport, title: str, trace: Path | None, chart: Path | None) -> None:
    """Write the files that were asked for."""
    if trace is not None:
        write_chrome_trace(made.timeline, trace)
    if chart is not None:
        save_chart(lanes_chart(made.timeline, title), chart)


def step_of(
    *,
    model: str,
    cluster: str,
    accelerator: str,
    dtype: str,
    sizes: dict[str, Any],
    schedule: str,
    recompute: bool,
    options: StepOptions,
    chart: Path | None = None,
) -> TrainingStep:
    """Return the step that a verb's options describe.

    Args:
        model: catalog name of a dense decoder.
        cluster: catalog name of the cluster, or this-machine.
        accelerator: catalog name of an accelerator, in place of a cluster.
        dtype: number format of the products; bf16 on published accelerators when empty.
        sizes: degrees, micro-batches and tokens by their fields' names.
        schedule: order of the passes.
        recompute: run each forward pass again before its backward pass.
        options: overlaps and the model's block.
        chart: file of the picture, None for none.

    Returns:
        Model, machine and layout.

    Raises:
        ConfigError: names every wrong option.
    """
    check_one(cluster, accelerator)
    options.check()
    _check_sizes(sizes, chart)
    count = sizes["tensor"] * sizes["pipeline"] * sizes["data"]
    machine = _machine(cluster, accelerator, count, dtype)
    return TrainingStep(
        schedule=schedule,
        recompute=recompute,
        **sizes,
        **options.settings(catalog.architecture_by_name(model), machine),
    )


def _check_sizes(sizes: dict[str, int], chart: Path | None) -> None:
    """Refuse sizes below 1, and pipelines too large to simulate or to draw."""
    options = {f"--{name.removeprefix('num_').replace('_', '-')}": sizes[name] for name in sizes}
    wrong: list[SteelyardError] = [
        ConfigError(f"{name} is {size}, but must be at least 1", hint=f"change {name}")
        for name, size in options.items()
        if size < 1
    ]
    passes = sizes["pipeline"] * sizes["num_chunks"] * sizes["num_micro_batches"]
    if passes > _MOST_PASSES:
        wrong.append(
            ConfigError(
                f"--pipeline x --chunks x --micro-batches is {passes:,}, but at most "
                f"{_MOST_PASSES:,} are simulated",
                hint="use fewer micro-batches: each further one lasts as long as the last",
            )
        )
    elif chart is not None and 2 * passes > _MOST_BARS:
        wrong.append(
            ConfigError(
                f"--chart would have {2 * passes:,} bars or more, but {_MOST_BARS:,} are the most",
                hint="write --trace instead, or use fewer micro-batches",
            )
        )
    if wrong:
        raise merged(wrong)


def _machine(cluster: str, accelerator: str, count: int, dtype: str) -> Machine:
    """Return the accelerator with its links; a cluster must have as many."""
    found = machines_of(
        cluster=cluster,
        accelerator=accelerator,
        count=count if accelerator else 0,
        dtype=dtype,
    )
    most = found.cluster.num_nodes * found.cluster.accelerators_per_node
    if count > most:
        raise ConfigError(
            f"--tensor x --pipeline x --data is {count:,}, but {found.cluster.name} has {most:,} "
            "accelerators",
            hint="use fewer, or name an accelerator with --accelerator",
        )
    if found.calibrated:
        return found.calibrated[0]
    return Machine.from_accelerator(found.accelerator, dtype=found.dtype, cluster=found.cluster)


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
