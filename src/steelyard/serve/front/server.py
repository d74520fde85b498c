"""An OpenAI-compatible HTTP server around one engine."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from steelyard.errors import BackendError, SteelyardError
from steelyard.serve.engine import LLM
from steelyard.serve.front.metrics import ServerMetrics
from steelyard.serve.front.protocol import ChatBody, CompletionBody, error_body
from steelyard.serve.front.service import EngineService, Event
from steelyard.serve.front.text import TextCodec, TextStream
from steelyard.serve.scheduling.params import SamplingParams

__all__ = ["create_app"]


class _Generation:
    """One prompt on its way: events of the engine's thread become pieces of text."""

    def __init__(self, server: _Server, prompt: list[int], body: CompletionBody | ChatBody, max_tokens: int) -> None:
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
        """Give text as it comes; the request is aborted when the caller is gone or stops listening."""
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
            raise HTTPException(404, f"the model {name!r} does not exist; this server has {self.name!r}")

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        """Answer `/v1/completions`."""
        self.refuse_model(body.model)
        body.refuse_unsupported()
        prompts = [self.codec.encode(item) if isinstance(item, str) else item for item in body.prompts]
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
        return await self._answer([prompt], body, limit, self._head("chatcmpl", kind), request, _chat_choice)

    def _head(self, prefix: str, kind: str) -> dict[str, Any]:
        """Give the fields every answer begins with."""
        return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": self.name}

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
            return StreamingResponse(_events(generations, head, request, choice), media_type="text/event-stream")
        texts = await asyncio.gather(*(_collect(generation, request) for generation in generations))
        choices = [
            choice(index, text, item.finish_reason, False) for index, (text, item) in enumerate(zip(texts, generations, strict=True))
        ]
        return JSONResponse({**head, "choices": choices, "usage": _usage(generations)})


def _usage(generations: list[_Generation]) -> dict[str, int]:
    """Count the tokens of an answer."""
    prompt, output = sum(item.prompt_tokens for item in generations), sum(item.output_tokens for item in generations)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _completion_choice(index: int, text: str, reason: str | None, delta: bool) -> dict[str, Any]:
    """Give one choice of a completion, whole or a piece."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _chat_choice(index: int, text: str, reason: str | None, delta: bool) -> dict[str, Any]:
    """Give one choice of a chat completion, whole or a piece."""
    message = {"role": "assistant", "content": text}
    return {"index": index, "delta" if delta else "message": message, "logprobs": None, "finish_reason": reason}


async def _collect(generation: _Generation, request: Request) -> str:
    """Wait for a whole text."""
    return "".join([piece async for piece in generation.pieces(request.is_disconnected)])


async def _events(
    generations: list[_Generation], head: dict[str, Any], request: Request, choice: Callable[[int, str, str | None, bool], dict[str, Any]]
) -> AsyncIterator[str]:
    """Give server-sent events of all generations as their text comes, then the end mark."""
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
            if b"transfer-encoding" in headers or not size.isdigit() or int(size) > self.limit_bytes:
                message = f"the body must state its length and be at most {self.limit_bytes} bytes"
                await JSONResponse(error_body(message, code="body_too_large"), 400)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _key_check(api_key: str) -> Callable[[Request], None]:
    """Make the dependency that compares keys in constant time; an empty key lets everyone in."""

    def check(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if api_key and not hmac.compare_digest(given.encode(), api_key.encode()):
            raise HTTPException(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")

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
        return JSONResponse(error_body(f"{field or 'body'}: {first['msg']}", param=field or None), 400)

    @app.exception_handler(StarletteHTTPException)
    async def failed(_: Request, error: StarletteHTTPException) -> JSONResponse:
        code = {401: "invalid_api_key", 404: "not_found"}.get(error.status_code)
        return JSONResponse(error_body(str(error.detail), code=code), error.status_code)


def create_app(llm: LLM, codec: TextCodec, *, name: str, api_key: str = "", body_limit_bytes: int = 4 * 2**20) -> FastAPI:
    """Make the application; its engine thread runs from start-up to shutdown.

    Args:
        llm: an idle engine.
        codec: tokenizer and chat template.
        name: of the model, as clients ask for it.
        api_key: needed for `/v1` when not empty.
        body_limit_bytes: longest request body.

    Returns:
        An ASGI application with `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health` and `/metrics`.
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
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "steelyard"}]}

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok" if service.is_alive else service.failure or "stopped"}, 200 if service.is_alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.render(llm), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
