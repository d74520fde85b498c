"""`steelyard cost`: time, memory, energy and money of training and serving, before they run."""

from dataclasses import dataclass
from typing import Any

import cyclopts

from steelyard import catalog
from steelyard.catalog import Architecture
from steelyard.cli.output import Switch, forecast_table, print_report
from steelyard.cli.shortage import shortage
from steelyard.cost import (
    Efficiencies,
    Layout,
    Machine,
    kv_bytes_per_token,
    operators,
    optimal_throughput,
    roofline_time_s,
    serve_point,
    serving_memory,
    training_memory,
    training_step,
)
from steelyard.cost.layout import RECOMPUTE
from steelyard.errors import CalibrationError, ConfigError
from steelyard.quantity import Forecast
from steelyard.runs import Column, Report, Section, Table
from steelyard.runs.report import Cell
from steelyard.units import parse, pretty

app = cyclopts.App(
    name="cost", help="Time, memory, energy and money of training and serving a model."
)

RELATIVE = 0.35
"""Half-width of an interval: the scatter over published runs that did not set the efficiencies."""


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model and machine that a cost is asked for.

    Args:
        model: catalog name of the architecture.
        machine: catalog name of the accelerator, or this-machine after `steelyard calibrate`.
        dtype: number format of the products, weights and cache; bf16 on a published accelerator and
            fp32 on this machine when empty.
        json: print JSON.
    """

    model: str
    machine: str = "this-machine"
    dtype: str = ""
    json: Switch = False

    def architecture(self) -> Architecture:
        """Return the model's architecture."""
        return catalog.architecture_by_name(self.model)

    def roofline(self, efficiencies: Efficiencies | None = None) -> Machine:
        """Return the machine's roofline.

        Args:
            efficiencies: fractions of published peaks that replace the typical ones; a calibrated
                machine has measured rates instead.

        Returns:
            The roofline of the accelerator, or of this machine as it was calibrated.

        Raises:
            CalibrationError: this machine has not been calibrated.
        """
        if self.machine != "this-machine":
            return Machine.from_accelerator(
                catalog.accelerator(self.machine),
                dtype=self.dtype or "bf16",
                efficiencies=efficiencies,
            )
        calibration = catalog.load_calibration()
        if calibration is None:
            raise CalibrationError(
                "this machine has not been calibrated", hint="run `steelyard calibrate` first"
            )
        return Machine.from_calibration(calibration, self.dtype or "fp32")


def _timed(machine: Machine, values: dict[str, float]) -> list[Forecast]:
    """Make the forecasts of quantities that rest on a machine's roofline."""
    kind = "derived" if machine.provenance == "measured" else "assumed"
    return [
        Forecast.about(name, value, relative=RELATIVE, provenance=kind, source=machine.source)
        for name, value in values.items()
    ]


def _derived(name: str, value: float, relative: float, source: str) -> Forecast:
    """Make a forecast that follows from the shape of the model."""
    return Forecast.about(name, value, relative=relative, provenance="derived", source=source)


def _parts(record: Any, unit: str, *names: str) -> list[list[Any]]:
    """Make a row of each named field."""
    return [[name, pretty(getattr(record, name), unit)] for name in names]


def _print(
    title: str, subtitle: str, forecasts: list[Forecast], parts: list[list[Any]], *, json: bool
) -> None:
    """Print forecasts with their intervals, and the parts they are made of."""
    made_of = Table(columns=[Column("part"), Column("value", align="right")], rows=parts)
    section = Section("Forecast", [forecast_table(forecasts), made_of])
    print_report(Report(title, subtitle, [section]), json=json)


