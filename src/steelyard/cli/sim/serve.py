"""`steelyard sim serve`: a trace on a fleet of instances, routed by a policy, in virtual time."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from steelyard.serve.elastic import Lifetime
from steelyard.serve.fleet_replay import replay_fleet
from steelyard.serve.routes.combined import Combined, ServiceSeconds
from steelyard.serve.routes.heat_map import HeatMap, simulated_map
from steelyard.serve.routes.length_predictor import LengthPredictor
from steelyard.serve.routing import LongestPrefix, RotatingRoute, fewest_requests
from steelyard.serve.traces import load_rows, rate_of, rescale_rate, synthetic_rows
from steelyard.serve.traces.fleet import fleet_jobs
from steelyard.serve.traces.record import TraceRow
from steelyard.sim.fleet import FleetJob
from steelyard.sim.fleet.instance import ReplicaGroup
from steelyard.sim.serverless.inference import EngineStarts, published_starts
from steelyard.units import parse

__all__ = ["FleetOptions", "serve"]

_BLOCK = 128
_MOST_STARTS = 1000
"""Starts that are drawn; a fleet that starts more takes them again in turn."""
_HISTORY = 0.2
"""Share of a trace from which output lengths are learned before the rest is replayed."""
Routing = Literal["combined", "pd-aware", "prefix", "least", "rotation"]


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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """How instances for both phases come and go.

    Args:
        keep_alive: time for which an idle instance stays; left out, all stay for good. With it none
            is there at the beginning.
        most_requests: requests from which on an instance is full and another one is started.
        starts: JSON file of starts, made by `steelyard serve starts`; left out, those published for
            Llama3-8B.
        mechanism: kind of start: cold, cold-dram, pre-warmed, dram or fork.
        dies: time at which the first instance dies with all it holds; left out, none does.
    """

    keep_alive: str = ""
    most_requests: int = 16
    starts: Path | None = None
    mechanism: str = "dram"
    dies: str = ""

    def lives(self, count: int, seed: int) -> dict[int, Lifetime]:
        """Return how the instances for both phases come and go."""
        keep_s = parse(self.keep_alive, "s", where="--keep-alive") if self.keep_alive else math.inf
        dies_s = parse(self.dies, "s", where="--dies") if self.dies else math.inf
        if not keep_s > 0 or not dies_s >= 0 or self.most_requests < 1:
            raise ConfigError(
                f"--keep-alive {self.keep_alive or 'none'}, --dies {self.dies or 'none'} and "
                f"--most-requests {self.most_requests}: above 0, at least 0 and at least 1"
            )
        if math.inf in (keep_s, dies_s) and keep_s == dies_s:
            return {}
        if not count:
            raise ConfigError(
                "--keep-alive and --dies are about instances of both phases, but --both is 0",
                hint="give --both, or leave them out",
            )
        known = EngineStarts.load(self.starts) if self.starts else published_starts()
        if self.mechanism == "fork" and keep_s < math.inf:
            raise ConfigError(
                "--mechanism fork needs an instance that always runs, but --keep-alive gives back "
                "the last one too",
                hint="take --mechanism dram, or leave --keep-alive out",
            )
        drawn = known[self.mechanism].sample(_MOST_STARTS, seed).sum(axis=1)
        seconds = iter(itertools.cycle(drawn.tolist()))
        return {
            place: Lifetime(
                start_s=partial(next, seconds),
                keep_alive_s=keep_s,
                dies_at_s=dies_s if place == 0 else math.inf,
                is_asleep=keep_s < math.inf,
            )
            for place in range(count)
        }


def serve(
    trace: Path | None = None,
    *,
    fleet: FleetOptions | None = None,
    scaling: ScalingOptions | None = None,
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
        scaling: how they come and go.
        routing: how an instance is chosen: by phases, reuse and load in seconds; by the published
            rule of phases first; where most of the prompt is held; the fewest requests; or in turn.
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
    route: Callable[[Any, FleetJob], int]
    if routing in ("combined", "pd-aware"):
        found = HeatMap.load(heat_map) if heat_map else map_of(options, seed=seed)
        if heat_map_out is not None:
            found.save(heat_map_out)
        held = max(int(_HISTORY * len(jobs)), 50)
        service = ServiceSeconds.of(options.groups()["both"].step_time)
        route, jobs = _combined(found, jobs, held, service if routing == "combined" else None)
    else:
        simple = {"prefix": LongestPrefix, "rotation": RotatingRoute}
        route = simple[routing]() if routing in simple else fewest_requests
    come_and_go = scaling or ScalingOptions()
    lives = come_and_go.lives(options.both, seed)
    replay = replay_fleet(
        jobs,
        roles,
        route=route,
        route_second=fewest_requests,
        lives=lives,
        most_requests=come_and_go.most_requests if come_and_go.keep_alive else 0,
    )
    told = {"routing": routing, "learned_from": held, "seed": seed, "model": options.model}
    if chart is not None:
        from steelyard.cli.sim.fleet_pictures import fleet_pictures
        from steelyard.runs.save import save_chart

        save_chart(fleet_pictures(replay), chart)
    print_report(page(replay, told), json=json, values=values(replay) | told)


def map_of(options: FleetOptions, *, seed: int) -> HeatMap:
    """Simulate the map of a fleet's model and machine: two instances against one and one."""
    if not (options.both and options.prefill):
        # There is nothing to choose between, and a map takes seconds.
        return HeatMap(np.ones(1), np.ones(1), np.ones(1), np.zeros((1, 1, 1)), "one type alone")
    groups = options.groups()
    plain = {name: replace(item, count=1, prefix_caching=False) for name, item in groups.items()}
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
    heat_map: HeatMap, jobs: list[FleetJob], held: int, service: ServiceSeconds | None
) -> tuple[Callable[[Any, FleetJob], int], list[FleetJob]]:
    """Learn output lengths from the first requests; return the route and the others."""
    if len(jobs) <= held:
        raise ConfigError(
            f"{len(jobs)} requests, of which {held} teach the lengths of outputs",
            hint="give more requests, or another --routing",
        )
    predictor = LengthPredictor.fit(jobs[:held])
    route = Combined(heat_map, expected_output=predictor.expected, service=service)
    rest, begin_s = jobs[held:], jobs[held].arrival_s
    for job in rest:
        job.arrival_s -= begin_s
    return route, rest
