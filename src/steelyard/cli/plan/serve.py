"""`steelyard plan serve`: the fleet that keeps both limits at a rate on the fewest accelerators."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cli.output import Switch, forecast_table, print_report
from steelyard.config import to_plain
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError
from steelyard.plan.machines import nodes_of
from steelyard.plan.service.load import ServiceLoad
from steelyard.plan.service.options import engine_options
from steelyard.plan.service.planned import explained, service_plan
from steelyard.plan.service.search import ServiceCandidate, ServiceLimits, ServiceSearch
from steelyard.plan.shapes import model_of
from steelyard.plan.types import Plan
from steelyard.runs.report import Chart, Column, Report, Section, Table, Text
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces import load_rows, rate_of, synthetic_rows
from steelyard.units import parse, pretty

__all__ = ["serve"]

_SHOWN = 8
_CURVES = 3


def serve(
    *,
    model: str,
    machine: str,
    trace: Path | None = None,
    rate: str = "",
    ttft: str = "1 s",
    tpot: str = "50 ms",
    attainment: float = 0.9,
    prompt: int = 512,
    output: int = 256,
    per_node: int = 8,
    nodes: int = 1,
    network: str = "",
    token_budget: int = 512,
    requests: int = 2000,
    seed: int = 0,
    json: Switch = False,
    report: Path | None = None,
) -> None:
    """Plan the fleet that serves a load within limits: what shares machines, how split, how many.

    Example: steelyard plan serve --model llama-3-8b --machine H100-SXM5-80GB --rate '20 request/s'

    Args:
        model: catalog name of the model, or its size, such as 7B.
        machine: catalog name of the accelerator.
        trace: requests with arrivals and lengths, as `serve bench` reads them.
        rate: requests per second; the trace's own mean when left out.
        ttft: longest time to the first token.
        tpot: longest mean time per further token of a request.
        attainment: share of the requests that has to keep both.
        prompt: mean prompt length in tokens, without a trace.
        output: mean output length in tokens, without a trace.
        per_node: accelerators of a node.
        nodes: nodes over which one instance may spread.
        network: rate of a node to others, such as '400 Gbit/s', over which keys and values may
            pass; left out, the phases of a request stay in a node.
        token_budget: most tokens of a step where prompts are divided.
        requests: requests that are simulated at each rate.
        seed: seed of the load.
        json: print the plan as JSON.
        report: HTML file for the page with the attainment curves.
    """
    _check(attainment, prompt=prompt, output=output, requests=requests, nodes=nodes)
    arch, _ = model_of(model)
    record = catalog.accelerator(machine)
    wanted = Machine.from_accelerator(record, cluster=nodes_of(record, per_node))
    load, rate_per_s = _load(trace, rate, prompt, output, requests, seed)
    limits = _limits(arch, wanted, per_node, nodes, network, token_budget)
    longest = int(load.input_tokens.max())
    search = ServiceSearch(
        load=load,
        slo=Slo(ttft_s=parse(ttft, "s", where="--ttft"), tpot_s=parse(tpot, "s", where="--tpot")),
        share=attainment,
        options=tuple(
            engine_options(
                arch,
                wanted,
                step_tokens=max(token_budget, longest),
                tensors=[count for count in (1, 2, 4, 8) if count <= per_node],
                pipelines=[count for count in (1, 2, 4) if count <= per_node * nodes],
            )
        ),
        limits=limits,
        progress=_say if sys.stderr.isatty() else lambda _: None,
    )
    found = search.run(rate_per_s)
    plan = service_plan(search, found, rate_per_s, record)
    curves = _curves(search, found)
    page = _page(arch.name, rate_per_s, plan, explained(found, search), curves)
    print_report(page, json=json, html=report, values=to_plain(plan) | {"attainment": curves})


def _say(words: str) -> None:
    """Show what is simulated on a terminal."""
    sys.stderr.write(f"\r\x1b[2K{words[:100]}\r")


def _check(attainment: float, **counts: int) -> None:
    """Refuse options out of range, in the words of the flags."""
    if not 0 < attainment < 1:
        raise ConfigError(f"--attainment is {attainment}, but must lie between 0 and 1")
    for name, value in counts.items():
        least = 100 if name == "requests" else 1
        if value < least:
            raise ConfigError(f"--{name} is {value}, but must be at least {least}")


def _load(
    trace: Path | None, rate: str, prompt: int, output: int, requests: int, seed: int
) -> tuple[ServiceLoad, float]:
    """Return the requests and the rate that is planned for."""
    generator = np.random.default_rng(seed)
    asked = parse(rate, "request/s", where="--rate") if rate else 0.0
    if trace is None and not asked:
        raise ConfigError(
            "either --trace or --rate must be given",
            hint="--trace day.csv, or --rate '20 request/s' with --prompt and --output",
        )
    if rate and not asked > 0:
        raise ConfigError(f"--rate is {rate}, but must be above 0")
    if trace is None:
        rows = synthetic_rows(
            generator,
            num_requests=requests,
            rate_per_s=asked,
            mean_prompt=prompt,
            mean_output=output,
            max_prompt=8 * prompt,
            max_output=8 * output,
        )
        inputs = np.array([row.input_tokens for row in rows])
        outputs = np.array([row.output_tokens for row in rows])
        return ServiceLoad.drawn(inputs, outputs, generator, count=requests), asked
    rows = load_rows(trace, generator)
    mean = rate_of(rows)
    if not asked and mean == float("inf"):
        raise ConfigError(
            f"all requests of {trace} arrive at once, so it has no rate", hint="give --rate"
        )
    return ServiceLoad.of_rows(rows, generator, count=requests), asked or mean


def _limits(
    arch: Architecture, machine: Machine, per_node: int, nodes: int, network: str, budget: int
) -> ServiceLimits:
    """Return how engines work and what joins them."""
    size = kv_bytes_per_token(arch, machine.dtype_bytes)
    share = machine.efficiencies.link
    node_rate = share * (machine.scale_up_bytes_per_s or machine.host_link_bytes_per_s)
    outside = share * parse(network, "byte/s", where="--network") if network else 0.0
    return ServiceLimits(
        per_node=per_node,
        nodes=nodes,
        token_budget=budget,
        prefill_budget=budget,
        max_num_seqs=min(256, budget),
        node_transfer_s_per_token=size / node_rate if node_rate else 0.0,
        network_transfer_s_per_token=size / outside if outside else float("inf"),
    )


def _curves(search: ServiceSearch, found: list[ServiceCandidate]) -> dict[str, Any]:
    """Return attainment over the rate per accelerator of the best candidate of each kind."""
    firsts: dict[str, ServiceCandidate] = {}
    for item in found:
        if item.goodput and item.goodput.rate_per_s:
            firsts.setdefault(item.arrangement.kind, item)
    # One axis for all kinds: rates per accelerator, up to well beyond the best one's goodput.
    top = found[0].per_device
    curves = {}
    for kind, item in list(firsts.items())[:_CURVES]:
        devices = item.arrangement.num_devices
        per_device = np.linspace(0.3, 1.4, 23) * top
        seen = search.curve(item.arrangement, per_device * devices)
        curves[f"{kind}: {item.arrangement.words}"] = {
            "rate_per_accelerator": per_device.tolist(),
            "attainment": [point.both for point in seen],
        }
    return curves


def _page(
    name: str,
    rate_per_s: float,
    plan: Plan,
    found: list[ServiceCandidate],
    curves: dict[str, Any],
) -> Report:
    """Lay the plan out: the candidates, the forecasts, the curves."""
    from steelyard.runs.charts import loss_curves

    choice = plan.choice
    said = (
        f"{choice['instances']} x ({choice['words']}) = {choice['accelerators']} "
        f"{choice['accelerator']}, {choice['kind']}"
    )
    lines = {
        label.partition(":")[0]: (curve["rate_per_accelerator"], curve["attainment"])
        for label, curve in curves.items()
    }
    chart = loss_curves(
        lines,
        "Requests that keep both limits",
        x_title="Requests per second and accelerator",
        y_title="Share of the requests",
    )
    notes = [Text(f"{line}.") for line in plan.notes]
    return Report(
        f"Serving {name} at {pretty(rate_per_s, 'request/s')}",
        said,
        [
            Section("", [_table(found), Text(f"Bound: {plan.binding_constraint}.")]),
            Section("Forecast of one instance", [forecast_table(plan.forecasts), *notes]),
            Section("Attainment", [Chart(chart)]),
        ],
    )


def _table(found: list[ServiceCandidate]) -> Table:
    """List the candidates, the best first."""
    heads = [
        Column("arrangement"),
        Column("split"),
        Column("accelerators", align="right", rank=1),
        Column("goodput each", align="right"),
        Column("why not"),
    ]
    rows = [
        [
            item.arrangement.kind,
            item.arrangement.words,
            item.arrangement.num_devices,
            pretty(item.per_device, "request/s") if item.goodput else "",
            item.reason,
        ]
        for item in found[:_SHOWN]
    ]
    return Table(heads, rows)
