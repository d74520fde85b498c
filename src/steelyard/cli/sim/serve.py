"""`steelyard sim serve`: a trace on a fleet of instances, routed by a policy, in virtual time."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from cyclopts import Parameter

from steelyard import catalog
from steelyard.cli.output import Switch, print_report
from steelyard.cli.sim.fleet_page import page, values
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.roofline import Machine
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.service.options import engine_options
from steelyard.plan.shapes import model_of
from steelyard.serve.fleet_replay import replay_fleet
from steelyard.serve.routes.combined import Combined
from steelyard.serve.routes.heat_map import HeatMap, simulated_map
from steelyard.serve.routes.length_predictor import LengthPredictor
from steelyard.serve.routing import LongestPrefix, RotatingRoute, fewest_requests
from steelyard.serve.traces import load_rows, rate_of, rescale_rate, synthetic_rows
from steelyard.serve.traces.fleet import fleet_jobs
from steelyard.serve.traces.record import TraceRow
from steelyard.sim.fleet import FleetJob, Route
from steelyard.sim.fleet.instance import ReplicaGroup
from steelyard.units import parse

__all__ = ["FleetOptions", "serve"]

_BLOCK = 128
_HISTORY = 0.2
"""Share of a trace from which output lengths are learned before the rest is replayed."""
Routing = Literal["combined", "prefix", "least", "rotation"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Instances of a fleet.

    Args:
        model: catalog name of the model, or its size, such as 7B.
        machine: catalog name of the accelerator.
        tensor: accelerators of an instance.
        both: instances that run prompts and decode.
        prefill: instances that only run prompts.
        decode: instances that only decode.
        link: rate at which keys and values pass to instances that decode; the machine's own between
            accelerators when left out.
        token_budget: most tokens of a step where prompts are divided.
        max_num_seqs: most requests that an instance runs at once.
        block: token slots per block of the caches; a power of two that divides a trace's blocks.
    """

    model: str = "llama-3-8b"
    machine: str = "A100-SXM4-80GB"
    tensor: int = 1
    both: int = 2
    prefill: int = 0
    decode: int = 0
    link: str = ""
    token_budget: int = 2048
    max_num_seqs: int = 256
    block: int = _BLOCK

    def __post_init__(self) -> None:
        """Refuse counts out of range, in the words of the flags."""
        for name in ("both", "prefill", "decode"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name} is {getattr(self, name)}, but must be at least 0")
        if self.tensor < 1:
            raise ConfigError(f"--tensor is {self.tensor}, but must be at least 1")

    def groups(self) -> dict[str, ReplicaGroup]:
        """Return a group of every role, each with one instance where it has none."""
        arch, _ = model_of(self.model)
        wanted = Machine.from_accelerator(catalog.accelerator(self.machine))
        found = engine_options(
            arch,
            wanted,
            step_tokens=self.token_budget,
            tensors=(self.tensor,),
            pipelines=(1,),
        )
        if not found or found[0].kv_tokens < self.block:
            reason = found[0].reason if found else f"{arch.num_heads} heads cannot be divided so"
            raise InfeasibleError(
                f"{self.model} on {self.tensor} {self.machine}: {reason}",
                hint="give more accelerators with --tensor",
            )
        rate = wanted.scale_up_bytes_per_s or wanted.host_link_bytes_per_s
        rate = parse(self.link, "byte/s", where="--link") if self.link else rate
        if not rate > 0:
            raise ConfigError(f"{self.machine} has no link of its own", hint="give --link")
        size = kv_bytes_per_token(arch, wanted.dtype_bytes)
        both = ReplicaGroup(
            step_time=found[0].step_time,
            blocks=found[0].kv_tokens // self.block,
            block_size=self.block,
            token_budget=self.token_budget,
            max_num_seqs=min(self.max_num_seqs, self.token_budget),
            prefix_caching=True,
            count=max(self.both, 1),
        )
        prefill = replace(both, role="prefill", whole_prompts=True, count=max(self.prefill, 1))
        decode = replace(
            both, role="decode", transfer_s_per_token=size / rate, count=max(self.decode, 1)
        )
        return {"both": both, "prefill": prefill, "decode": decode}

    def asked(self) -> dict[str, ReplicaGroup]:
        """Return the groups that have instances."""
        return {name: item for name, item in self.groups().items() if getattr(self, name)}


