"""Mixed load for minutes with everything that goes wrong in it, and an engine that is killed.

Nothing leaks, everyone gets an answer.

Clients of nine kinds send at once, each in an endless loop: whole and streamed answers, several
choices, aborts in mid-stream, sockets closed without a word, prompts and bodies that are too long,
malformed JSON, readers that take nothing, and embeddings. Halfway the engine process is killed; the
gateway has to start another. At the end no block may be held, no request be in flight, the
gateway's memory must not have grown, and every request must have had an answer: a good one, the
error that it asked for, or an error that says that the engine was restarted.

The full run lasts `STEELYARD_SOAK_MINUTES` minutes, 20 by default; the quick one 40 seconds.
"""

import asyncio
import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from benchmarks.common import Check
from benchmarks.serve._servers import Running, make_model, ours

PAPER = ["28-scalellm"]

_QUICK_S = 40.0
_MINUTES = 20.0
_IDLE_S = 20.0
_RESTART_S = 60.0
_EACH = 2
"""Clients of each kind."""


@dataclass
class Tally:
    """What clients saw.

    Attributes:
        outcomes: count by kind and outcome.
        wrong: outcomes nobody should see, a few of them.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def expect(self, kind: str, outcome: str, *allowed: str) -> None:
        """Count an outcome; 429, and 503 of a restart, are always allowed."""
        self.outcomes[f"{kind} {outcome}"] += 1
        if outcome not in (*allowed, "429", "503 engine_restarted"):
            self.wrong.append(f"{kind}: {outcome}")


@dataclass(frozen=True)
class World:
    """What all clients share.

    Attributes:
        client: keeps connections.
        server: server under test.
        tally: count of outcomes.
        end_s: time to stop, on the monotonic clock.
        generator: draws lengths.
    """

    client: httpx.AsyncClient
    server: Running
    tally: Tally
    end_s: float
    generator: np.random.Generator

    def body(self, **fields: object) -> dict[str, object]:
        """Return a request of random lengths."""
        prompt = self.generator.integers(0, 256, int(self.generator.integers(1, 120))).tolist()
        return {
            "prompt": prompt,
            "max_tokens": int(self.generator.integers(1, 60)),
            "ignore_eos": True,
            **fields,
        }


def run(quick: bool) -> list[Check]:
    """Run the load and look at what is left."""
    minutes = float(os.environ.get("STEELYARD_SOAK_MINUTES", _MINUTES))
    seconds = _QUICK_S if quick else 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "soak", hidden_size=64, num_layers=2, vocab_size=512)
        with ours(
            Path(folder) / "soak",
            max_requests=48,
            body_limit_bytes=2**20,
            engine={"pool_bytes": 4 * 2**20},
        ) as server:
            return asyncio.run(_soak(server, seconds))


async def _soak(server: Running, seconds: float) -> list[Check]:
    """Start all clients, kill the engine in the middle, wait for the end and check."""
    tally = Tally()
    limits = httpx.Limits(max_connections=200)
    base = f"http://{server.endpoint.host}:{server.endpoint.port}"
    async with httpx.AsyncClient(base_url=base, timeout=120, limits=limits) as client:
        world = World(client, server, tally, time.monotonic() + seconds, np.random.default_rng(0))
        tasks = [asyncio.create_task(_repeat(world, kind)) for kind in KINDS for _ in range(_EACH)]
        memory = asyncio.create_task(_watch_memory(server, world.end_s))
        await asyncio.sleep(seconds / 2)
        first = server.engine_pid
        os.kill(first, signal.SIGKILL)
        back_s = await _until_back(client, first, server)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        samples = await memory
        left = await _until_idle(client)
    broken = [repr(item) for item in results if isinstance(item, BaseException)]
    return _report(tally, samples, left, back_s, broken)


def _report(
    tally: Tally, samples: list[int], left: float, back_s: float, broken: list[str]
) -> list[Check]:
    """Print what happened and return the checks."""
    for name, count in sorted(tally.outcomes.items()):
        print(f"  {name:40s} {count:8d}")
    for line in [*tally.wrong[:5], *broken[:5]]:
        print(f"  unexpected: {line}")
    third = len(samples) // 3
    growth = float(np.median(samples[-third:]) / np.median(samples[third : 2 * third]))
    print(
        f"  engine back after {back_s:.1f} s; gateway memory {samples[0] / 2**20:.0f} -> "
        f"{samples[-1] / 2**20:.0f} MiB"
    )
    return [
        Check("blocks and requests left when idle", left, 0.0, "lower"),
        Check("gateway memory, last third over middle third", growth, 1.1, "lower"),
        Check("answers nobody should see", len(tally.wrong) + len(broken), 0.0, "lower"),
        Check("s until a killed engine is replaced", back_s, _RESTART_S, "lower"),
    ]


async def _repeat(world: World, kind: Callable[[World], Awaitable[None]]) -> None:
    """Send one kind of request until the end."""
    while time.monotonic() < world.end_s:
        await kind(world)


def _outcome(response: httpx.Response) -> str:
    """Return the status, for server errors with their code."""
    if response.status_code < 500:
        return str(response.status_code)
    return f"{response.status_code} {response.json()['error']['code']}"


async def _whole(world: World) -> None:
    """Ask for a whole answer."""
    response = await world.client.post("/v1/completions", json=world.body())
    world.tally.expect("whole", _outcome(response), "200")


async def _choices(world: World) -> None:
    """Ask for several choices with log probabilities."""
    response = await world.client.post(
        "/v1/completions", json=world.body(n=3, logprobs=2, stop=["word7"])
    )
    world.tally.expect("choices", _outcome(response), "200")


async def _streamed(world: World) -> None:
    """Read a stream to its end, or to the error event that ends it."""
    async with world.client.stream(
        "POST", "/v1/completions", json=world.body(stream=True)
    ) as response:
        if response.status_code != 200:
            await response.aread()
            world.tally.expect("streamed", _outcome(response))
            return
        lines = [line async for line in response.aiter_lines() if line]
    last = lines[-1].removeprefix("data: ")
    if last == "[DONE]":
        world.tally.expect("streamed", "200", "200")
    else:
        world.tally.expect("streamed", f"503 {json.loads(last)['error']['code']}")


async def _aborted(world: World) -> None:
    """Leave a stream after its first piece."""
    async with world.client.stream(
        "POST", "/v1/completions", json=world.body(stream=True)
    ) as response:
        async for _ in response.aiter_lines():
            break
        world.tally.expect("aborted", str(response.status_code), "200", "503")


async def _send_raw(world: World, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection of its own."""
    endpoint = world.server.endpoint
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=2**12)
    writer.write(endpoint.request("POST", "/completions", body))
    await writer.drain()
    return reader, writer


