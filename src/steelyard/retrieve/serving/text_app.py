"""The HTTP face of an index of texts: searches by text, vectors in the form of OpenAI's API."""

import base64
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Response
from pydantic import BaseModel, Field

from steelyard import __version__
from steelyard.api_keys import KeyOwners
from steelyard.data.sketch.near_duplicates import word_count
from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.serving.guard import BODY_LIMIT_BYTES, AskBody, guard_app
from steelyard.retrieve.serving.metrics import RetrieveMetrics
from steelyard.retrieve.serving.text_service import TextService
from steelyard.retrieve.serving.turns import Turns

__all__ = ["make_text_app"]

_MOST_TEXTS, _MOST_CHARS, _MOST_PASSAGES = 256, 65_536, 100

Text = Annotated[str, Field(max_length=_MOST_CHARS)]


class TextSearchBody(AskBody):
    """A search for passages that answer one text, or several."""

    query: Text | None = None
    queries: Annotated[list[Text], Field(min_length=1, max_length=_MOST_TEXTS)] | None = None
    k: Annotated[int, Field(ge=1, le=_MOST_PASSAGES)] = 10


class EmbeddingsBody(BaseModel):
    """Texts to encode, as in OpenAI's `/v1/embeddings`; fields of its that are not here pass."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=_MOST_TEXTS)]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


def make_text_app(service: TextService, *, keys: Mapping[str, str] | None = None) -> FastAPI:
    """Return the application of an index of texts.

    Args:
        service: what is searched.
        keys: owner's name by API key; none where everybody may ask.

    Returns:
        An ASGI application: `/search`, `/v1/embeddings`, `/v1/models`, `/health`, `/metrics`.
    """
    metrics = RetrieveMetrics()
    app = FastAPI(title="Steelyard retrieve", version=__version__)
    guard_app(app, KeyOwners(keys or {}), metrics, BODY_LIMIT_BYTES)
    turns = Turns(noted=metrics.waiting.set)

    @app.post("/search")
    async def search(body: TextSearchBody) -> dict[str, Any]:
        """Return passages with file, line and snippet."""
        queries = body.queries if body.queries is not None else [body.query or ""]
        if (body.query is None) == (body.queries is None):
            raise DataError("a search names both or neither of query and queries")
        began_s = time.perf_counter()
        found = await turns.run(lambda: service.search(queries, body.k))
        metrics.note_search(len(queries), time.perf_counter() - began_s)
        answers = [[asdict(item) for item in items] for items in found]
        return {"answers": answers[0] if body.queries is None else answers}

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsBody) -> dict[str, Any]:
        """Return vectors of texts by the encoder of the index."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        model, rows = await turns.run(lambda: service.embed(texts, body.model))
        if body.dimensions not in (None, rows.shape[1]):
            raise ConfigError(
                f"vectors of {body.dimensions} numbers are wanted, the encoder gives "
                f"{rows.shape[1]}",
                hint="leave dimensions out",
            )
        words = sum(word_count(text.encode()) for text in texts)
        data = [
            {"object": "embedding", "index": place, "embedding": _coded(row, body.encoding_format)}
            for place, row in enumerate(rows)
        ]
        return {
            "object": "list",
            "data": data,
            "model": model,
            # The encoder knows words, not tokens: they are what it has read.
            "usage": {"prompt_tokens": words, "total_tokens": words},
        }

    _add_watching(app, service, metrics)
    return app


def _add_watching(app: FastAPI, service: TextService, metrics: RetrieveMetrics) -> None:
    """Add the routes that say how an application is."""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the encoders: of documents, and of queries where that is another one."""
        names = [name for name in dict.fromkeys((service.model, service.query_model)) if name]
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "owned_by": "steelyard"} for name in names],
        }

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say what is served."""
        return {
            "status": "ok",
            "passages": len(service),
            "kind": service.index.store.shape.name,
            "encoder": service.model,
            "query_encoder": service.query_model,
            "reloads": service.num_reloads,
            "refused": service.refused,
        }

    @app.get("/metrics")
    async def measured() -> Response:
        """Return counters for Prometheus."""
        metrics.vectors.set(len(service))
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def _coded(row: np.ndarray, form: str) -> list[float] | str:
    """Return a vector as numbers, or as base64 of little-endian floats."""
    if form == "float":
        return row.tolist()
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
