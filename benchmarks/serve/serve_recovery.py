"""The engine is killed under 32 streams: seconds until all know, and until the next answer.

In each round 32 streams are opened. Once all of them have text, the engine process is killed and,
at once, one more request is sent. A stream that was open has to end with an error event, and the
further request to be answered by another engine: by the spare, or, without one, by an engine that
has yet to start.

Without a spare the waits before a restart double from round to round, as they do for any engine
that dies within a minute of its start, so only a few kills are made; they are reported, without a
bar.
"""

import asyncio
import math
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from benchmarks.common import Check, median_spread
from benchmarks.serve._servers import Running, make_model, ours

PAPER = ["28-scalellm"]

_NUM_STREAMS = 32
_TIMEOUT_S = 120.0
_POOL_BYTES = 512 * 2**20
_STREAM = {"prompt": [1, 2, 3], "max_tokens": 900, "ignore_eos": True, "stream": True}
_NEXT = {"prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": True}
_ERROR = b"engine_restarted"


@dataclass(frozen=True)
class _Kill:
    """What clients saw of one kill.

    Attributes:
        error_s: from the kill until the last stream had its error; infinite when one had none.
        answer_s: from the kill until the next request was answered; infinite when it was refused.
    """

    error_s: float
    answer_s: float


def run(quick: bool) -> list[Check]:
    """Kill engines with and without a spare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recovery"
        millions = (
            make_model(path, hidden_size=256, num_layers=4)
            if quick
            else make_model(path, hidden_size=512, num_layers=6)
        )
        print(f"{millions:.0f}M parameters, {_NUM_STREAMS} streams")
        spared = _kills(path, 2 if quick else 10, has_spare=True)
        alone = _kills(path, 1 if quick else 3, has_spare=False)
    _print("with a spare", spared)
    _print("without", alone)
    # What the streams are told does not depend on there being another engine.
    errors = median_spread([item.error_s for item in [*spared, *alone]])
    answers = median_spread([item.answer_s for item in spared])
    return [
        Check("s from kill to the error in every stream, median", errors.median, 0.3, "lower"),
        Check("s from kill to the error in every stream, worst", errors.high, 0.3, "lower"),
        Check("s from kill to the next answer, with a spare, median", answers.median, 1.0, "lower"),
        Check("s from kill to the next answer, with a spare, worst", answers.high, 1.0, "lower"),
    ]


def _print(name: str, kills: list[_Kill]) -> None:
    """Print medians and worst."""
    errors = median_spread([item.error_s for item in kills])
    answers = median_spread([item.answer_s for item in kills])
    print(
        f"  {name:14s} {len(kills):2d} kills: errors in all streams after {errors.median:.3f} s "
        f"(worst {errors.high:.3f}), next answer after {answers.median:.2f} s "
        f"(worst {answers.high:.2f})"
    )


def _kills(path: Path, count: int, *, has_spare: bool) -> list[_Kill]:
    """Serve a model and kill its engine again and again."""
    engine = {"pool_bytes": _POOL_BYTES}
    with ours(path, is_pinned=False, engine=engine, spare=has_spare) as server:
        return [asyncio.run(_kill(server, has_spare=has_spare)) for _ in range(count)]


async def _kill(server: Running, *, has_spare: bool) -> _Kill:
    """Open streams, kill the engine under them and wait for all that comes."""
    base = f"http://{server.endpoint.host}:{server.endpoint.port}"
    limits = httpx.Limits(max_connections=2 * _NUM_STREAMS)
    async with (
        asyncio.timeout(_TIMEOUT_S),
        httpx.AsyncClient(base_url=base, timeout=_TIMEOUT_S, limits=limits) as client,
    ):
        while (
            has_spare and "steelyard_spare_engines 1.0" not in (await client.get("/metrics")).text
        ):
            await asyncio.sleep(0.1)
        opened = asyncio.Semaphore(0)
        streams = [asyncio.create_task(_until_error(client, opened)) for _ in range(_NUM_STREAMS)]
        for _ in streams:
            await opened.acquire()
        os.kill(server.engine_pid, signal.SIGKILL)
        start_s = time.perf_counter()
        response = await client.post("/v1/completions", json=_NEXT)
        answered_s = time.perf_counter() if response.status_code == 200 else math.inf
        ends_s = await asyncio.gather(*streams)
    return _Kill(max(ends_s) - start_s, answered_s - start_s)


async def _until_error(client: httpx.AsyncClient, opened: asyncio.Semaphore) -> float:
    """Read a stream; return when its error came, infinity when it ended without one."""
    async with client.stream("POST", "/v1/completions", json=_STREAM) as response:
        opened.release()  # the headers come with the first text
        tail = b""
        async for data in response.aiter_raw():
            tail = tail[-len(_ERROR) :] + data
            if _ERROR in tail:
                return time.perf_counter()
    return math.inf
