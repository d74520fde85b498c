"""The naive front.

FastAPI with pydantic bodies, the engine in a thread of the same process, one JSON event per token.

It is the baseline the gateway is measured against: what one writes first, well configured (no
access log, keep-alive, uvloop and httptools where they are installed), over the same engine. It has
what lies on the way of a completion: keys, a limit on bodies, metrics, errors in OpenAI's shape.

`python -m benchmarks.serve._naive_front MODEL_DIR CORES POOL_BYTES` serves a model on a free port.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from benchmarks.serve._naive_bodies import CompletionBody, error_body
from benchmarks.serve._naive_engine import EngineService, Event
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from steelyard.errors import BackendError, SteelyardError
from steelyard.serve.engine import LLM
from steelyard.serve.front.text import TextCodec, TextStream
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["create_app"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServerMetrics:
    """Counters, gauges and histograms of one server, in a registry of their own.

    Attributes:
        requests: by finish reason.
        prompt_tokens: taken in.
        output_tokens: given out.
        ttft: arrival to first token, seconds.
        tpot: mean time per further token of a request, seconds.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "steelyard_requests", "Requests ended.", ["finish_reason"], registry=self._registry
        )
        self.prompt_tokens = Counter(
            "steelyard_prompt_tokens", "Prompt tokens taken in.", registry=self._registry
        )
        self.output_tokens = Counter(
            "steelyard_output_tokens", "Output tokens given out.", registry=self._registry
        )
        self.ttft = Histogram(
            "steelyard_ttft_seconds",
            "Arrival to first token.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.tpot = Histogram(
            "steelyard_tpot_seconds",
            "Mean time per further token.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._gauges = {
            name: Gauge(f"steelyard_{name}", text, registry=self._registry)
            for name, text in (
                ("running", "Requests with blocks."),
                ("waiting", "Requests without blocks."),
                ("preemptions", "Times a request lost its blocks."),
                ("blocks_in_use", "Blocks held."),
                ("num_blocks", "Blocks in the pool."),
                ("steps", "Steps run."),
            )
        }

    def render(self, llm: LLM) -> bytes:
        """Return the text exposition format, gauges as the engine stands now."""
        stats = llm.stats()
        for name, gauge in self._gauges.items():
            gauge.set(getattr(stats, name))
        return generate_latest(self._registry)


