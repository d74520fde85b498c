"""The gateway's ASGI application: routes, keys, limits, errors."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from steelyard import __version__
from steelyard.serve.front.api.bodies import ChatBody, CompletionBody, EmbeddingBody
from steelyard.serve.front.api.decode import decode_body
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.openapi import schema
from steelyard.serve.front.api.responses import ResponseBody
from steelyard.serve.front.gateway.answers import Answers
from steelyard.serve.front.gateway.exchange import Exchange, Receive, Scope, Send
from steelyard.serve.front.gateway.pages import HTML, chat_page, docs_page, page_headers
from steelyard.serve.front.limits.keys import KeyRing

__all__ = ["GatewayApp"]

_ROUTES = {
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
    "/v1/responses": "POST",
    "/v1/embeddings": "POST",
    "/": "GET",
    "/docs": "GET",
    "/version": "GET",
    "/v1/models": "GET",
    "/health": "GET",
    "/metrics": "GET",
    "/openapi.json": "GET",
}


class GatewayApp:
    """Takes HTTP requests; no framework stands between them and the engine.

    Attributes:
        is_draining: whether new work is answered 503.
    """

    def __init__(
        self,
        answers: Answers,
        keys: KeyRing,
        *,
        body_limit_bytes: int = 4 * 2**20,
    ) -> None:
        """Keep the parts.

        Args:
            answers: answers requests for text and vectors.
            keys: who may ask.
            body_limit_bytes: longest body.
        """
        self.is_draining = False
        self._answers = answers
        self._dispatcher = answers.dispatcher
        self._metrics = answers.metrics
        self._keys = keys
        self._body_limit_bytes = body_limit_bytes
        self._created = int(time.time())
        self._posts: dict[str, tuple[Any, Callable[[Exchange, Any], Awaitable[None]]]] = {
            "/v1/completions": (CompletionBody, answers.complete),
            "/v1/chat/completions": (ChatBody, answers.chat),
            "/v1/responses": (ResponseBody, answers.respond),
            "/v1/embeddings": (EmbeddingBody, answers.embed),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._route(exchange)
        except ApiError as error:
            if not exchange.started:
                await exchange.send_error(error)
        except ConnectionError:
            exchange.outcome = "abort"
        except Exception:
            # A fault of ours: the client gets the usual shape, the server's log the traceback.
            exchange.outcome = "500"
            if not exchange.started:
                await exchange.send_error(
                    ApiError(500, "the server failed; its log says why", code="internal_error")
                )
            raise
        route = exchange.path if exchange.path in _ROUTES else "other"
        self._metrics.requests.labels(route, exchange.outcome or str(exchange.status)).inc()

    async def _route(self, exchange: Exchange) -> None:
        """Find who answers."""
        path = exchange.path
        method = exchange.method
        allowed = _ROUTES.get(path) or ("GET" if path.startswith("/v1/models/") else None)
        if allowed is None:
            raise ApiError(404, f"there is nothing at {path}; see /docs")
        if method != allowed and not (method == "HEAD" and allowed == "GET"):
            error = ApiError(405, f"{path} takes {allowed}, not {method}")
            await exchange.send_json(405, error.body, headers=[(b"allow", allowed.encode())])
            return
        if path.startswith("/v1/"):
            exchange.client = self._keys.identify(exchange.header(b"authorization"))
        if allowed == "POST":
            await self._generate(exchange)
        else:
            await self._tell(exchange)

    async def _generate(self, exchange: Exchange) -> None:
        """Answer a request that costs something."""
        if self.is_draining:
            raise ApiError(
                503,
                "the server is shutting down; send the request to another",
                code="shutting_down",
                retry_after_s=1.0,
            )
        wait_s = exchange.client.requests.take(1, time.perf_counter())
        if wait_s:
            raise ApiError(
                429,
                f"the key's requests per minute are used up; try again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        # Before the body is read: under overload a refusal must cost next to nothing.
        self._dispatcher.backlog.refuse_if_full()
        data = await exchange.body(self._body_limit_bytes)
        kind, answer = self._posts[exchange.path]
        body = decode_body(data, kind)
        exchange.clock.parsed_s = time.perf_counter()
        self._check_model(body.model)
        await answer(exchange, body)

    def _check_model(self, name: str | None) -> None:
        """Refuse a request for another model."""
        if name and name not in self._answers.names:
            text = f"the model {name!r} does not exist; this server has {self._answers.name!r}"
            raise ApiError(404, text, param="model", code="model_not_found")

    async def _tell(self, exchange: Exchange) -> None:
        """Answer a question about the server."""
        path = exchange.path
        if path == "/health":
            state = (
                "draining" if self.is_draining else "ok" if self._dispatcher.is_up else "starting"
            )
            await exchange.send_json(
                200 if state == "ok" else 503, msgspec.json.encode({"status": state})
            )
        elif path == "/metrics":
            backlog = self._dispatcher.backlog
            self._metrics.in_flight.set(backlog.num_requests)
            self._metrics.predicted_tokens.set(backlog.num_tokens)
            text = self._metrics.render(await self._dispatcher.stats())
            await exchange.send_json(200, text, kind=b"text/plain; version=0.0.4; charset=utf-8")
        elif path == "/":
            host = exchange.header(b"host").decode("latin-1")
            page = chat_page(self._answers.name, host, keyed=self._keys.has_keys)
            await exchange.send_json(200, page, headers=page_headers(), kind=HTML)
        elif path == "/docs":
            await exchange.send_json(200, docs_page(), headers=page_headers(), kind=HTML)
        elif path == "/version":
            await exchange.send_json(200, self._version())
        elif path == "/openapi.json":
            await exchange.send_json(200, schema())
        else:
            await exchange.send_json(200, self._models(path.removeprefix("/v1/models").lstrip("/")))

    def _version(self) -> bytes:
        """Return the version, and how the engine computes while there is one."""
        ready = self._dispatcher.ready
        engine = {}
        if ready:
            engine = {
                "kernel": ready.kernel,
                "weights": ready.weights,
                "speculate": ready.guesses,
            }
        return msgspec.json.encode({"version": __version__} | engine)

    def _models(self, name: str) -> bytes:
        """Return the list of models, or one of them."""
        self._check_model(name)
        ready = self._dispatcher.ready
        cards = [
            {
                "id": known,
                "object": "model",
                "created": self._created,
                "owned_by": "steelyard",
                "root": self._answers.name,
                # As vLLM tells it; clients leave older turns out by it.
                "max_model_len": ready.max_model_len if ready else None,
            }
            for known in self._answers.names
            if name in ("", known)
        ]
        return msgspec.json.encode(cards[0] if name else {"object": "list", "data": cards})