def serve(
    trace: Path | None = None,
    *,
    fleet: FleetOptions | None = None,
    routing: Routing = "combined",
    heat_map: Path | None = None,
    heat_map_out: Path | None = None,
    rate: str = "",
    limit: int = 1000,
    prompt: int = 1024,
    output: int = 128,
    seed: int = 0,
    json: Switch = False,
    chart: Path | None = None,
) -> None:
    """Replay a trace on a fleet of instances: times of requests, prefix hits, instance-hours.

    Example: steelyard sim serve trace.jsonl.gz --both 2 --prefill 1 --decode 1 --routing combined

    Args:
        trace: requests with arrivals and lengths, as `serve bench` reads them; made when left out.
        fleet: instances of the fleet.
        routing: how an instance is chosen: by phases, reuse and load together; where most of the
            prompt is held; the fewest requests; or in turn.
        heat_map: JSON file that says which lengths gain by phases apart; simulated when left out.
        heat_map_out: file to store that map in.
        rate: requests per second, to which the trace is stretched; its own when left out.
        limit: requests that are replayed, the first ones; 0 for all.
        prompt: mean prompt length in tokens, without a trace.
        output: mean output length in tokens, without a trace.
        seed: seed of what is drawn.
        json: print figures as JSON.
        chart: file for instances over demand and the timeline of the busiest instance, .html, .svg,
            .png or .json.
    """
    options = fleet or FleetOptions()
    roles = options.asked()
    rows = _rows(trace, rate, limit, prompt, output, seed)
    jobs = fleet_jobs(rows, block_size=options.block)
    held = 0
    route: Route
    if routing == "combined":
        found = HeatMap.load(heat_map) if heat_map else map_of(options, seed=seed)
        if heat_map_out is not None:
            found.save(heat_map_out)
        held = max(int(_HISTORY * len(jobs)), 50)
        route, jobs = _combined(found, jobs, held)
    else:
        route = {"prefix": LongestPrefix, "least": lambda: fewest_requests,
                 "rotation": RotatingRoute}[routing]()
    replay = replay_fleet(jobs, roles, route=route, route_second=fewest_requests)
    told = {"routing": routing, "learned_from": held, "seed": seed, "model": options.model}
    if chart is not None:
        from steelyard.cli.sim.fleet_pictures import fleet_pictures
        from steelyard.runs.save import save_chart

        save_chart(fleet_pictures(replay), chart)
    print_report(page(replay, told), json=json, values=values(replay) | told)


def map_of(options: FleetOptions, *, seed: int) -> HeatMap:
    """Simulate the map of a fleet's model and machine: two instances against one and one."""
    groups = options.groups()
    plain = {
        name: replace(item, count=1, prefix_caching=False) for name, item in groups.items()
    }
    return simulated_map(
        replace(plain["both"], count=2), (plain["prefill"], plain["decode"]), seed=seed
    )


def _rows(
    trace: Path | None, rate: str, limit: int, prompt: int, output: int, seed: int
) -> list[TraceRow]:
    """Read the requests, or make them."""
    for flag, value, least in (("limit", limit, 0), ("prompt", prompt, 1), ("output", output, 1)):
        if value < least:
            raise ConfigError(f"--{flag} is {value}, but must be at least {least}")
    generator = np.random.default_rng(seed)
    asked = parse(rate, "request/s", where="--rate") if rate else 0.0
    if trace is None:
        if not asked > 0:
            raise ConfigError("without a trace --rate must be above 0", hint="--rate '2 request/s'")
        return synthetic_rows(
            generator,
            num_requests=limit or 1000,
            rate_per_s=asked,
            mean_prompt=prompt,
            mean_output=output,
            max_prompt=8 * prompt,
            max_output=8 * output,
        )
    rows = load_rows(trace, generator, limit=limit)
    if rate:
        return rescale_rate(rows, asked)
    if rate_of(rows) == float("inf"):
        raise ConfigError(
            f"all requests of {trace} arrive at once, so it has no rate", hint="give --rate"
        )
    return rows


def _combined(
    heat_map: HeatMap, jobs: list[FleetJob], held: int
) -> tuple[Route, list[FleetJob]]:
    """Learn output lengths from the first requests; return the route and the others."""
    if len(jobs) <= held:
        raise ConfigError(
            f"{len(jobs)} requests, of which {held} teach the lengths of outputs",
            hint="give more requests, or another --routing",
        )
    predictor = LengthPredictor.fit(jobs[:held])
    route = Combined(heat_map, expected_output=predictor.expected)
    rest, begin_s = jobs[held:], jobs[held].arrival_s
    for job in rest:
        job.arrival_s -= begin_s
    return route, rest
