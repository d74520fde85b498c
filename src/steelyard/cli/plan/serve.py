"""`steelyard plan serve`: the fleet that keeps both limits at a rate on the fewest accelerators."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cyclopts import Parameter

from steelyard import catalog
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.cli.plan.limits import limit_s
from steelyard.cli.plan.service_changes import compare
from steelyard.cli.plan.service_page import attainment_curves, service_page
from steelyard.config import dump, to_plain
from steelyard.errors import ConfigError
from steelyard.plan.service.assumptions import weakest_assumptions
from steelyard.plan.service.case import OwnEngine, ServiceCase
from steelyard.plan.service.deployed import deployment_of, service_forecasts
from steelyard.plan.service.goodput import unloaded
from steelyard.plan.service.over_trace import TraceFleet, fleets_over_trace, is_long_enough
from steelyard.plan.service.planned import explained, service_plan
from steelyard.plan.service.search import ServiceCandidate, ServiceSearch
from steelyard.plan.types import Plan
from steelyard.serve.deployment import DeployedLoad, DeployedMachine, Deployment
from steelyard.serve.traces import load_rows, rate_of, read_rows
from steelyard.serve.traces.statistics.local import local_arrivals
from steelyard.units import parse

__all__ = ["ServiceOptions", "serve"]

_COUNTS = (
    "prompt",
    "output",
    "per_node",
    "nodes",
    "token_budget",
    "max_num_seqs",
    "requests",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What is served, on which machines, for which load, and where the answer goes.

    Args:
        model: catalog name of the model, its size, such as 7B, or with --steps its folder.
        machine: catalog name of the accelerator; this-machine with --steps.
        trace: requests with arrivals and lengths, as `serve bench` reads them.
        rate: requests per second; that of the trace's fullest five minutes when left out, or of
            longer windows where few requests come.
        ttft: longest time to the first token.
        tpot: longest mean time per further token of a request.
        attainment: share of the requests that has to keep both.
        prompt: mean prompt length in tokens, without a trace.
        output: mean output length in tokens, without a trace.
        per_node: accelerators of a node.
        nodes: nodes over which one instance may spread.
        network: rate of a node to others, such as '400 Gbit/s', over which keys and values may
            pass; left out, the phases of a request stay in a node.
        dtype: number format of weights and products, such as bf16 or fp8; with --steps, fp32 or
            bf16.
        token_budget: most tokens of a step where prompts are divided.
        max_num_seqs: most sequences that run at once.
        steps: step times of this package's own engine from `steelyard serve profile`, in place of
            the roofline.
        start_up: time from asking for an instance until it serves. Over a trace of twenty minutes
            and more, fleets that follow its load stand beside those that stay.
        memory: with --steps, most that the engine's process may hold; all of this machine's
            memory when left out.
        requests: requests that are simulated at each rate.
        seed: seed of the load.
        against: file of a deployment that runs: what it would gain by each single change, for its
            own model, machines and load.
        change: with --against, one change such as tensor=4 or prompts=whole, to be written to
            --out.
        out: JSON file for the deployment, which `steelyard serve` starts.
        json: print the plan as JSON.
        report: HTML file for the page with the attainment curves.
    """

    model: str = ""
    machine: str = ""
    trace: Path | None = None
    rate: str = ""
    ttft: str = "1 s"
    tpot: str = "50 ms"
    attainment: float = 0.9
    prompt: int = 512
    output: int = 256
    per_node: int = 8
    nodes: int = 1
    network: str = ""
    dtype: str = "bf16"
    token_budget: int = 512
    max_num_seqs: int = 256
    steps: Path | None = None
    memory: str = ""
    start_up: str = "60 s"
    requests: int = 2000
    seed: int = 0
    against: Path | None = None
    change: str = ""
    out: Path | None = None
    json: Switch = False
    report: Path | None = None


def serve(*, options: ServiceOptions | None = None) -> None:
    """Plan the fleet that serves a load within limits: what shares machines, how split, how many.

    Example: steelyard plan serve --model llama-3-8b --machine H100-SXM5-80GB --rate '20 request/s'
    """
    options = options or ServiceOptions()
    progress = _say if sys.stderr.isatty() else lambda _: None
    own = _own(options)
    if options.against is not None:
        compare(
            options.against,
            options.change,
            options.out,
            model=options.model,
            own=own,
            json=options.json,
            report=options.report,
            say=progress,
        )
        return
    _check(options)
    start_up_s = _start_up_s(options.start_up)
    place, asked = _machine(options), _asked(options)
    case = ServiceCase.asked(
        options.model,
        place,
        asked,
        token_budget=options.token_budget,
        max_num_seqs=options.max_num_seqs,
        own=own,
    )
    search = case.search(progress)
    found = search.run(case.rate_per_s)
    plan = service_plan(search, found, case.rate_per_s, case.accelerator)
    if options.out is not None:
        dump(_deployment(case, search, found[0], plan, (place, asked)), options.out)
    fleets = _over_trace(case, found, plan, options, start_up_s)
    _show(case, search, found, plan, fleets, options)


def _over_trace(
    case: ServiceCase,
    found: list[ServiceCandidate],
    plan: Plan,
    options: ServiceOptions,
    start_up_s: float,
) -> list[TraceFleet]:
    """Return fleets over the whole trace; none where there is no trace, or a short one."""
    if options.trace is None:
        return []
    rows = load_rows(options.trace, np.random.default_rng(options.seed))
    times = np.array([row.arrival_s for row in rows])
    if times[-1] <= times[0]:
        return []
    # The plan is for the fullest minutes: the trace is as much slower in the mean as it is itself.
    rate = case.rate_per_s * rate_of(rows) / local_arrivals(times).busiest_per_s
    if not is_long_enough(len(rows) / rate, start_up_s):
        return []
    return fleets_over_trace(
        case, found, plan.choice["instances"], rows, rate_per_s=rate, start_up_s=start_up_s
    )


