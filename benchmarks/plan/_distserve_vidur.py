"""The compiled loop beside Vidur on the same trace, replica and step times.

Vidur's package takes its step times from profiles that it downloads, so both get the same published
fit instead. That leaves its event loop, scheduler and entities to be timed, without the look-ups in
its own tables. Its version 0.0.26 fails when a request is preempted (the count of tokens that it
restarts with is that of before), so there is room for keys and values enough.
"""

import json
import subprocess
import time
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.common import Check
from benchmarks.plan._distserve_paper import drawn_lengths, published_fits
from benchmarks.serve._json_process import peer_environment
from numpy.typing import NDArray

from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import BackendError
from steelyard.plan.service.load import ServiceLoad
from steelyard.sim.fleet.instance import FleetRun, ReplicaGroup, simulate_fleet

__all__ = ["vidur_checks"]

_RATE = 1.5
"""Requests per second, at which vLLM's OPT-13B batches some ten sequences."""
_BLOCKS, _BUDGET, _SEQUENCES = 20_000, 2048, 256
_TURNS = 3
_EACH = 5
"""Runs of ours in a turn: one takes milliseconds."""

Trace = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]


def vidur_checks(count: int) -> list[Check]:
    """Simulate with both in turns; no check where Vidur is not installed.

    Args:
        count: requests.
    """
    fits = published_fits("opt-13b", "vllm")[1]
    prefill, decode = fits["prefill"], fits["decode"]
    group = ReplicaGroup(
        step_time=PhaseStepTime.from_fits(prefill=prefill, decode=decode, source="fit of vLLM"),
        blocks=_BLOCKS,
        token_budget=_BUDGET,
        max_num_seqs=_SEQUENCES,
        whole_prompts=True,
    )
    load = ServiceLoad.drawn(*drawn_lengths("sharegpt"), np.random.default_rng(0), count=count)
    trace = load.lasting(_RATE, 0.0)
    run, _ = _ours(group, trace)  # compiles
    ratios = []
    for _ in range(_TURNS):
        run, spent_s = _ours(group, trace)
        try:
            found = _theirs(trace, prefill, decode)
        except BackendError as error:
            print(f"left out: {error}; {error.hint}")
            return []
        ratios.append(found["seconds"] / spent_s)
        print(
            f"{count} requests: {count / spent_s:,.0f} per processor second, Vidur 0.0.26 "
            f"{count / found['seconds']:,.0f}"
        )
    _compare(run, found)
    print(f"over Vidur: {', '.join(f'{ratio:.0f}' for ratio in ratios)}")
    return [Check("4 over Vidur, same trace", float(np.median(ratios)), 20.0, "higher")]


def _ours(group: ReplicaGroup, trace: Trace) -> tuple[FleetRun, float]:
    """Simulate; return the run and processor seconds."""
    start = time.process_time()
    for _ in range(_EACH):
        run = simulate_fleet([group], *trace)
    return run, (time.process_time() - start) / _EACH


def _theirs(
    trace: Trace, prefill: tuple[float, float, float], decode: tuple[float, float, float]
) -> dict:
    """Simulate with Vidur."""
    names = ("arrival_s", "input_tokens", "output_tokens")
    given = {name: values.tolist() for name, values in zip(names, trace, strict=True)} | {
        "prefill": prefill,
        "decode": decode,
        "blocks": _BLOCKS,
        "block_size": 16,
        "token_budget": _BUDGET,
        "max_num_seqs": _SEQUENCES,
    }
    done = subprocess.run(
        [str(peers.python("vidur")), str(Path(__file__).with_name("_vidur_program.py"))],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env=peer_environment() | {"WANDB_MODE": "disabled"},
    )
    if done.returncode:
        raise BackendError(
            f"Vidur failed: {done.stderr.strip().splitlines()[-1]}",
            hint="python -m benchmarks peers install vidur",
        )
    return json.loads(done.stdout.splitlines()[-1])


def _compare(run: FleetRun, found: dict) -> None:
    """Print how far the results are apart."""
    line = run.timeline
    first, last = (np.array(found[name]) for name in ("first_token_s", "last_token_s"))
    pairs = {
        "time to the first token": (line.ttft_s, first - line.arrival_s),
        "latency": (line.last_token_s - line.arrival_s, last - line.arrival_s),
    }
    for name, (ours, theirs) in pairs.items():
        print(
            f"{name}: mean {ours.mean():.4f} s, Vidur {theirs.mean():.4f} s; P90 "
            f"{np.quantile(ours, 0.9):.4f} s, Vidur {np.quantile(theirs, 0.9):.4f} s"
        )
