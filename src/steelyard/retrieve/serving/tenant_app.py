"""The HTTP face of an index that tenants share: a key says whose vectors a request sees."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import Field

from steelyard import __version__
from steelyard.api_keys import KeyOwners
from steelyard.errors import ConfigError
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
from steelyard.retrieve.serving.turns import Turns
from steelyard.retrieve.tenants import audit as audit_answer
from steelyard.retrieve.tenants.store import TenantStore

__all__ = ["ADMIN", "make_tenant_app"]

ADMIN = "admin"
"""Owner of the key that may act for every tenant."""
Name = Annotated[str, Field(max_length=200)]


class TenantSearchBody(AskBody):
    """A search among what a tenant sees."""

    queries: Rows
    k: Neighbours = 10
    nprobe: Annotated[int, Field(ge=0, description="vectors to compare; 0 for as tuned")] = 0
    tenant: Name = ""
    where: Annotated[str, Field(max_length=2000)] = ""
    strict: Annotated[bool, Field(description="an unknown tenant is an error")] = False


class TenantAddBody(AskBody):
    """Vectors to add; the tenant sees them."""

    vectors: NewRows
    ids: Ids | None = None
    tenant: Name = ""


class TenantIdsBody(AskBody):
    """Vectors that a tenant is to see, or no more."""

    ids: Ids
    tenant: Name = ""


class TenantAuditBody(AskBody):
    """An answer to check against the log of grants."""

    ids: Ids
    tenant: Name = ""
    at_s: Annotated[float, Field(description="moment, seconds since 1970")]


def make_tenant_app(store: TenantStore, *, keys: Mapping[str, str] | None = None) -> FastAPI:
    """Return the application of an index that tenants share.

    A key acts for the tenant that it is named after; the key named "admin" for every tenant that a
    request names. Without keys, which only this machine reaches, each request names its tenant.

    Args:
        store: the index, open for changes; the caller closes it.
        keys: tenant's name by key.

    Returns:
        An ASGI application: `/search`, `/add`, `/grant`, `/revoke`, `/audit`, `/health`,
        `/metrics`.
    """
    metrics = RetrieveMetrics()
    owners = KeyOwners(keys or {})
    app = FastAPI(title="Steelyard retrieve", version=__version__)
    guard_app(app, owners, metrics, BODY_LIMIT_BYTES)
    work = _TenantWork(store, owners, Turns(noted=metrics.waiting.set))
    _add_search(app, work, metrics)
    _add_changes(app, work)
    _add_watching(app, work, metrics)
    return app


class _TenantWork:
    """Runs one request at a time, for the tenant whose key it carries."""

    def __init__(self, store: TenantStore, owners: KeyOwners, turns: Turns) -> None:
        self.store, self._owners = store, owners
        self.run = turns.run

    def owner(self, request: Request) -> str:
        """Return whose key a request carries; the admin's where no key is asked for."""
        given = request.headers.get("authorization", "").encode("latin-1")
        place = self._owners.place(given)
        return ADMIN if place is None else self._owners.names[place]

    def tenant(self, request: Request, named: str) -> str:
        """Return for whom a request acts; refuse others than its own."""
        owner = self.owner(request)
        if owner == ADMIN:
            if not named:
                raise ConfigError("no tenant is named", hint="give tenant")
            return named
        if named not in ("", owner):
            raise ConfigError(
                f"this key is of {owner}, not of {named}", hint="leave tenant out, or use its key"
            )
        return owner


def _add_search(app: FastAPI, work: _TenantWork, metrics: RetrieveMetrics) -> None:
    """Add the routes that read to an application."""

    @app.post("/search")
    async def search(body: TenantSearchBody, request: Request) -> dict[str, Any]:
        """Return the nearest vectors that the tenant sees."""
        if body.where and work.owner(request) != ADMIN:
            raise ConfigError("a condition on tenants needs the admin's key", hint="leave it out")
        who = "" if body.where else work.tenant(request, body.tenant)
        queries, began_s = rows_of(body.queries), time.perf_counter()
        hits = await work.run(
            lambda: work.store.index.search(
                queries,
                body.k,
                tenant=who,
                where=body.where,
                nprobe=body.nprobe or None,
                strict=body.strict,
            )
        )
        metrics.note_search(len(queries), time.perf_counter() - began_s)
        return {"ids": hits.ids.tolist(), "distances": hits.plain_distances()}

    @app.post("/audit")
    async def audit(body: TenantAuditBody, request: Request) -> dict[str, Any]:
        """Say which vectors of an answer the tenant could see at a past moment."""
        who = work.tenant(request, body.tenant)
        ids = np.array(body.ids, np.int64)
        found = await work.run(lambda: audit_answer(work.store.folder, who, ids, body.at_s))
        vectors = [{"id": item.id, "visible": item.is_visible} for item in found]
        return {"hidden": sum(not item.is_visible for item in found), "vectors": vectors}


def _add_changes(app: FastAPI, work: _TenantWork) -> None:
    """Add the routes that change; what they answer survives a kill."""

    @app.post("/add")
    async def add(body: TenantAddBody, request: Request) -> dict[str, Any]:
        """Add vectors that the tenant sees."""
        who = work.tenant(request, body.tenant)
        rows = rows_of(body.vectors)
        ids = None if body.ids is None else np.array(body.ids, np.int64)

        def change() -> list[int]:
            numbers = work.store.add(rows, ids)
            work.store.grant(numbers, who)
            return numbers.tolist()

        return {"ids": await work.run(change)}

    @app.post("/grant")
    async def grant(body: TenantIdsBody, request: Request) -> dict[str, Any]:
        """Let a tenant see vectors: by the admin any, by a tenant's key those that it sees."""
        owner = work.owner(request)
        if not body.tenant:
            raise ConfigError("no tenant is named", hint="give the tenant who is to see them")
        ids = np.array(body.ids, np.int64)

        def change() -> int:
            if owner != ADMIN and not np.isin(ids, work.store.index.granted(owner)).all():
                raise ConfigError(
                    f"{owner} does not see all of these vectors", hint="grant what you see"
                )
            return work.store.grant(ids, body.tenant)

        return {"granted": await work.run(change)}

    @app.post("/revoke")
    async def revoke(body: TenantIdsBody, request: Request) -> dict[str, Any]:
        """Hide vectors from the tenant."""
        who = work.tenant(request, body.tenant)
        ids = np.array(body.ids, np.int64)
        return {"revoked": await work.run(lambda: work.store.revoke(ids, who))}


def _add_watching(app: FastAPI, work: _TenantWork, metrics: RetrieveMetrics) -> None:
    """Add the routes that say how an application is."""

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say what is served, and to nobody who."""
        index = work.store.index
        return {"status": "ok", "vectors": len(index), "dim": index.dim, "metric": index.metric}

    @app.get("/metrics")
    async def measured() -> Response:
        """Return counters for Prometheus."""
        metrics.vectors.set(len(work.store.index))
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")
