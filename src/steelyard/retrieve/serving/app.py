"""The HTTP face of a search service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from steelyard import __version__
from steelyard.api_keys import KeyOwners
from steelyard.errors import CapacityError, DataError, SteelyardError, StoreError
from steelyard.retrieve.index import checked_vectors
from steelyard.retrieve.serving.metrics import RetrieveMetrics
from steelyard.retrieve.serving.queue import SearchQueue, TooBusyError
from steelyard.retrieve.serving.service import SearchService
from steelyard.retrieve.serving.shards import ShardDownError
from steelyard.retrieve.serving.watch import RecallWatch

__all__ = ["Row", "VectorId", "guard_app", "make_app", "rows_of"]

_MOST_QUERIES, _MOST_NEIGHBOURS, _MOST_ADDED = 256, 10_000, 16_384
_OPEN = ("/health", "/metrics", "/docs", "/openapi.json")

Row = list[float]
VectorId = Annotated[int, Field(ge=0, lt=2**63)]


class SearchBody(BaseModel):
    """A search for the nearest vectors of queries."""

    queries: Annotated[list[Row], Field(min_length=1, max_length=_MOST_QUERIES)]
    k: Annotated[int, Field(ge=1, le=_MOST_NEIGHBOURS)] = 10
    nprobe: Annotated[int, Field(ge=0, description="cells to look into; 0 for as tuned")] = 0
    strict: Annotated[bool, Field(description="no answer is better than a partial one")] = False


class AddBody(BaseModel):
    """Vectors to add, with numbers of the caller's choice or the next ones."""

    vectors: Annotated[list[Row], Field(min_length=1, max_length=_MOST_ADDED)]
    ids: list[VectorId] | None = None


class RemoveBody(BaseModel):
    """Numbers of vectors to remove."""

    ids: Annotated[list[VectorId], Field(min_length=1, max_length=_MOST_ADDED)]


def make_app(
    service: SearchService,
    *,
    keys: Mapping[str, str] | None = None,
    body_limit_bytes: int = 32 << 20,
    is_watched: bool = True,
) -> FastAPI:
    """Return the application of a service.

    Args:
        service: what is searched; the caller closes it.
        keys: owner's name by API key; none where everybody may ask.
        body_limit_bytes: longest body.
        is_watched: check the recall of some answers while nothing else is to be done.

    Returns:
        An ASGI application: `/search`, `/add`, `/remove`, `/health`, `/metrics`, `/docs`.
    """
    metrics = RetrieveMetrics()
    made: dict[str, SearchQueue] = {}

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        queue = SearchQueue(service, metrics, watch=RecallWatch() if is_watched else None)
        made["queue"] = queue
        task = asyncio.ensure_future(queue.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    app = FastAPI(title="Steelyard retrieve", version=__version__, lifespan=lifespan)
    guard_app(app, KeyOwners(keys or {}), metrics, body_limit_bytes)
    _add_work(app, service, made)
    _add_watching(app, service, metrics)
    return app


def _add_work(app: FastAPI, service: SearchService, made: Mapping[str, SearchQueue]) -> None:
    """Add the routes of searches and changes to an application."""

    @app.post("/search")
    async def search(body: SearchBody) -> dict[str, Any]:
        """Return the nearest vectors of each query."""
        queries = checked_vectors(rows_of(body.queries), service.dim, what="queries")
        found = await made["queue"].search(queries, body.k, nprobe=body.nprobe, strict=body.strict)
        return {
            "ids": found.hits.ids.tolist(),
            "distances": [
                [value if np.isfinite(value) else None for value in row]
                for row in found.hits.distances.tolist()
            ],
            "partial": bool(found.missing),
            "missing": list(found.missing),
        }

    @app.post("/add")
    async def add(body: AddBody) -> dict[str, Any]:
        """Add vectors; they are found and kept when this is answered."""
        ids = None if body.ids is None else np.array(body.ids, np.int64)
        rows = rows_of(body.vectors)
        numbers = await made["queue"].change(lambda: service.add(rows, ids))
        assert isinstance(numbers, np.ndarray)
        return {"ids": numbers.tolist()}

    @app.post("/remove")
    async def remove(body: RemoveBody) -> dict[str, Any]:
        """Remove vectors; all of them, or none where one is not there."""
        ids = np.array(body.ids, np.int64)
        await made["queue"].change(lambda: service.remove(ids))
        return {"removed": len(np.unique(ids))}


def _add_watching(app: FastAPI, service: SearchService, metrics: RetrieveMetrics) -> None:
    """Add the routes that say how an application is."""

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say what is served; 503 where a shard does not answer."""
        found = await asyncio.to_thread(service.about)
        return {
            "status": "ok",
            "vectors": sum(about.size for about in found),
            "dim": service.dim,
            "metric": service.metric,
            "shards": len(found),
            "kinds": sorted({about.kind for about in found}),
        }

    @app.get("/metrics")
    async def measured() -> Response:
        """Return counters for Prometheus."""
        with contextlib.suppress(SteelyardError):
            found = await asyncio.to_thread(service.about)
            metrics.vectors.set(sum(about.size for about in found))
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def guard_app(app: FastAPI, keys: KeyOwners, metrics: RetrieveMetrics, limit_bytes: int) -> None:
    """Refuse who has no key and what is too long, count requests, and word errors of ours.

    Args:
        app: the application.
        keys: who may ask; everybody where there are none.
        metrics: counts requests.
        limit_bytes: longest body.
    """

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        response = _refusal(request, keys, limit_bytes) or await answer(request)
        is_known = any(getattr(route, "path", "") == path for route in app.routes)
        metrics.requests.labels(path if is_known else "other", str(response.status_code)).inc()
        return response

    @app.exception_handler(SteelyardError)
    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, SteelyardError)
        return _error(_status(error), str(error), error.hint)


def _refusal(request: Request, keys: KeyOwners, limit_bytes: int) -> Response | None:
    """Return the refusal of a request by its head alone, None where it may be answered."""
    if request.method != "POST":
        return None if request.url.path in _OPEN or not len(keys) else _keyless(request, keys)
    if len(keys) and (refused := _keyless(request, keys)):
        return refused
    # Without a length, a body could grow without end: clients that stream must say how much.
    length = request.headers.get("content-length", "")
    if not length.isdigit():
        return _error(411, "a body without Content-Length is not taken", "send its length")
    if int(length) > limit_bytes:
        return _error(413, f"a body of {length} bytes is longer than {limit_bytes}", "send less")
    return None


def _keyless(request: Request, keys: KeyOwners) -> Response | None:
    """Return a refusal where a request carries none of the keys."""
    given = request.headers.get("authorization", "").encode("latin-1")
    if keys.place(given) is not None:
        return None
    hint = "send it as 'Authorization: Bearer KEY'"
    return _error(401, "the API key is missing or wrong", hint)


def _status(error: SteelyardError) -> int:
    """Return the status of an error."""
    if isinstance(error, ShardDownError):
        return 503
    if isinstance(error, CapacityError):
        return 429 if isinstance(error, TooBusyError) else 507
    return 409 if isinstance(error, StoreError) else 400


def _error(status: int, message: str, hint: str) -> Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": {"message": message, "hint": hint}}, status, headers=headers)


def rows_of(values: list[Row]) -> np.ndarray:
    """Return rows of numbers.

    Args:
        values: rows of one length.

    Returns:
        float32 [N, D].

    Raises:
        DataError: the rows differ in length.
    """
    widths = {len(row) for row in values}
    if len(widths) > 1:
        raise DataError(f"rows have {min(widths)} to {max(widths)} numbers, all need as many")
    return np.array(values, np.float32)
