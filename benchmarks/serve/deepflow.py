"""DeepFlow's simulated parts: staged starts, scheduling over mixed instances, a killed instance.

1. Starts of the engine on this machine: cold against a process that has imported all and waits,
   weights dropped from the page cache or in it; and the published totals of Llama3-8B with a fork
   derived from them, simulated.
2. The load step of forks, from 1 engine to 2, 8 and 64, simulated.
3. A conversation trace with shared prefixes on instances of both kinds: mean completion time of the
   combined routes against rotation, fewest requests and longest prefix; prefix hits against one
   cache of the same size. The length predictor learns from the first third of the trace; requests
   are from its middle, which nothing was chosen on.
4. The heat map: agreement of its signs over four loads, simulated.
5. An instance dies in the middle of a run.
"""

import statistics
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import Check
from benchmarks.serve._servers import make_model

from steelyard.cli.sim.serve import FleetOptions
from steelyard.serve.elastic import Lifetime
from steelyard.serve.fleet_replay import FleetReplay, replay_fleet
from steelyard.serve.front.engine.start_times import time_starts
from steelyard.serve.options import EngineOptions
from steelyard.serve.routes.combined import Combined, ServiceSeconds
from steelyard.serve.routes.heat_map import HeatMap, simulated_map
from steelyard.serve.routes.length_predictor import LengthPredictor
from steelyard.serve.routing import LongestPrefix, RotatingRoute, fewest_requests
from steelyard.serve.traces import load_rows
from steelyard.serve.traces.fleet import fleet_jobs
from steelyard.serve.traces.record import TraceRow
from steelyard.sim.fleet import FleetJob
from steelyard.sim.fleet.instance import ReplicaGroup
from steelyard.sim.serverless.inference import STEPS, published_starts

PAPER = ["21-deepflow"]

_TRACES = Path(__file__).parents[2] / "../shared/data/llm-traces"
_FLEET = FleetOptions(model="llama-3-8b", machine="A100-SXM4-80GB", both=2, prefill=1, decode=1)
_BLOCK = _FLEET.block
_BEGIN = 5000
"""First request of the middle of the trace; those before 4,000 teach the lengths."""
_RATES = {"medium": 0.7, "high": 1.7}
"""Requests per second on two instances for both phases and a pair; the trace has 3.4."""


def run(quick: bool) -> list[Check]:
    """Run all parts.

    Args:
        quick: one round of starts, few requests, and the medium load alone.
    """
    checks = _starts(1 if quick else 4)
    checks += _forks()
    roles = _FLEET.asked()
    heat_map = _map(roles, quick=quick)
    checks += _map_checks(heat_map)
    if not (_TRACES / "mooncake_conversation.jsonl.gz").exists():
        print("no traces beside the project: scheduling was not simulated")
        return sorted(checks, key=lambda check: check.name)
    rows = load_rows(_TRACES / "mooncake_conversation.jsonl.gz", np.random.default_rng(0))
    predictor = LengthPredictor.fit(fleet_jobs(rows[:4000], block_size=_BLOCK))
    checks += _lengths(rows, 500 if quick else 6000)
    study = _Study(rows, roles, heat_map, predictor, 40 if quick else 200)
    checks += study.medium()
    if not quick:
        study.print_other("high")
    checks += study.killed()
    return sorted(checks, key=lambda check: check.name)


