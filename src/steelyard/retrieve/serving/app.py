"""The HTTP face of a search service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Response
from pydantic import Field

from steelyard import __version__
from steelyard.api_keys import KeyOwners
from steelyard.retrieve.index import checked_vectors
from steelyard.retrieve.serving.guard import (
    BODY_LIMIT_BYTES,
    AskBody,
    Ids,
    Neighbours,
    NewRows,
    Rows,
    guard_app,
    rows_of,
)
from steelyard.retrieve.serving.metrics import RetrieveMetrics
from steelyard.retrieve.serving.queue import SearchQueue
from steelyard.retrieve.serving.service import SearchService
from steelyard.retrieve.serving.watch import RecallWatch

__all__ = ["make_app"]


class SearchBody(AskBody):
    """A search for the nearest vectors of queries."""

    queries: Rows
    k: Neighbours = 10
    nprobe: Annotated[int, Field(ge=0, description="cells to look into; 0 for as tuned")] = 0
    strict: Annotated[bool, Field(description="no answer is better than a partial one")] = False


class AddBody(AskBody):
    """Vectors to add, with numbers of the caller's choice or the next ones."""

    vectors: NewRows
    ids: Ids | None = None


class RemoveBody(AskBody):
    """Numbers of vectors to remove."""

    ids: Ids


def make_app(
    service: SearchService,
    *,
    keys: Mapping[str, str] | None = None,
    body_limit_bytes: int = BODY_LIMIT_BYTES,
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
            "distances": found.hits.plain_distances(),
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
        found = await asyncio.to_thread(service.reached)
        metrics.note_shards(found, service)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")