@app.command
def train(
    *,
    subject: Subject,
    micro_batch: int = 1,
    sequence_length: int = 2048,
    accumulation: int = 1,
    recompute: str = "none",
) -> int:
    """Forecast one optimizer step on one accelerator.

    Example: steelyard cost train --model gpt2-xl --machine L40S --micro-batch 4

    Args:
        subject: model and machine.
        micro_batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step.
        recompute: activations that the backward pass computes again: none, selective or full.

    Returns:
        Exit status: 1 where the memory does not suffice.
    """
    _check_recompute(recompute)
    device = subject.roofline()
    arch = subject.architecture()
    step = training_step(
        arch,
        machine=device,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        accumulation=accumulation,
        layout=Layout(recompute=recompute),
    )
    forecasts = _timed(
        device,
        {
            "train.step_time": step.time_s,
            "train.throughput": step.tokens / step.time_s,
            "train.mfu": step.mfu,
        },
    )
    said = "weights, optimizer and saved activations"
    forecasts.append(_derived("train.peak_memory", step.memory.total, 0.15, said))
    lack = shortage(arch, device, step.memory.total, "train", context=sequence_length)
    _print(
        lack or f"Training {subject.model} on {subject.machine}",
        f"{step.tokens:,.0f} tokens per step",
        forecasts,
        _parts(step, "s", "compute_s", "update_s"),
        json=subject.json,
    )
    return 1 if lack else 0


def _check_recompute(name: str) -> None:
    """Refuse a recomputation policy that does not exist."""
    if name not in RECOMPUTE:
        raise ConfigError(f"--recompute {name!r} is not one of {', '.join(RECOMPUTE)}")


