"""The gateway with its engine process against the naive front, over one engine and model.

Two models: one small enough that the front decides (64 streams give the gateway some ten thousand
tokens per second), and one of a usual CPU size beside it. On two cores the engine is pinned to one,
the gateway and the sending processes to the other; the naive front runs with one core and with
both, and its better run counts. Loads are closed loops of 64 streams but for the overload.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.serve import _concurrency_map
from benchmarks.serve._queue_model import fit
from benchmarks.serve._servers import (
    ENGINE_CORE,
    FRONT_CORE,
    Running,
    make_model,
    naive,
    ours,
    refresh,
)

from steelyard.serve.client.load import LoadOptions, LoadResult, run_load
from steelyard.serve.client.summary import LoadSummary, Slo, summarize
from steelyard.serve.traces.record import TraceRow

PAPER = ["28-scalellm"]

_STREAMS = 64
_PROMPT, _OUTPUT, _VOCAB = 32, 64, 1024
_FRONT_STAGES = ("parse", "tokenize", "queue", "send", "detokenize", "relay")


@dataclass(frozen=True)
class Size:
    """A model and how much is sent to it.

    Attributes:
        name: in the table.
        hidden_size: width.
        num_layers: depth.
        requests: of each closed loop.
    """

    name: str
    hidden_size: int
    num_layers: int
    requests: int


def run(quick: bool) -> list[Check]:
    """Measure both fronts on both models, then replicas against threads."""
    small = Size("small", 64, 1, 128 if quick else 512)
    large = Size("usual", 256 if quick else 512, 4 if quick else 8, 64 if quick else 192)
    with tempfile.TemporaryDirectory() as folder, _on_front_core():
        checks = _compare(Path(folder) / "small", small, quick)
        checks += _measure_shares(Path(folder) / "usual", large, quick)
    return checks + _concurrency_map.checks(quick)


@contextmanager
def _on_front_core() -> Iterator[None]:
    """Keep this process and the senders it starts on the gateway's core."""
    before = os.sched_getaffinity(0)
    pinned = {FRONT_CORE, ENGINE_CORE} <= before
    if pinned:
        os.sched_setaffinity(0, {FRONT_CORE})
    print(
        f"engine on core {ENGINE_CORE}, gateway and senders on core {FRONT_CORE}"
        if pinned
        else "one core only, nothing is pinned"
    )
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _make(folder: Path, size: Size) -> None:
    """Save a model and say how large it is."""
    millions = make_model(
        folder, hidden_size=size.hidden_size, num_layers=size.num_layers, vocab_size=_VOCAB
    )
    print(
        f"{size.name} model, {millions:.1f}M parameters, {_STREAMS} streams of {_PROMPT} + "
        f"{_OUTPUT} tokens"
    )


def _rows(
    count: int, output: int = _OUTPUT, rate_per_s: float = 0.0, seed: int = 0
) -> list[TraceRow]:
    """Return requests of one length; arrivals are Poisson when there is a rate."""
    gaps = (
        np.random.default_rng(seed).exponential(1 / rate_per_s, count)
        if rate_per_s
        else np.zeros(count)
    )
    return [
        TraceRow(arrival_s=at, input_tokens=_PROMPT, output_tokens=output)
        for at in np.cumsum(gaps).tolist()
    ]


def _load(
    server: Running, rows: list[TraceRow], concurrency: int, *, processes: int = 1
) -> LoadResult:
    """Send rows; each server has seen some requests before."""
    options = LoadOptions(
        endpoint=server.endpoint,
        concurrency=concurrency,
        warm_up=16,
        vocab_size=_VOCAB,
        processes=processes,
    )
    return run_load(options, rows)


def _show(name: str, summary: LoadSummary, server_cpu_s: float) -> None:
    """Print one row of the table."""
    e2e, ttft, tpot, gap = (
        value * 1e3
        for value in (summary.e2e.mean, summary.ttft.mean, summary.tpot.mean, summary.itl.p99)
    )
    print(
        f"  {name:24s} {summary.output_tokens_per_s:8.0f} tokens/s  e2e {e2e:7.1f} ms  ttft "
        f"{ttft:7.1f} ms  tpot {tpot:6.2f} ms"
        f"  gap p99 {gap:6.1f} ms  sender {summary.client_cpu:4.0%}  server "
        f"{server_cpu_s / summary.duration_s:4.0%} of a core"
        + (f"  errors {summary.error_words()}" if summary.errors else "")
    )


