"""`steelyard cost`.

Time, memory, energy and money of training and serving a model, before running it.
"""

from typing import TYPE_CHECKING, Any

import cyclopts

if TYPE_CHECKING:
    from steelyard.cost.roofline import Machine
    from steelyard.quantity import Forecast

app = cyclopts.App(
    name="cost", help="Time, memory, energy and money of training and serving a model."
)

RELATIVE = 0.35
"""Half-width of an interval: the scatter over published runs that did not set the efficiencies."""


def _machine(name: str, dtype: str) -> "Machine":
    """Return the roofline of an accelerator by name; the calibrated one for this-machine."""
    from steelyard import catalog
    from steelyard.cost import Machine
    from steelyard.errors import CalibrationError

    if name != "this-machine":
        return Machine.from_accelerator(catalog.accelerator(name), dtype=dtype or "bf16")
    calibration = catalog.load_calibration()
    if calibration is None:
        raise CalibrationError(
            "this machine has not been calibrated", hint="run `steelyard calibrate` first"
        )
    return Machine.from_calibration(calibration, dtype or "fp32")


def _print(
    title: str, subtitle: str, forecasts: list["Forecast"], parts: list[list[Any]], *, json: bool
) -> None:
    """Print forecasts with their intervals, and the parts they are made of."""
    from steelyard.runs.report import Block, Column, Report, Section, Table
    from steelyard.units import pretty

    heads = [
        Column("quantity"),
        Column("forecast", align="right"),
        Column("80 % interval", align="right"),
        Column("provenance"),
    ]
    rows: list[list[Any]] = [
        [
            item.quantity,
            pretty(item.value, item.unit),
            f"{pretty(item.low, item.unit)} .. {pretty(item.high, item.unit)}",
            item.provenance,
        ]
        for item in forecasts
    ]
    sources = "; ".join(dict.fromkeys(item.source for item in forecasts))
    blocks: list[Block] = [Table(columns=heads, rows=rows, caption=sources)] if rows else []
    blocks += (
        [Table(columns=[Column("part"), Column("value", align="right")], rows=parts)]
        if parts
        else []
    )
    report = Report(title, subtitle, [Section("Forecast", blocks)])
    if json:
        print(report.to_json())
    else:
        report.print()


@app.command
def train(
    *,
    model: str,
    machine: str = "this-machine",
    micro_batch: int = 1,
    sequence_length: int = 2048,
    accumulation: int = 1,
    recompute: str = "none",
    dtype: str = "",
    json: bool = False,
) -> None:
    """Forecast one optimizer step on one accelerator.

    Args:
        model: catalog name of the architecture.
        machine: catalog name of the accelerator, or this-machine after `steelyard calibrate`.
        micro_batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        accumulation: micro-batches per step.
        recompute: none, selective or full.
        dtype: of the matrix products; bf16 on a published accelerator and fp32 on this machine when
            empty.
        json: print JSON.
    """
    from steelyard import catalog
    from steelyard.cost import Layout, training_step
    from steelyard.cost.layout import RECOMPUTE
    from steelyard.errors import ConfigError
    from steelyard.quantity import Forecast
    from steelyard.units import pretty

    if recompute not in RECOMPUTE:
        raise ConfigError(f"--recompute {recompute!r} is not one of {', '.join(RECOMPUTE)}")
    device = _machine(machine, dtype)
    arch = catalog.architecture_by_name(model)
    options: dict[str, Any] = {
        "micro_batch": micro_batch,
        "sequence_length": sequence_length,
        "accumulation": accumulation,
    }
    step = training_step(arch, machine=device, layout=Layout(recompute=recompute), **options)
    kind = "derived" if device.provenance == "measured" else "assumed"
    values = {
        "train.step_time": step.time_s,
        "train.throughput": step.tokens / step.time_s,
        "train.mfu": step.mfu,
    }
    forecasts = [
        Forecast.about(name, value, relative=RELATIVE, provenance=kind, source=device.source)
        for name, value in values.items()
    ]
    said = "weights, optimizer and saved activations"
    forecasts += [
        Forecast.about(
            "train.peak_memory", step.memory.total, relative=0.15, provenance="derived", source=said
        )
    ]
    parts = [[name, pretty(getattr(step, name), "s")] for name in ("compute_s", "update_s")]
    parts += [["fits in memory", "yes" if step.memory.total <= device.memory_bytes else "no"]]
    _print(
        f"Training {model} on {machine}",
        f"{step.tokens:,.0f} tokens per step",
        forecasts,
        parts,
        json=json,
    )


