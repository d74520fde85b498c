"""What guards every HTTP face of an index: keys, lengths, and errors in one form."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from steelyard.api_keys import KeyOwners
from steelyard.errors import CapacityError, DataError, SteelyardError, StoreError
from steelyard.retrieve.serving.metrics import RetrieveMetrics
from steelyard.retrieve.serving.shards import ShardDownError
from steelyard.retrieve.serving.turns import TooBusyError

__all__ = [
    "BODY_LIMIT_BYTES",
    "AskBody",
    "Ids",
    "Neighbours",
    "NewRows",
    "Rows",
    "guard_app",
    "rows_of",
]

BODY_LIMIT_BYTES = 32 << 20
_DROPPED = 4
"""Times the limit up to which a body that is refused is read, and forgotten part by part."""
_MOST_QUERIES, _MOST_NEIGHBOURS, _MOST_ADDED = 256, 10_000, 16_384
_OPEN = ("/health", "/metrics", "/docs", "/openapi.json")

Row = list[float]
Rows = Annotated[list[Row], Field(min_length=1, max_length=_MOST_QUERIES)]
"""Queries of a search."""
NewRows = Annotated[list[Row], Field(min_length=1, max_length=_MOST_ADDED)]
"""Vectors to add."""
Neighbours = Annotated[int, Field(ge=1, le=_MOST_NEIGHBOURS)]
"""Neighbours of each query."""
Ids = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=_MOST_ADDED)
]
"""Numbers of vectors."""


class AskBody(BaseModel):
    """A body of a request; a field that it does not know is refused: it may be misspelt."""

    model_config = ConfigDict(extra="forbid")


def guard_app(app: FastAPI, keys: KeyOwners, metrics: RetrieveMetrics, limit_bytes: int) -> None:
    """Refuse who has no key and what is too long, count requests, and word errors in one form.

    Every error is `{"error": {"message": ..., "hint": ...}}`.

    Args:
        app: the application.
        keys: who may ask; everybody where there are none.
        metrics: counts requests.
        limit_bytes: longest body.
    """

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        refused = _refusal(request, keys, limit_bytes)
        if refused is not None and refused.status_code == 413:
            await _dropped(request, _DROPPED * limit_bytes)
        response = refused or await answer(request)
        is_known = any(getattr(route, "path", "") == path for route in app.routes)
        metrics.requests.labels(path if is_known else "other", str(response.status_code)).inc()
        return response

    @app.exception_handler(SteelyardError)
    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, SteelyardError)
        return _error(_status(error), str(error), error.hint)

    @app.exception_handler(RequestValidationError)
    async def refuse_body(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _error(422, *_body_words(error.errors()))

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, words = request.url.path, str(error.detail)
        if error.status_code == 404:
            words = f"there is no route {path}"
        elif error.status_code == 405:
            words = f"{path} takes no {request.method}"
        return _error(error.status_code, words, "all routes are described at /docs")


async def _dropped(request: Request, most_bytes: int) -> None:
    """Read a body that nobody wants: who still sends it when the answer comes may not see that."""
    seen = 0
    async for part in request.stream():
        seen += len(part)
        if seen > most_bytes:
            return


def _body_words(errors: Any) -> tuple[str, str]:
    """Return message and hint of what is wrong in a body."""
    first, hint = errors[0], "all fields are described at /docs"
    if first["type"] == "json_invalid":
        return f"the body is no JSON: {first['ctx']['error']}, character {first['loc'][-1]}", hint
    place = ".".join(str(part) for part in first["loc"][1:])
    if not place:
        # FastAPI reads JSON only where the header says that it is some.
        return "the body is no JSON object", "send one with content-type: application/json"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"there is no field {place!r}{more}", hint
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}{more}", hint


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
        told = f"a body of {int(length):,} bytes is longer than {limit_bytes:,}"
        return _error(413, told, "send fewer at once")
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
        raise DataError(
            f"rows have {min(widths)} to {max(widths)} numbers", hint="give rows of one length"
        )
    return np.array(values, np.float32)
