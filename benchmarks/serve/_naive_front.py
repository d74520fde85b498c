"""The naive front.

FastAPI with pydantic bodies, the engine in a thread of the same process, one JSON event per token.

It is the baseline the gateway is measured against: what one writes first, well configured (no
access log, keep-alive, uvloop and httptools where they are installed), over the same engine.

`python -m benchmarks.serve._naive_front MODEL_DIR PORT CORES POOL_BYTES` serves a model.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from steelyard.errors import BackendError, ConfigError, SteelyardError
from steelyard.serve.engine import LLM
from steelyard.serve.front.text import TextCodec, TextStream
from steelyard.serve.scheduling import request as scheduling_request
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


class _Body(BaseModel):
    """What both kinds of request share; fields not named here are ignored."""

    model: str = ""
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: str | list[str] | None = Field(default=None, max_length=64)
    stream: bool = False
    n: int = 1
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, float] | None = None

    def unsupported(self) -> list[str]:
        """Name the fields whose value this server cannot honor."""
        names = [
            name
            for name in ("frequency_penalty", "presence_penalty", "logit_bias")
            if getattr(self, name)
        ]
        return [*names, *(["n"] if self.n != 1 else [])]

    def refuse_unsupported(self) -> None:
        """Refuse what would silently change the answer.

        Raises:
            ConfigError: names the fields.
        """
        names = self.unsupported()
        if names:
            raise ConfigError(f"not supported: {', '.join(names)}", hint="leave these fields out")

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionBody(_Body):
    """Body of `/v1/completions`."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(default=16, ge=1)
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None

    def unsupported(self) -> list[str]:
        """Name the fields whose value this server cannot honor."""
        extra = [name for name in ("echo", "suffix") if getattr(self, name)]
        extra += ["logprobs"] if self.logprobs is not None else []
        return [
            *super().unsupported(),
            *extra,
            *(["best_of"] if self.best_of not in (None, 1) else []),
        ]

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One entry per prompt, text or token ids.

        Raises:
            ConfigError: there is none, or more than 256.
        """
        prompt = self.prompt
        listed = (
            [prompt]
            if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
            else prompt
        )
        if not 1 <= len(listed) <= 256:
            raise ConfigError(
                f"{len(listed)} prompts, but 1 to 256 are allowed", hint="split the request"
            )
        return listed  # pyright: ignore[reportReturnType]


class Message(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class ChatBody(_Body):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    def unsupported(self) -> list[str]:
        """Name the fields whose value this server cannot honor."""
        extra = [name for name in ("logprobs", "tools") if getattr(self, name)]
        form = (self.response_format or {}).get("type", "text")
        return [*super().unsupported(), *extra, *(["response_format"] if form != "text" else [])]


def error_body(
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class Event:
    """Something a request's caller should know.

    Attributes:
        token: a new output token, or None.
        finish_reason: "stop", "length", "abort" or "error" when the request ended, else empty.
        message: what went wrong when the reason is "error".
    """

    token: int | None = None
    finish_reason: str = ""
    message: str = ""


class EngineService:
    """Drives an engine in a thread of its own.

    Attributes:
        llm: the engine; only the service's thread may change it while it runs.
        failure: what stopped the thread, or empty.
    """

    def __init__(self, llm: LLM) -> None:
        """Keep the engine; `start` begins."""
        self.llm = llm
        self.failure = ""
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, Callable[[Event], None]] = {}
        self._thread = threading.Thread(target=self._drive, name="steelyard-engine", daemon=True)
        self._count = 0
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread takes requests."""
        return self._thread.is_alive() and not self.failure

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Abort everything in flight and end the thread."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def submit(
        self, prompt: list[int], params: SamplingParams, listener: Callable[[Event], None]
    ) -> str:
        """Queue a request.

        Args:
            prompt: token ids.
            params: sampling parameters.
            listener: called in the engine's thread with each event; the last one has a finish
                reason. It must not block.

        Returns:
            The request's id.

        Raises:
            ConfigError: the request could never finish.
            BackendError: the engine's thread has ended.
        """
        if not self.is_alive:
            raise BackendError(
                f"the engine has stopped: {self.failure or 'shut down'}",
                hint="start the server again",
            )
        with self._lock:
            self._count += 1
            name = f"request-{self._count}"
        request = scheduling_request.Request(
            id=name, prompt=prompt, params=params, arrival_s=self.llm.clock.now_s()
        )
        self.llm.check(request)
        self._commands.put(lambda: self._add(request, listener))
        return name

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing happens when it has ended."""
        self._commands.put(lambda: self._abort(request_id))

    def _add(self, request: scheduling_request.Request, listener: Callable[[Event], None]) -> None:
        """Hand a request to the engine."""
        self._listeners[request.id] = listener
        self.llm.add(request, self.llm.clock.now_s())

    def _abort(self, request_id: str) -> None:
        """Drop a request and tell its listener."""
        if self.llm.abort(request_id):
            self._listeners.pop(request_id)(Event(finish_reason="abort"))

    def _drive(self) -> None:
        """Take commands and run steps until told to stop."""
        try:
            while self._take_commands():
                self._step()
        except Exception as error:  # a failed step must end every request with a message
            self.failure = f"{type(error).__name__}: {error}"
        for listener in self._listeners.values():
            listener(
                Event(finish_reason="error", message=self.failure or "the server is shutting down")
            )
        self._listeners.clear()

    def _take_commands(self) -> bool:
        """Run all waiting commands, waiting for one while the engine is idle; False to stop."""
        while True:
            try:
                command = self._commands.get(block=not self.llm.scheduler.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _step(self) -> None:
        """Run one step and hand out its tokens."""
        _, tokens, finished = self.llm.step()
        ended = {request.id: request for request in finished}
        for name, token in tokens.items():
            request = ended.get(name)
            if request is None:
                self._listeners[name](Event(token=token))
                continue
            reason = request.finish_reason or "stop"
            self._listeners.pop(name)(
                Event(token=None if reason == "stop" else token, finish_reason=reason)
            )


class _Generation:
    """One prompt on its way: events of the engine's thread become pieces of text."""

    def __init__(
        self, server: _Server, prompt: list[int], body: CompletionBody | ChatBody, max_tokens: int
    ) -> None:
        """Queue the request; raises what the engine refuses."""
        self._server = server
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stream = TextStream(server.codec, body.stops)
        self.prompt_tokens, self.output_tokens, self.finish_reason = len(prompt), 0, ""
        params = SamplingParams(
            max_tokens=max_tokens,
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
        """Return text as it comes; the request is aborted when the caller is gone or stops listening."""
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
        """Account for one event and give its text."""
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
        head = self._head("cmpl", "text_completion")
        return await self._answer(prompts, body, body.max_tokens, head, request, _completion_choice)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Answer `/v1/chat/completions`; without a limit the output may fill the model length."""
        self.refuse_model(body.model)
        body.refuse_unsupported()
        prompt = self.codec.encode_chat([item.model_dump() for item in body.messages])
        rest = self.service.llm.config.max_model_len - len(prompt)
        limit = body.max_completion_tokens or body.max_tokens or max(rest, 1)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        return await self._answer(
            [prompt], body, limit, self._head("chatcmpl", kind), request, _chat_choice
        )

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
        body: CompletionBody | ChatBody,
        max_tokens: int,
        head: dict[str, Any],
        request: Request,
        choice: Callable[[int, str, str | None, bool], dict[str, Any]],
    ) -> Response:
        """Run all prompts and answer whole or as a stream."""
        generations: list[_Generation] = []
        try:
            for prompt in prompts:
                generations.append(_Generation(self, prompt, body, max_tokens))
        except SteelyardError:
            for generation in generations:
                generation._leave()
            raise
        if body.stream:
            return StreamingResponse(
                _events(generations, head, request, choice), media_type="text/event-stream"
            )
        texts = await asyncio.gather(*(_collect(generation, request) for generation in generations))
        choices = [
            choice(index, text, item.finish_reason, False)
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


def _completion_choice(index: int, text: str, reason: str | None, delta: bool) -> dict[str, Any]:
    """Return one choice of a completion, whole or a piece."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _chat_choice(index: int, text: str, reason: str | None, delta: bool) -> dict[str, Any]:
    """Return one choice of a chat completion, whole or a piece."""
    message = {"role": "assistant", "content": text}
    return {
        "index": index,
        "delta" if delta else "message": message,
        "logprobs": None,
        "finish_reason": reason,
    }


async def _collect(generation: _Generation, request: Request) -> str:
    """Wait for a whole text."""
    return "".join([piece async for piece in generation.pieces(request.is_disconnected)])


async def _events(
    generations: list[_Generation],
    head: dict[str, Any],
    request: Request,
    choice: Callable[[int, str, str | None, bool], dict[str, Any]],
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
            yield f"data: {json.dumps({**head, 'choices': [choice(index, text or '', reason, True)]})}\n\n"
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
        An ASGI application with `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`
        and `/metrics`.
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
    app.post("/v1/chat/completions", dependencies=needs_key)(server.chat)

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
    """Serve a model folder until killed: folder, port, cores apart by commas, bytes of the pool."""
    folder, port, cores, pool_bytes = arguments
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
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1:])
