"""`steelyard cost optimal` and `longcontext`: how far one device can go, and what binds it."""

from typing import Any

from steelyard import catalog
from steelyard.cli.cost.subject import Subject, derived, parts_of, print_costs
from steelyard.cli.following import say_next
from steelyard.cli.output import print_report
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.units import parse, pretty

__all__ = ["longcontext", "optimal"]


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
    from steelyard.cost import Efficiencies, optimal_throughput

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
    best = derived("serve.optimal_throughput", found.tokens_per_s_per_device, 0.0, said)
    parts: list[list[Any]] = [
        ["bottleneck", found.bottleneck],
        ["requests", f"{found.requests:,.0f}"],
        ["tokens per iteration", f"{found.dense_tokens:,.0f}"],
        *parts_of(found, "s", "memory_s", "compute_s", "network_s"),
    ]
    print_costs(
        f"Best serving of {subject.model} on {subject.machine}",
        f"prompt {prompt:g}, output {output:g}, {devices} devices",
        [best],
        parts,
        json=subject.json,
    )
    if not subject.json:
        say_next("cost", "serve", "--model", subject.model, "--machine", subject.machine)


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
    from steelyard.cost import Efficiencies, serve_point

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
            cache = parts_of(point, "byte", "kv_bytes")
            times = parts_of(point, "s", "prefill_s", "decode_s_per_token", "switch_s")
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
    if not subject.json:
        say_next("plan", "fit", subject.model, "--use", "serve", "--context", max(context))