def _show(
    case: ServiceCase,
    search: ServiceSearch,
    found: list[ServiceCandidate],
    plan: Plan,
    fleets: list[TraceFleet],
    options: ServiceOptions,
) -> None:
    """Print the plan, with its curves and what its assumptions cost."""
    curves = attainment_curves(search, found)
    best = found[0].goodput
    assert best is not None, "the first candidate was simulated"
    weak = weakest_assumptions(search, found[0].arrangement, best.rate_per_s)
    page = service_page(case, plan, explained(found, search), curves, weak, fleets)
    values = to_plain(plan) | {
        "attainment": curves,
        "assumptions": to_plain(weak),
        "over_trace": to_plain(fleets),
    }
    print_report(page, json=options.json, html=options.report, values=values)
    if options.out is not None and not options.json:
        say_next("serve", "MODEL_DIR", "--deployment", options.out)


def _asked(options: ServiceOptions) -> DeployedLoad:
    """Return what is asked, and within which limits."""
    return DeployedLoad(
        rate_per_s=_rate(options.rate, options.trace),
        trace=options.trace,
        requests=options.requests,
        prompt_tokens=options.prompt,
        output_tokens=options.output,
        seed=options.seed,
        ttft_s=limit_s(options.ttft, "--ttft"),
        tpot_s=limit_s(options.tpot, "--tpot"),
        attainment=options.attainment,
    )


def _machine(options: ServiceOptions) -> DeployedMachine:
    """Return where it is to run."""
    network = options.network
    return DeployedMachine(
        accelerator=options.machine,
        dtype=options.dtype,
        per_node=options.per_node,
        nodes=options.nodes,
        network_bytes_per_s=parse(network, "byte/s", where="--network") if network else 0.0,
    )


def _say(words: str) -> None:
    """Show what is simulated on a terminal."""
    sys.stderr.write(f"\r\x1b[2K{words[:100]}\r")


def _check(options: ServiceOptions) -> None:
    """Refuse options out of range, in the words of the flags."""
    for name in ("model", "machine"):
        if not getattr(options, name):
            raise ConfigError(f"--{name} is missing", hint="name one, or give --against FILE")
    if options.change:
        raise ConfigError("--change needs --against", hint="give the deployment's file")
    if not 0 < options.attainment < 1:
        raise ConfigError(f"--attainment is {options.attainment}, but must lie between 0 and 1")
    for name in _COUNTS:
        value, least = getattr(options, name), 100 if name == "requests" else 1
        if value < least:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {value}, but must be at least {least}")


def _start_up_s(given: str) -> float:
    """Return the seconds of a start."""
    seconds = parse(given, "s", where="--start-up")
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"--start-up is {given}, but must be at least 0 seconds")
    return seconds


def _rate(rate: str, trace: Path | None) -> float:
    """Return the rate that is planned for: what is asked, else that of the trace's fullest minutes.

    A fleet for the mean of a day does not hold at noon.
    """
    if trace is None and not rate:
        raise ConfigError(
            "either --trace or --rate must be given",
            hint="--trace day.csv, or --rate '20 request/s' with --prompt and --output",
        )
    if rate:
        asked = parse(rate, "request/s", where="--rate")
        if not asked > 0:
            raise ConfigError(f"--rate is {rate}, but must be above 0")
        return asked
    times = np.array([row.arrival_s for row in read_rows(trace)] if trace is not None else [])
    if not times.size or times[-1] <= times[0]:
        raise ConfigError(
            f"all requests of {trace} arrive at once, so it has no rate", hint="give --rate"
        )
    return local_arrivals(times).busiest_per_s


def _own(options: ServiceOptions) -> OwnEngine | None:
    """Return the measured engine, if there is one."""
    if options.steps is None:
        if options.memory:
            raise ConfigError("--memory needs --steps", hint="give --steps step-table.json too")
        return None
    from steelyard.catalog.stored import load_calibration
    from steelyard.cost.phase_time import PhaseStepTime

    machine = options.machine or THIS_MACHINE
    if machine != THIS_MACHINE:
        raise ConfigError(
            f"--steps were measured here, but --machine is {machine}",
            hint=f"give --machine {THIS_MACHINE}",
        )
    record, calibration = catalog.accelerator(machine), load_calibration()
    memory = parse(options.memory, "byte", where="--memory") if options.memory else 0.0
    return OwnEngine(
        step_time=PhaseStepTime.load(options.steps),
        memory_bytes=memory or record.memory_bytes,
        process_bytes=calibration.engine_process_bytes if calibration else 0.0,
    )


def _deployment(
    case: ServiceCase,
    search: ServiceSearch,
    best: ServiceCandidate,
    plan: Plan,
    asked: tuple[DeployedMachine, DeployedLoad],
) -> Deployment:
    """Return the plan as what an engine starts."""
    machine, load = asked
    alone = unloaded(best.arrangement.groups, search.load, search.slo, search.share)
    return deployment_of(
        best.arrangement,
        model=case.arch.name,
        machine=machine,
        instances=plan.choice["instances"],
        max_model_len=search.load.longest,
        load=replace(
            load,
            # The file may be read from another folder.
            trace=load.trace.resolve() if load.trace else None,
            alone_ttft_s=alone.ttft_s,
            alone_tpot_s=alone.tpot_s,
        ),
        forecasts=service_forecasts(plan.forecasts, plan.choice["instances"]),
    )