@app.command
def serve(
    *,
    model: str,
    machine: str = "this-machine",
    context: int = 2048,
    batch: int = 1,
    dtype: str = "",
    json: bool = False,
) -> None:
    """Forecast prefill and decoding on one accelerator.

    Args:
        model: catalog name of the architecture.
        machine: catalog name of the accelerator, or this-machine after `steelyard calibrate`.
        context: tokens of each user.
        batch: users decoding together.
        dtype: of weights and cache; bf16 on a published accelerator and fp32 on this machine when
            empty.
        json: print JSON.
    """
    from steelyard import catalog
    from steelyard.cost import kv_bytes_per_token, operators, roofline_time_s, serving_memory
    from steelyard.quantity import Forecast
    from steelyard.units import pretty

    device, arch = _machine(machine, dtype), catalog.architecture_by_name(model)
    options: dict[str, Any] = {"dtype_bytes": device.dtype_bytes, "fused": device.fused}
    prefill = float(
        roofline_time_s(operators(arch, phase="prefill", tokens=context, **options), device)
    )
    decode = float(
        roofline_time_s(
            operators(arch, phase="decode", tokens=1, context=context, batch=batch, **options),
            device,
        )
    )
    memory = serving_memory(
        arch,
        tokens_resident=context * batch,
        step_tokens=max(batch, 512),
        dtype_bytes=device.dtype_bytes,
    )
    kind = "derived" if device.provenance == "measured" else "assumed"
    values = {"serve.ttft": prefill, "serve.tpot": decode, "serve.throughput": batch / decode}
    forecasts = [
        Forecast.about(name, value, relative=RELATIVE, provenance=kind, source=device.source)
        for name, value in values.items()
    ]
    cache = kv_bytes_per_token(arch, device.dtype_bytes)
    forecasts += [
        Forecast.about(
            "serve.kv_bytes_per_token",
            cache,
            relative=0.0,
            provenance="derived",
            source="shape of the model",
        )
    ]
    free = device.memory_bytes - memory.weights - memory.activations - memory.workspace
    parts = [
        [name, pretty(getattr(memory, name), "byte")] for name in ("weights", "kv_cache", "total")
    ]
    parts += [["users that fit", max(0, int(free // (cache * context)))]]
    _print(
        f"Serving {model} on {machine}",
        f"context {context:,}, batch {batch}",
        forecasts,
        parts,
        json=json,
    )


@app.command
def optimal(
    *,
    model: str,
    machine: str = "this-machine",
    prompt: float = 512,
    output: float = 512,
    devices: int = 1,
    gemm: str = "",
    requests: float = 0,
    dtype: str = "",
    json: bool = False,
) -> None:
    """Give the most tokens a second that one device can serve, and what binds it.

    Args:
        model: catalog name of the architecture.
        machine: catalog name of the accelerator, or this-machine after `steelyard calibrate`.
        prompt: mean prompt length.
        output: mean output length.
        devices: accelerators in tensor parallel.
        gemm: measured rate of large matrix products, such as "260 TFLOP/s"; this-machine brings its
            own.
        requests: resident requests; as many as fit when 0.
        dtype: of weights and cache; bf16 on a published accelerator and fp32 on this machine when
            empty.
        json: print JSON.
    """
    from steelyard import catalog
    from steelyard.cost import Efficiencies, Machine, optimal_throughput
    from steelyard.quantity import Forecast
    from steelyard.units import parse, pretty

    peak = Efficiencies.peak()
    named = machine != "this-machine"
    device = (
        Machine.from_accelerator(
            catalog.accelerator(machine), dtype=dtype or "bf16", efficiencies=peak
        )
        if named
        else _machine(machine, dtype)
    )
    options: dict[str, Any] = {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "tensor_parallel": devices,
        "requests": requests,
    }
    rate = parse(gemm, "FLOP/s", where="--gemm") if gemm else 0.0
    found = optimal_throughput(
        catalog.architecture_by_name(model), device, gemm_flops_per_s=rate, **options
    )
    said = (
        f"{pretty(found.gemm_flops_per_s, 'FLOP/s')} over 2 x "
        f"{pretty(found.active_parameters, 'parameter')} (arXiv 2408.12757)"
    )
    best = Forecast.about(
        "serve.optimal_throughput",
        found.tokens_per_s_per_device,
        relative=0.0,
        provenance="derived",
        source=said,
    )
    parts = [
        ["bottleneck", found.bottleneck],
        ["requests", f"{found.requests:,.0f}"],
        ["tokens per iteration", f"{found.dense_tokens:,.0f}"],
    ]
    parts += [
        [name, pretty(getattr(found, name), "s")] for name in ("memory_s", "compute_s", "network_s")
    ]
    _print(
        f"Best serving of {model} on {machine}",
        f"prompt {prompt:g}, output {output:g}, {devices} devices",
        [best],
        parts,
        json=json,
    )


@app.command
def longcontext(
    *,
    model: str,
    machine: str,
    context: tuple[int, ...] = (4096, 50_000),
    batch: int = 1,
    devices: int = 1,
    dtype: str = "bf16",
    json: bool = False,
) -> None:
    """Give the four numbers of long contexts.

    Users that fit, prefill, decode and the switch between users.

    Args:
        model: catalog name of the architecture.
        machine: catalog name of the accelerator; its host link must be known.
        context: tokens of one user; give it once for each.
        batch: users decoding together.
        devices: accelerators in tensor parallel.
        dtype: of weights and cache.
        json: print JSON.
    """
    from steelyard import catalog
    from steelyard.cost import Efficiencies, serve_point
    from steelyard.runs.report import Column, Report, Section, Table
    from steelyard.units import pretty

    device, arch = catalog.accelerator(machine), catalog.architecture_by_name(model)
    typical = Efficiencies.typical(device.peak_flops_per_s.get(dtype, 0.0))
    rows: list[list[Any]] = []
    for tokens in context:
        for name, rates in (("peak", Efficiencies.peak()), ("typical", typical)):
            options: dict[str, Any] = {
                "batch": batch,
                "tensor_parallel": devices,
                "dtype": dtype,
                "efficiencies": rates,
            }
            point = serve_point(arch, device, context=tokens, **options)
            times = [
                pretty(value, "s")
                for value in (point.prefill_s, point.decode_s_per_token, point.switch_s)
            ]
            rows.append(
                [
                    f"{tokens:,}",
                    name,
                    point.concurrency,
                    pretty(point.kv_bytes, "byte"),
                    *times,
                    point.bounds["decode"],
                ]
            )
    heads = [
        Column("context", align="right"),
        Column("rates"),
        Column("users", align="right"),
        Column("cache of one", align="right"),
    ]
    heads += [
        Column(name, align="right") for name in ("prefill", "decode, per token", "switch")
    ] + [Column("decode bound by")]
    caption = (
        "peak: datasheet rates, as in arXiv 2405.08944; typical: what well-tuned software "
        "reaches, assumed; causal attention"
    )
    report = Report(
        f"Long contexts of {model} on {machine}",
        f"batch {batch}, {devices} devices",
        [Section("Four numbers", [Table(columns=heads, rows=rows, caption=caption)])],
    )
    if json:
        print(report.to_json())
    else:
        report.print()


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
    json: bool = False,
) -> None:
    """Forecast the memory of the fullest accelerator in mixed-precision training with AdamW.

    Args:
        model: catalog name of the architecture.
        batch: sequences per micro-batch.
        sequence_length: tokens per sequence.
        tensor: tensor-parallel degree.
        pipeline: pipeline stages.
        data: data-parallel replicas.
        zero_stage: 0 to 3.
        recompute: none, selective or full.
        json: print JSON.
    """
    from steelyard import catalog
    from steelyard.cost import Layout, training_memory
    from steelyard.cost.layout import RECOMPUTE
    from steelyard.errors import ConfigError
    from steelyard.quantity import Forecast
    from steelyard.units import pretty

    if (
        recompute not in RECOMPUTE
        or zero_stage not in range(4)
        or min(tensor, pipeline, data, batch, sequence_length) < 1
    ):
        raise ConfigError(
            "--recompute is none, selective or full; --zero-stage 0 to 3; sizes and degrees at "
            "least 1"
        )
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        zero_stage=zero_stage,
        recompute=recompute,
        sequence_parallel=tensor > 1,
    )
    options: dict[str, Any] = {
        "batch": batch,
        "sequence_length": sequence_length,
        "accumulation": pipeline,
    }
    found = training_memory(catalog.architecture_by_name(model), layout=layout, **options)
    parts = [
        [name, pretty(getattr(found, name), "byte")]
        for name in ("weights", "gradients", "optimizer", "activations", "workspace")
    ]
    said = "18 bytes per parameter and saved activations (arXiv 2205.05198)"
    total = Forecast.about(
        "plan.memory_per_accelerator", found.total, relative=0.15, provenance="derived", source=said
    )
    _print(
        f"Memory of training {model}",
        f"micro-batch {batch} x {sequence_length:,} tokens",
        [total],
        parts,
        json=json,
    )