def _starts(rounds: int) -> list[Check]:
    """Time starts here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "starts"
        millions = make_model(folder, hidden_size=512, num_layers=8)
        found = time_starts(folder, EngineOptions(), rounds=rounds)
    print(f"starts of {millions:.0f}M parameters here, seconds, median of {rounds}")
    print(f"  {'':12s}" + "".join(f"{step:>14s}" for step in STEPS) + f"{'first token':>14s}")
    totals: dict[str, list[float]] = {}
    for kind, steps in found.items():
        totals[kind] = [sum(values) for values in zip(*steps.values(), strict=True)]
        cells = [*(statistics.median(steps[step]) for step in STEPS)]
        total = statistics.median(totals[kind])
        print(f"  {kind:12s}" + "".join(f"{cell:14.3f}" for cell in (*cells, total)))
    ratios = [cold / warm for cold, warm in zip(totals["cold"], totals["dram"], strict=True)]
    print(f"  cold over waiting with weights in memory: {min(ratios):.1f} to {max(ratios):.1f}")
    return [
        Check(
            "1 cold over pre-warmed with weights in memory, measured here",
            statistics.median(ratios),
            8.0,
            "higher",
        )
    ]


def _forks() -> list[Check]:
    """Simulate published starts, one and many at a time."""
    starts = published_starts()
    totals = {kind: sum(starts.mean_s(kind).values()) for kind in starts.start_ups}
    print(
        "Llama3-8B, published totals, steps assumed: "
        + ", ".join(f"{kind} {value:.2f} s" for kind, value in totals.items())
    )
    ready = {
        count: float(
            np.mean([starts.ready_s("fork", count, seed=seed).max() for seed in range(50)])
        )
        for count in (1, 2, 8, 32, 64)
    }
    load = STEPS.index("te_load")
    loaded = {
        count: float(
            np.mean([starts.steps_s("fork", count, seed=seed)[:, load].max() for seed in range(50)])
        )
        for count in (2, 8)
    }
    print("last of so many forks ready, s: " + ", ".join(f"{n}: {t:.2f}" for n, t in ready.items()))
    print("its load step alone, s: " + ", ".join(f"{n}: {t:.2f}" for n, t in loaded.items()))
    fork = totals["cold"] / totals["fork"]
    return [
        Check("1 cold over fork, fork derived from published totals", fork, 8.0, "higher"),
        Check(
            "2 load step of forks 1 to 8 over 1 to 2, simulated",
            loaded[8] / loaded[2],
            2.0,
            "lower",
        ),
        Check("2 forks 1 to 8 over 1 to 2, whole starts", ready[8] / ready[2], 2.0, "lower"),
        Check("2 64 forks over a cold start, simulated", ready[64] / totals["cold"], 0.25, "lower"),
    ]


def _map(roles: dict[str, ReplicaGroup], *, quick: bool) -> HeatMap:
    """Simulate the map, two instances against a pair."""
    plain = {name: replace(item, prefix_caching=False) for name, item in roles.items()}
    return simulated_map(
        plain["both"],
        (plain["prefill"], plain["decode"]),
        prompts=(1024, 8192) if quick else (512, 1024, 2048, 4096, 8192, 16_384, 32_768),
        ratios=(0.02, 0.05, 0.2) if quick else (0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        requests=50 if quick else 100,
    )


def _map_checks(heat_map: HeatMap) -> list[Check]:
    """Compare signs over the loads."""
    print(f"heat map, mean over loads {heat_map.loads.tolist()}; {heat_map.source}")
    print(f"  {'prompt':>8s}" + "".join(f"{ratio:8.2f}" for ratio in heat_map.ratios))
    for prompt, row in zip(heat_map.prompts, heat_map.means, strict=True):
        print(f"  {prompt:8.0f}" + "".join(f"{value:+8.3f}" for value in row))
    near = heat_map.sign_stability(tolerance=0.01)
    print(f"  signs that agree at all loads, values within .01 of 0 apart: {near:.1%}")
    corner = heat_map.means[np.ix_(heat_map.prompts >= 8192, heat_map.ratios <= 0.05)]
    return [
        Check("4 signs stable over four loads", heat_map.sign_stability(), 0.8, "higher"),
        Check("4 long prompts, short outputs positive", float((corner > 0).mean()), 1.0, "higher"),
    ]


def _lengths(rows: Sequence[TraceRow], count: int) -> list[Check]:
    """Predict buckets of requests that came after those it learned from."""
    checks = []
    azure = load_rows(_TRACES / "azure2023_conv.csv.gz", np.random.default_rng(0))
    for name, kind, cut in (("conversation", rows, 4000), ("azure chat", azure, 8000)):
        jobs = fleet_jobs(kind, block_size=_BLOCK)
        predictor = LengthPredictor.fit(jobs[:cut])
        hits = []
        for job in jobs[cut : cut + count]:
            right = predictor.true_bucket(job.output_tokens)
            hits.append((predictor.bucket_of(job) == right, predictor.median_bucket == right))
            predictor.seen(job)
        own, median = np.mean(hits, axis=0)
        print(f"length of {name}, {len(hits)} held out: {own:.1%}, always the median {median:.1%}")
        title = f"3 bucket accuracy over always the median, {name}"
        checks.append(Check(title, float(own / median), 1.0, "higher"))
    return checks


@dataclass
class _Study:
    """Runs of one part of the trace.

    Attributes:
        rows: the trace.
        roles: the fleet.
        heat_map: its map.
        predictor: expects lengths.
        count: requests of a run.
    """

    rows: Sequence[TraceRow]
    roles: dict[str, ReplicaGroup]
    heat_map: HeatMap
    predictor: LengthPredictor
    count: int

    def jobs(self, load: str) -> list[FleetJob]:
        """Return the requests at a load, bursts as they are."""
        part = self.rows[_BEGIN : _BEGIN + self.count]
        jobs = fleet_jobs(part, block_size=_BLOCK)
        first_s, last_s = part[0].arrival_s, part[-1].arrival_s
        factor = len(part) / (last_s - first_s) / _RATES[load]
        for job in jobs:
            job.arrival_s = (job.arrival_s - first_s) * factor
        return jobs

    def routes(self) -> dict[str, Callable[[], Callable[[Any, FleetJob], int]]]:
        """Return every route by its name."""
        service = ServiceSeconds.of(self.roles["both"].step_time)
        predicted = self.predictor.expected
        return {
            "rotation": RotatingRoute,
            "fewest requests": lambda: fewest_requests,
            "longest prefix": lambda: LongestPrefix(slack=8),
            "combined as published": lambda: Combined(self.heat_map, expected_output=predicted),
            "combined": lambda: Combined(self.heat_map, expected_output=predicted, service=service),
            "combined, lengths known": lambda: Combined(
                self.heat_map, expected_output=lambda job: job.output_tokens, service=service
            ),
            "combined, median length": lambda: Combined(
                self.heat_map, expected_output=lambda job: 350.0, service=service
            ),
        }

    def replay(self, load: str, name: str, lives: dict[int, Lifetime] | None = None) -> FleetReplay:
        """Run one route and print what came of it."""
        route = self.routes()[name]()
        found = replay_fleet(
            self.jobs(load), self.roles, route=route, route_second=fewest_requests, lives=lives
        )
        times = found.quantiles()
        print(
            f"  {load:7s}{name:25s}completion {times['completion']['mean']:7.2f} s, p90 "
            f"{times['completion']['p90']:7.2f}, first token {times['ttft']['mean']:6.2f}, hits "
            f"{found.prefix_hits:.3f}, busy " + " ".join(f"{item:.2f}" for item in found.busy()),
            flush=True,
        )
        return found

    def medium(self) -> list[Check]:
        """Compare all routes at medium load."""
        runs = {name: self.replay("medium", name) for name in self.routes()}
        means = {name: float(item.completion_s.mean()) for name, item in runs.items()}
        simple = min(means[name] for name in ("rotation", "fewest requests", "longest prefix"))
        oracle = self.oracle_hits()
        print(f"  one cache as large as those of all that run prompts: hits {oracle:.3f}")
        regret = means["combined"] / means["combined, lengths known"] - 1
        print(f"  regret of predicted lengths against known ones: {regret:+.2%} completion time")
        hits = runs["combined"].prefix_hits / oracle
        return [
            Check("3 completion, combined over best simple", means["combined"] / simple, 0.95,
                  "lower"),
            Check("3 completion, published rule over best simple",
                  means["combined as published"] / simple, 0.95, "lower"),
            Check("3 prefix hits over one cache", hits, 0.8, "higher"),
        ]  # fmt: skip

    def oracle_hits(self) -> float:
        """Return the hits of one cache that keeps what was used last, with the memory of all."""
        room = sum(
            item.blocks * item.count for name, item in self.roles.items() if name != "decode"
        )
        held: OrderedDict[int, None] = OrderedDict()
        found = total = 0
        for job in self.jobs("medium"):
            total += job.input_tokens
            names = job.block_ids[: (job.input_tokens - 1) // _BLOCK]
            known = next((at for at, name in enumerate(names) if name not in held), len(names))
            found += known * _BLOCK
            for name in reversed(job.block_ids):
                held[name] = None
                held.move_to_end(name)
            while len(held) > room:
                held.popitem(last=False)
        return found / total

    def print_other(self, load: str) -> None:
        """Print what another load does; nothing is asked of it."""
        for name in ("rotation", "fewest requests", "combined as published", "combined"):
            self.replay(load, name)

    def killed(self) -> list[Check]:
        """Kill an instance of both phases in the middle, and have another take its place."""
        at_s = self.jobs("medium")[self.count // 2].arrival_s
        starts, checks = published_starts(), []
        for kind in ("cold", "dram"):
            start_s = float(starts.ready_s(kind, 1, seed=0)[0])
            death = {0: Lifetime(dies_at_s=at_s, start_s=partial(float, start_s))}
            found = self.replay("medium", "combined", death)
            retried = [job for job in found.jobs if job.retries]
            ends = [job.last_token_s for job in found.jobs]
            again_s = max((job.first_token_s for job in retried), default=at_s) - at_s
            done_s = max((job.last_token_s for job in retried), default=at_s) - at_s
            print(
                f"  died at {at_s:.0f} s, {kind} start {start_s:.1f} s: {len(retried)} requests "
                f"retried, all had a token again after {again_s:.1f} s, all were done after "
                f"{done_s:.1f} s"
            )
            lost = float(np.sum(~np.isfinite(ends)))
            checks.append(Check(f"5 requests lost, {kind} start", lost, 0.0, "lower"))
            checks.append(
                Check(f"5 recovery over 5 minutes, {kind} start", again_s / 300, 1.0, "lower")
            )
        return checks