@app.command
def serve(*, subject: Subject, context: int = 2048, batch: int = 1) -> int:
    """Forecast prefill and decoding on one accelerator.

    Example: steelyard cost serve --model llama-3.1-8b --machine L40S --context 8192 --batch 4

    Args:
        subject: model and machine.
        context: tokens of each user.
        batch: users that decode together.

    Returns:
        Exit status: 1 where the memory does not suffice.
    """
    device = subject.roofline()
    arch = subject.architecture()
    width = device.dtype_bytes

    def seconds(**shape: Any) -> float:
        table = operators(arch, dtype_bytes=width, fused=device.fused, **shape)
        return float(roofline_time_s(table, device))

    decode = seconds(phase="decode", tokens=1, context=context, batch=batch)
    forecasts = _timed(
        device,
        {
            "serve.ttft": seconds(phase="prefill", tokens=context),
            "serve.tpot": decode,
            "serve.throughput": batch / decode,
        },
    )
    cache = kv_bytes_per_token(arch, width)
    forecasts.append(_derived("serve.kv_bytes_per_token", cache, 0.0, "shape of the model"))
    memory = serving_memory(
        arch, tokens_resident=context * batch, step_tokens=max(batch, 512), dtype_bytes=width
    )
    free = device.memory_bytes - memory.weights - memory.activations - memory.workspace
    parts = _parts(memory, "byte", "weights", "kv_cache", "total")
    parts.append(["users that fit", max(0, int(free // (cache * context)))])
    lack = shortage(arch, device, memory.total, "serve", context=context, users=batch)
    _print(
        lack or f"Serving {subject.model} on {subject.machine}",
        f"context {context:,}, batch {batch}",
        forecasts,
        parts,
        json=subject.json,
    )
    return 1 if lack else 0


@app.command
def optimal(
    *,
    subject: Subject,
    prompt: float = 512,
    output: float = 512,
    devices: int = 1,
    gemm: str = "",
    requests: float = 0,
) -> None:
    """Find the most tokens per second that one device can serve, and what binds it.

    Args:
        subject: model and machine.
        prompt: mean prompt length.
        output: mean output length.
        devices: accelerators in tensor parallel.
        gemm: measured rate of large matrix products, such as "260 TFLOP/s"; this-machine has its
            own.
        requests: resident requests; as many as fit when 0.
    """
    found = optimal_throughput(
        subject.architecture(),
        subject.roofline(Efficiencies.peak()),
        prompt_tokens=prompt,
        output_tokens=output,
        tensor_parallel=devices,
        gemm_flops_per_s=parse(gemm, "FLOP/s", where="--gemm") if gemm else 0.0,
        requests=requests,
    )
    said = (
        f"{pretty(found.gemm_flops_per_s, 'FLOP/s')} over 2 x "
        f"{pretty(found.active_parameters, 'parameter')} (arXiv 2408.12757)"
    )
    best = _derived("serve.optimal_throughput", found.tokens_per_s_per_device, 0.0, said)
    parts: list[list[Any]] = [
        ["bottleneck", found.bottleneck],
        ["requests", f"{found.requests:,.0f}"],
        ["tokens per iteration", f"{found.dense_tokens:,.0f}"],
        *_parts(found, "s", "memory_s", "compute_s", "network_s"),
    ]
    _print(
        f"Best serving of {subject.model} on {subject.machine}",
        f"prompt {prompt:g}, output {output:g}, {devices} devices",
        [best],
        parts,
        json=subject.json,
    )


@app.command
def longcontext(
    *,
    subject: Subject,
    context: tuple[int, ...] = (4096, 50_000),
    batch: int = 1,
    devices: int = 1,
) -> None:
    """Show the four numbers of long contexts: users that fit, prefill, decode and switch.

    Args:
        subject: model and machine; the accelerator's host link must be known.
        context: tokens of one user; give the option once for each context.
        batch: users that decode together.
        devices: accelerators in tensor parallel.
    """
    device = catalog.accelerator(subject.machine)
    arch = subject.architecture()
    dtype = subject.dtype or "bf16"
    typical = Efficiencies.typical(device.peak_flops_per_s.get(dtype, 0.0))
    rows: list[list[Cell]] = []
    for tokens in context:
        for name, rates in (("peak", Efficiencies.peak()), ("typical", typical)):
            point = serve_point(
                arch,
                device,
                context=tokens,
                batch=batch,
                tensor_parallel=devices,
                dtype=dtype,
                efficiencies=rates,
            )
            cache = _parts(point, "byte", "kv_bytes")
            times = _parts(point, "s", "prefill_s", "decode_s_per_token", "switch_s")
            figures = [text for _, text in cache + times]
            rows.append([f"{tokens:,}", name, point.concurrency, *figures, point.bounds["decode"]])
    names = ("users", "cache of one", "prefill", "decode, per token", "switch")
    heads = [Column("context", align="right"), Column("rates")]
    heads += [Column(name, align="right") for name in names] + [Column("decode bound by")]
    caption = (
        "peak: datasheet rates, as in arXiv 2405.08944; typical: what well-tuned software "
        "reaches, assumed; causal attention"
    )
    section = Section("Four numbers", [Table(columns=heads, rows=rows, caption=caption)])
    title = f"Long contexts of {subject.model} on {subject.machine}"
    report = Report(title, f"batch {batch}, {devices} devices", [section])
    print_report(report, json=subject.json)


@app.command
def memory(
    *,
    model: str,
    batch: int = 1,
    sequence_length: int = 2048,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    zero_stage: int = 0,
    recompute: str = "none",
    json: Switch = False,
) -> None:
    """Forecast the memory of the fullest accelerator in mixed-precision training with AdamW.

    Args:
        model: catalog name of the architecture.
        batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        tensor: accelerators a layer is split over.
        pipeline: stages the layers are split over.
        data: data-parallel replicas.
        zero_stage: what the replicas shard: 0 nothing, 1 optimizer states, 2 gradients as well, 3
            weights as well.
        recompute: activations that the backward pass computes again: none, selective or full.
        json: print JSON.
    """
    _check_recompute(recompute)
    if zero_stage not in range(4) or min(tensor, pipeline, data, batch, sequence_length) < 1:
        raise ConfigError("--zero-stage is 0 to 3; sizes and degrees are at least 1")
    found = training_memory(
        catalog.architecture_by_name(model),
        layout=Layout(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            zero_stage=zero_stage,
            recompute=recompute,
            sequence_parallel=tensor > 1,
        ),
        batch=batch,
        sequence_length=sequence_length,
        accumulation=pipeline,  # enough micro-batches to fill every stage
    )
    said = "18 bytes per parameter and saved activations (arXiv 2205.05198)"
    names = ("weights", "gradients", "optimizer", "activations", "workspace")
    _print(
        f"Memory of training {model}",
        f"micro-batch {batch} x {sequence_length:,} tokens",
        [_derived("plan.memory_per_accelerator", found.total, 0.15, said)],
        _parts(found, "byte", *names),
        json=json,
    )