async def _vanished(world: World) -> None:
    """Send a request and close the socket without reading."""
    _, writer = await _send_raw(world, json.dumps(world.body(stream=True)).encode())
    await asyncio.sleep(float(world.generator.uniform(0, 0.1)))
    writer.transport.abort()
    world.tally.expect("vanished", "sent", "sent")


async def _slow(world: World) -> None:
    """Read nothing of a stream for some seconds, then go."""
    _, writer = await _send_raw(world, json.dumps(world.body(stream=True, logprobs=20)).encode())
    await asyncio.sleep(min(3.0, max(world.end_s - time.monotonic(), 0.0)))
    writer.close()
    world.tally.expect("slow", "sent", "sent")


async def _oversize(world: World) -> None:
    """Send a prompt beyond the model length, then a body beyond the limit."""
    response = await world.client.post("/v1/completions", json={"prompt": [1] * 5000})
    world.tally.expect("long prompt", _outcome(response), "400")
    response = await world.client.post("/v1/completions", content=b" " * (2**20 + 1))
    world.tally.expect("long body", _outcome(response), "413")


async def _malformed(world: World) -> None:
    """Send what is no JSON, and JSON that is no request."""
    for body in (b'{"prompt": ', b"\x00\xff", b"[]", b'{"prompt": 7}', b'{"prompt": [1], "n": -1}'):
        response = await world.client.post("/v1/completions", content=body)
        world.tally.expect("malformed", _outcome(response), "400")
    await asyncio.sleep(0.05)


async def _embedded(world: World) -> None:
    """Ask for embeddings."""
    response = await world.client.post("/v1/embeddings", json={"input": [[1, 2, 3], [4, 5]]})
    world.tally.expect("embedded", _outcome(response), "200")
    await asyncio.sleep(0.1)


KINDS = (_whole, _choices, _streamed, _aborted, _vanished, _slow, _oversize, _malformed, _embedded)


async def _watch_memory(server: Running, end_s: float) -> list[int]:
    """Note the gateway's memory until the end."""
    samples = []
    while time.monotonic() < end_s or len(samples) < 3:
        samples.append(server.memory_bytes())
        await asyncio.sleep(0.5)
    return samples


async def _until_back(client: httpx.AsyncClient, before: int, server: Running) -> float:
    """Return the seconds until another engine takes requests."""
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < 2 * _RESTART_S:
        is_other = server.engine_pid not in (
            before,
            server.process.pid,
        )  # seen first: until the gateway notices, the dead one is healthy
        if (await client.get("/health")).status_code == 200 and is_other:
            break
        await asyncio.sleep(0.1)
    return time.monotonic() - begin_s


async def _until_idle(client: httpx.AsyncClient) -> float:
    """Wait until nothing is held; return the blocks and requests that are left."""
    left, begin_s = float("inf"), time.monotonic()
    while left and time.monotonic() - begin_s < _IDLE_S:
        text = (await client.get("/metrics")).text
        names = ("blocks_in_use", "requests_in_flight", "running", "waiting")
        found = [re.search(rf"^steelyard_{name} (\S+)$", text, re.MULTILINE) for name in names]
        left = sum(float(item[1]) for item in found if item) if all(found) else float("inf")
        await asyncio.sleep(0.2)
    return left