class _Generation:
    """One prompt on its way: events of the engine's thread become pieces of text."""

    def __init__(self, server: _Server, prompt: list[int], body: CompletionBody) -> None:
        """Queue the request; raises what the engine refuses."""
        self._server = server
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stream = TextStream(server.codec, body.stops)
        self.prompt_tokens, self.output_tokens, self.finish_reason = len(prompt), 0, ""
        params = SamplingParams(
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=secrets.randbits(63) if body.seed is None else body.seed,
            ignore_end=body.ignore_eos,
        )
        loop = asyncio.get_running_loop()
        self._start = self._first = time.perf_counter()

        def listen(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._id = server.service.submit(prompt, params, listen)

    async def pieces(self, is_gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        """Return text as it comes; the request is aborted when its client is gone."""
        try:
            while not self.finish_reason:
                try:
                    event = await asyncio.wait_for(self._events.get(), timeout=0.5)
                except TimeoutError:
                    if await is_gone():
                        return
                    continue
                text = self._take(event)
                if text:
                    yield text
        finally:
            self._leave()

    def _take(self, event: Event) -> str:
        """Account for one event and return its text."""
        if event.finish_reason == "error":
            raise BackendError(event.message)
        text = ""
        if event.token is not None:
            if not self.output_tokens:
                self._first = time.perf_counter()
                self._server.metrics.ttft.observe(self._first - self._start)
            self.output_tokens += 1
            text = self._stream.push(event.token)
        if self._stream.stopped:
            self._server.service.abort(self._id)
            self.finish_reason = "stop"
        elif event.finish_reason:
            self.finish_reason = event.finish_reason
            text += self._stream.finish()
        return text

    def _leave(self) -> None:
        """Abort what still runs and count the request."""
        metrics = self._server.metrics
        if not self.finish_reason:
            self._server.service.abort(self._id)
        if self.output_tokens > 1:
            metrics.tpot.observe((time.perf_counter() - self._first) / (self.output_tokens - 1))
        metrics.requests.labels(self.finish_reason or "abort").inc()
        metrics.prompt_tokens.inc(self.prompt_tokens)
        metrics.output_tokens.inc(self.output_tokens)


class _Server:
    """What the routes share, and how they answer."""

    def __init__(self, service: EngineService, codec: TextCodec, name: str) -> None:
        """Keep the parts."""
        self.service, self.codec, self.name = service, codec, name
        self.metrics = ServerMetrics()

    def refuse_model(self, name: str) -> None:
        """Refuse a request for another model."""
        if name and name != self.name:
            raise HTTPException(
                404, f"the model {name!r} does not exist; this server has {self.name!r}"
            )

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        """Answer `/v1/completions`."""
        self.refuse_model(body.model)
        body.refuse_unsupported()
        prompts = [
            self.codec.encode(item) if isinstance(item, str) else item for item in body.prompts
        ]
        return await self._answer(prompts, body, self._head("cmpl", "text_completion"), request)

    def _head(self, prefix: str, kind: str) -> dict[str, Any]:
        """Return the fields every answer begins with."""
        return {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.name,
        }

    async def _answer(
        self,
        prompts: list[list[int]],
        body: CompletionBody,
        head: dict[str, Any],
        request: Request,
    ) -> Response:
        """Run all prompts and answer whole or as a stream."""
        generations: list[_Generation] = []
        try:
            for prompt in prompts:
                generations.append(_Generation(self, prompt, body))
        except SteelyardError:
            for generation in generations:
                generation._leave()
            raise
        if body.stream:
            return StreamingResponse(
                _events(generations, head, request), media_type="text/event-stream"
            )
        texts = await asyncio.gather(*(_collect(generation, request) for generation in generations))
        choices = [
            _choice(index, text, item.finish_reason)
            for index, (text, item) in enumerate(zip(texts, generations, strict=True))
        ]
        return JSONResponse({**head, "choices": choices, "usage": _usage(generations)})


def _usage(generations: list[_Generation]) -> dict[str, int]:
    """Count the tokens of an answer."""
    prompt, output = (
        sum(item.prompt_tokens for item in generations),
        sum(item.output_tokens for item in generations),
    )
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    """Return one choice of a completion, whole or a piece."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


async def _collect(generation: _Generation, request: Request) -> str:
    """Wait for a whole text."""
    return "".join([piece async for piece in generation.pieces(request.is_disconnected)])


async def _events(
    generations: list[_Generation],
    head: dict[str, Any],
    request: Request,
) -> AsyncIterator[str]:
    """Return server-sent events of all generations as their text comes, then the end mark."""
    pieces: asyncio.Queue[tuple[int, str | None] | SteelyardError] = asyncio.Queue()

    async def forward(index: int, generation: _Generation) -> None:
        try:
            async for text in generation.pieces(request.is_disconnected):
                await pieces.put((index, text))
            await pieces.put((index, None))
        except SteelyardError as error:
            await pieces.put(error)

    tasks = [asyncio.create_task(forward(index, item)) for index, item in enumerate(generations)]
    try:
        remaining = len(tasks)
        while remaining:
            item = await pieces.get()
            if isinstance(item, SteelyardError):
                yield f"data: {json.dumps(error_body(str(item), kind='server_error'))}\n\n"
                return
            index, text = item
            remaining -= text is None
            reason = generations[index].finish_reason if text is None else None
            event = {**head, "choices": [_choice(index, text or "", reason)]}
            yield f"data: {json.dumps(event)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _SizeLimit:
    """Refuses bodies that are too long or of unknown length before they are read."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        """Wrap an application."""
        self.app, self.limit_bytes = app, limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 for a body beyond the limit, else pass on."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            size = headers.get(b"content-length", b"0")
            if (
                b"transfer-encoding" in headers
                or not size.isdigit()
                or int(size) > self.limit_bytes
            ):
                message = f"the body must state its length and be at most {self.limit_bytes} bytes"
                await JSONResponse(error_body(message, code="body_too_large"), 400)(
                    scope, receive, send
                )
                return
        await self.app(scope, receive, send)


def _key_check(api_key: str) -> Callable[[Request], None]:
    """Make the dependency that compares keys in constant time; an empty key lets everyone in."""

    def check(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if api_key and not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(
                401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
            )

    return check


def _add_error_shapes(app: FastAPI) -> None:
    """Answer every error in OpenAI's shape."""

    @app.exception_handler(SteelyardError)
    async def refused(_: Request, error: SteelyardError) -> JSONResponse:
        if isinstance(error, BackendError):
            return JSONResponse(error_body(str(error), kind="server_error"), 503)
        return JSONResponse(error_body(f"{error}; {error.hint}" if error.hint else str(error)), 400)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse(
            error_body(f"{field or 'body'}: {first['msg']}", param=field or None), 400
        )

    @app.exception_handler(StarletteHTTPException)
    async def failed(_: Request, error: StarletteHTTPException) -> JSONResponse:
        code = {401: "invalid_api_key", 404: "not_found"}.get(error.status_code)
        return JSONResponse(error_body(str(error.detail), code=code), error.status_code)


def create_app(
    llm: LLM, codec: TextCodec, *, name: str, api_key: str = "", body_limit_bytes: int = 4 * 2**20
) -> FastAPI:
    """Make the application; its engine thread runs from start-up to shutdown.

    Args:
        llm: an idle engine.
        codec: tokenizer and chat template.
        name: of the model, as clients ask for it.
        api_key: needed for `/v1` when not empty.
        body_limit_bytes: longest request body.

    Returns:
        An ASGI application with `/v1/completions`, `/v1/models`, `/health` and `/metrics`.
    """
    service = EngineService(llm)
    server = _Server(service, codec, name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(title="Steelyard", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(_SizeLimit, limit_bytes=body_limit_bytes)
    _add_error_shapes(app)
    needs_key = [Depends(_key_check(api_key))]
    app.post("/v1/completions", dependencies=needs_key)(server.completions)

    @app.get("/v1/models", dependencies=needs_key)
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "steelyard"}],
        }

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse(
            {"status": "ok" if service.is_alive else service.failure or "stopped"},
            200 if service.is_alive else 503,
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(
            server.metrics.render(llm), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    return app


def main(arguments: list[str]) -> None:
    """Serve a model folder until killed: folder, cores separated by commas, bytes of the pool."""
    folder, cores, pool_bytes = arguments
    import torch

    from steelyard.nn import checkpoint
    from steelyard.serve.engine import default_config

    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    torch.set_num_threads(1)
    model = checkpoint.load(Path(folder))
    codec = TextCodec.load(Path(folder))
    llm = LLM(model, default_config(model, pool_bytes=int(pool_bytes)), end_tokens=codec.end_tokens)
    app = create_app(llm, codec, name=Path(folder).name)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    with socket.create_server(("127.0.0.1", 0)) as address:
        print(f"serving on http://127.0.0.1:{address.getsockname()[1]}", flush=True)
        uvicorn.Server(config).run(sockets=[address])


if __name__ == "__main__":
    main(sys.argv[1:])