def _closed(name: str, server: Running, count: int, *, rounds: int = 1) -> LoadSummary:
    """Run a closed loop and print it; of several rounds the one of median latency is given."""
    found: list[LoadSummary] = []
    for _ in range(rounds):
        refresh()
        before_s = server.cpu_s()
        summary = summarize(_load(server, _rows(count), _STREAMS))
        _show(name, summary, server.cpu_s() - before_s)
        found.append(summary)
    return sorted(found, key=lambda item: item.e2e.mean)[len(found) // 2]


def _alone(folder: Path, count: int) -> float:
    """Return the mean seconds per request of the engine without a front."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.serve._engine_alone",
        str(folder),
        str(ENGINE_CORE),
    ]
    numbers = [str(number) for number in (_STREAMS, count, _PROMPT, _OUTPUT)]
    out = subprocess.run(
        [*command, *numbers], capture_output=True, text=True, check=True
    ).stdout.split()
    print(
        f"  {'engine alone':24s} {float(out[1]):8.0f} tokens/s  e2e {float(out[0]) * 1e3:7.1f} ms"
    )
    return float(out[0])


def _compare(folder: Path, size: Size, quick: bool) -> list[Check]:
    """Compare the fronts on the small model."""
    _make(folder, size)
    rounds = 1 if quick else 3
    _alone(folder, size.requests)
    with ours(folder) as server:
        fast = _closed("gateway and engine", server, size.requests, rounds=rounds)
        _print_queue(server, size.requests)
    slow = [_naive(folder, cores, size.requests, rounds) for cores in ("1", "0,1")]
    best = min(slow, key=lambda item: item.e2e.mean)
    latency, rate = (
        best.e2e.mean / fast.e2e.mean,
        fast.output_tokens_per_s / best.output_tokens_per_s,
    )
    print(f"  naive over gateway: latency {latency:.2f}x, rate {rate:.2f}x")
    return [
        Check(
            "1 latency or rate over the naive front at 64 streams",
            max(latency, rate),
            3.0,
            "higher",
        )
    ]


def _naive(folder: Path, cores: str, count: int, rounds: int) -> LoadSummary:
    """Run the closed loop against the naive front."""
    with naive(folder, cores=cores) as server:
        return _closed(f"naive on core {cores}", server, count, rounds=rounds)


def _print_queue(server: Running, count: int) -> None:
    """Print the queue model of the gateway from its processor time at two output lengths."""
    samples = []
    for output in (8, _OUTPUT):
        before_s = server.cpu_s()
        _load(server, _rows(count, output), _STREAMS)
        samples.append((count + 16, (count + 16) * output, server.cpu_s() - before_s))
    queue = fit(samples)
    rate = queue.saturation_per_s(_OUTPUT)
    half = queue.wait_s(rate / 2, _OUTPUT)
    print(
        f"  gateway as M/G/1: {queue.request_s * 1e3:.2f} ms per request, "
        f"{queue.token_s * 1e6:.1f} us per token; saturates at"
        f" {rate:.0f} requests/s of {_OUTPUT} tokens ({rate * _OUTPUT:.0f} tokens/s); at half of "
        f"that a request waits {half * 1e3:.2f} ms"
    )


def _measure_shares(folder: Path, size: Size, quick: bool) -> list[Check]:
    """Measure what the front adds, on the larger model."""
    _make(folder, size)
    alone: list[float] = []
    fast: list[LoadSummary] = []
    with ours(folder) as server:
        for _ in range(2 if quick else 5):
            fast.append(_closed("gateway and engine", server, size.requests))
            alone.append(_alone(folder, size.requests))
        through = sorted(fast, key=lambda item: item.e2e.mean)[len(fast) // 2]
        added = float(
            np.median([1 - bare / item.e2e.mean for bare, item in zip(alone, fast, strict=True)])
        )
        checks = [*_stage_checks(through, added), _first_token(server, 8 if quick else 32)]
    with ours(folder, max_requests=96, engine={"max_model_len": 128}) as server:
        checks += _overload(server, through.requests_per_s, through.e2e.mean, quick)
    slow = _naive(folder, "0,1", size.requests, 1)
    naively = 1 - float(np.median(alone)) / slow.e2e.mean
    print(
        f"  the naive front adds {naively:.1%}; naive over gateway: latency "
        f"{slow.e2e.mean / through.e2e.mean:.2f}x"
    )
    return [
        *checks,
        Check("2 share of latency the naive front adds at 64 streams", naively, 0.20, "higher"),
    ]


def _stage_checks(summary: LoadSummary, added: float) -> list[Check]:
    """Check the front's share of the latency, and that the stages tell it all."""
    means = {name: item.mean for name, item in summary.stages.items()}
    told = sum(means.values())
    print(
        "  stages, ms: " + ", ".join(f"{name} {value * 1e3:.2f}" for name, value in means.items())
    )
    share = sum(means.get(name, 0.0) for name in _FRONT_STAGES) / summary.e2e.mean
    print(
        f"  front stages are {share:.2%} of the latency; over the engine alone it is {added:+.1%} "
        f"longer"
    )
    accounted = min(told / summary.e2e.mean, summary.e2e.mean / told)
    return [
        Check("2 share of latency in gateway and relay at 64 streams", share, 0.05, "lower"),
        Check("2 share of latency added over the engine alone at 64 streams", added, 0.05, "lower"),
        Check("3 stages over end-to-end latency", accounted, 0.95, "higher"),
    ]


def _first_token(server: Running, count: int) -> Check:
    """Check what the front adds to the first token of a lone request.

    That is all but the engine's queue and prefill.
    """
    result = _load(server, _rows(count, output=4), 1)
    added = [
        item.ttft_s - item.stages["engine_queue"] - item.stages["prefill"]
        for item in result.records
        if item.is_ok
    ]
    print(
        f"  first token of a lone request: median {np.median(added) * 1e3:.2f} ms beyond the "
        f"engine's, worst {max(added) * 1e3:.2f} ms"
    )
    return Check(
        "2 ms added to the first token at concurrency 1",
        float(np.median(added)) * 1e3,
        2.0,
        "lower",
    )


def _overload(server: Running, saturation_per_s: float, e2e_s: float, quick: bool) -> list[Check]:
    """Send three times what the engine can do, and check what it still does."""
    slo = Slo(e2e_s=4 * e2e_s)
    duration_s = 5.0 if quick else 30.0
    engine = server.engine_pid
    before = server.memory_bytes(), server.memory_bytes(engine)
    window = min(e2e_s, duration_s / 2), duration_s
    peak = _goodput_per_s(_open(server, 0.9 * saturation_per_s, duration_s), slo, window)
    result = _open(server, 3 * saturation_per_s, duration_s)
    over = _goodput_per_s(result, slo, window)
    refused = [item.finished_s - item.sent_s for item in result.records if item.error == "http 429"]
    others = [item.error for item in result.records if item.error and item.error != "http 429"]
    best = max(peak, saturation_per_s)
    growth = [server.memory_bytes() - before[0], server.memory_bytes(engine) - before[1]]
    slowest = float(np.percentile(refused, 99)) * 1e3 if refused else float("nan")
    print(
        f"  at 3x saturation ({saturation_per_s:.1f} requests/s): goodput {over:.1f} against "
        f"{best:.1f} requests/s,"
        f" {len(refused)} of {len(result.records)} answered 429, 99 % of them within "
        f"{slowest:.1f} ms, other errors {len(others)}; memory"
        f" gateway {growth[0] / 2**20:+.1f}, engine {growth[1] / 2**20:+.1f} MiB; good: done "
        f"within {slo.e2e_s:.1f} s"
    )
    return [
        Check("6 goodput at 3x saturation over its peak", over / best, 0.90, "higher"),
        Check("6 ms until 429, 99th percentile", slowest, 50.0, "lower"),
        Check(
            "6 gateway memory growth at 3x saturation, share", growth[0] / before[0], 0.5, "lower"
        ),
    ]


def _goodput_per_s(result: LoadResult, slo: Slo, window: tuple[float, float]) -> float:
    """Return good answers per second between two moments, in seconds from the first sending."""
    begin_s = min(item.sent_s for item in result.records)
    good = [
        item
        for item in result.records
        if item.is_ok and slo.holds(item) and window[0] <= item.finished_s - begin_s <= window[1]
    ]
    return len(good) / (window[1] - window[0])


def _open(server: Running, rate_per_s: float, duration_s: float) -> LoadResult:
    """Send at a rate, Poisson."""
    return _load(server, _rows(max(int(rate_per_s * duration_s), 8), rate_per_s=rate_per_s), 0)
