"""`steelyard plan overlap`: cut a batch so that different resources of a device work at once."""

from pathlib import Path

from steelyard.cli.laws.options import chart_file
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.plan.overlap.answer import OverlapAnswer, measured_overlap, planned_overlap
from steelyard.plan.overlap.kernel_times import MeasuredKernels
from steelyard.plan.overlap.layers import ServedBatch
from steelyard.plan.overlap.schedule import OverlapSchedule
from steelyard.plan.shapes import model_of
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.runs.save import save_chart
from steelyard.sim.step import lanes_chart, write_chrome_trace
from steelyard.units import parse, pretty

__all__ = ["overlap"]

_WIDTH = 48


def overlap(
    *,
    model: str,
    machine: str,
    batch: int = 2048,
    prompt: int = 512,
    output: int = 512,
    tensor: int = 1,
    max_nano: int = 4,
    timings: Path | None = None,
    gemm: str = "",
    trace: Path | None = None,
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Cut a batch so that products, attention and collectives work at once; say what that gains.

    Example: steelyard plan overlap --model llama-2-70b --machine A100-SXM4-80GB --tensor 8

    Args:
        model: catalog name of the model, or its size, such as 7B.
        machine: catalog name of the accelerator; this-machine measures and runs on two cores.
        batch: tokens of an iteration; on this-machine all of them decode.
        prompt: mean prompt length in tokens.
        output: mean output length in tokens.
        tensor: accelerators that share each layer.
        max_nano: most pieces into which an operation is cut.
        timings: measured kernels in place of a roofline: folder and start of the files' names, such
            as kernels/a100_sxm.
        gemm: measured rate of large matrix products, such as "260 TFLOP/s"; the optimum is said
            with it.
        trace: file of the schedule for chrome://tracing and ui.perfetto.dev.
        chart: file for the picture of the schedule, .html, .svg, .png or .json.
        json: print the numbers as JSON.
    """
    chart_file(chart)
    arch, _ = model_of(model)
    served = ServedBatch(tokens=batch, prompt_tokens=prompt, output_tokens=output)
    if machine == "this-machine":
        if timings is not None or gemm or tensor > 1:
            raise ConfigError("--timings, --gemm and --tensor are for accelerators of the catalog")
        found = measured_overlap(arch, served, max_nano=max_nano)
    else:
        found = planned_overlap(
            arch,
            machine,
            served,
            tensor_parallel=tensor,
            max_nano=max_nano,
            kernels=MeasuredKernels.load(timings.parent, timings.name) if timings else None,
            gemm_flops_per_s=parse(gemm, "FLOP/s", where="--gemm") if gemm else 0.0,
        )
    if trace is not None:
        write_chrome_trace(found.schedule.timeline(), trace)
    if chart is not None:
        save_chart(lanes_chart(found.schedule.timeline(), f"{arch.name} on {machine}"), chart)
    title = f"{arch.name}: {batch:,} tokens on {tensor} x {machine}"
    page = Report(title, found.schedule.why, _sections(found))
    print_report(page, json=json, values=_plain(found))


def _sections(found: OverlapAnswer) -> list[Section]:
    """Return what people see."""
    plan = found.schedule
    rows: list[list[Cell]] = [
        ["all layers, one operation after the other", pretty(plan.sequential_s, "s"), "1"],
        ["best schedule", pretty(plan.searched_s, "s"), _times(plan, plan.searched_s)],
        ["its pieces one after the other", pretty(plan.split_s, "s"), _times(plan, plan.split_s)],
        ["chosen", pretty(plan.iteration_s, "s"), _times(plan, plan.iteration_s)],
    ]
    if found.ran_s:
        over = f"{found.ran_in_turn_s / found.ran_s:.3f}"
        rows.append(["ran one after the other", pretty(found.ran_in_turn_s, "s"), "1"])
        rows.append(["ran as chosen", pretty(found.ran_s, "s"), over])
    rate = f"{found.tokens_per_s_per_device:,.0f} tokens/s per device in the layers"
    if found.optimum_tokens_per_s_per_device:
        rate += f", of at most {found.optimum_tokens_per_s_per_device:,.0f}"
    table = Table(
        columns=[Column(""), Column("time", align="right"), Column("gain", align="right")],
        rows=rows,
        caption=f"{rate}; times: {found.source}; interference: {found.table.source} "
        f"({found.table.provenance})",
    )
    busy = ", ".join(f"{name} {plan.busy(name):.0%}" for name in plan.resources)
    return [
        Section("What it gains", [table]),
        Section(f"{plan.layers} layers", [_gantt(plan), Text(f"Busy: {busy}.")]),
    ]


def _times(plan: OverlapSchedule, seconds: float) -> str:
    return f"{plan.sequential_s / seconds:.3f}"


def _gantt(plan: OverlapSchedule) -> Table:
    """Draw the pieces as bars over the time shown, by their start."""
    whole = plan.end_s.max()
    order = sorted(range(len(plan.pieces)), key=lambda item: (plan.start_s[item], item))
    rows: list[list[Cell]] = []
    for place in order:
        item = plan.pieces[place]
        low = round(plan.start_s[place] / whole * _WIDTH)
        high = max(low + 1, round(plan.end_s[place] / whole * _WIDTH))
        rows.append(
            [
                f"{item.layer}",
                item.words,
                item.operation.resource,
                f"{plan.shares[place]:.0%}",
                pretty(float(plan.start_s[place]), "s"),
                "." * low + "#" * (high - low) + "." * (_WIDTH - high),
            ]
        )
    names = ("layer", "operation, tokens", "resource", "share", "start", "")
    return Table(columns=[Column(name) for name in names], rows=rows)


def _plain(found: OverlapAnswer) -> dict[str, object]:
    """Return the numbers as JSON values."""
    plan = found.schedule
    return {
        "is_overlapped": plan.is_overlapped,
        "why": plan.why,
        "gain": plan.gain,
        "best_gain": plan.sequential_s / plan.searched_s,
        "gain_of_pieces_in_turn": plan.split_gain,
        "iteration_s": plan.iteration_s,
        "sequential_s": plan.sequential_s,
        "tokens_per_s_per_device": found.tokens_per_s_per_device,
        "optimum_tokens_per_s_per_device": found.optimum_tokens_per_s_per_device or None,
        "ran_s": found.ran_s or None,
        "ran_in_turn_s": found.ran_in_turn_s or None,
        "interference": {name: list(points) for name, points in found.table.curves.items()},
        "pieces": [
            {
                "layer": item.layer,
                "operation": item.operation.name,
                "resource": item.operation.resource,
                "first": item.first,
                "last": item.last,
                "start_s": float(plan.start_s[place]),
                "end_s": float(plan.end_s[place]),
                "share": float(plan.shares[place]),
            }
            for place, item in enumerate(plan.pieces)
        ],
    }
