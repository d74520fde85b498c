"""An index that tenants share over HTTP: a key sees its tenant's vectors and nothing else."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import numpy as np
import pytest

from steelyard.retrieve.serving.tenant_app import make_tenant_app
from steelyard.retrieve.tenants import ClusterTreeIndex, create_store, writing_store
from steelyard.retrieve.tenants.store import TenantStore, open_tenant_index

VECTORS = np.random.default_rng(3).normal(size=(300, 6)).astype(np.float32)
KEYS = {"ka": "acme", "kb": "bolt", "kroot": "admin"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TenantStore]:
    index = ClusterTreeIndex(6, nprobe=400)
    index.train(VECTORS)
    create_store(tmp_path / "shared", index)
    with writing_store(tmp_path / "shared", now_s=lambda: 1000.0) as made:
        made.add(VECTORS)
        made.grant(np.arange(0, 300, 2), "acme")
        made.grant(np.arange(0, 300, 3), "bolt")
        yield made


def _ask(
    store: TenantStore, *asked: tuple[str, str, Mapping[str, object]], keys: object = KEYS
) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        app = make_tenant_app(store, keys=keys)  # pyright: ignore[reportArgumentType]
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            found = []
            for key, route, body in asked:
                head = {"authorization": f"Bearer {key}"}
                found.append(await client.post(route, json=body, headers=head))
            return found

    return asyncio.run(run())


def test_a_key_sees_its_tenant(store: TenantStore) -> None:
    body = {"queries": VECTORS[:3].tolist(), "k": 5}
    own, other, root, both, foreign = _ask(
        store,
        ("ka", "/search", body),
        ("kb", "/search", body),
        ("kroot", "/search", body | {"tenant": "acme"}),
        ("kroot", "/search", body | {"where": "acme AND bolt"}),
        ("ka", "/search", body | {"tenant": "bolt"}),
    )
    assert all(number % 2 == 0 for row in own.json()["ids"] for number in row)
    assert all(number % 3 == 0 for row in other.json()["ids"] for number in row)
    assert root.json() == own.json()
    assert all(number % 6 == 0 for row in both.json()["ids"] for number in row)
    assert foreign.status_code == 400
    assert "this key is of acme" in foreign.json()["error"]["message"]


def test_changes_are_of_the_tenant_and_last(store: TenantStore) -> None:
    new = {"vectors": [[9.0] * 6], "ids": [900]}
    near = {"queries": [[9.0] * 6], "k": 1}
    answers = _ask(
        store,
        ("ka", "/add", new),
        ("ka", "/search", near),
        ("kb", "/search", near),
        ("kb", "/grant", {"ids": [900], "tenant": "bolt"}),
        ("ka", "/grant", {"ids": [900], "tenant": "bolt"}),
        ("kb", "/search", near),
        ("kb", "/revoke", {"ids": [900]}),
        ("kb", "/search", near),
        ("ka", "/audit", {"ids": [900, 1], "at_s": 1000.0}),
    )
    codes = [answer.status_code for answer in answers]
    assert codes == [200, 200, 200, 400, 200, 200, 200, 200, 200]
    firsts = [answers[place].json()["ids"][0][0] for place in (1, 2, 5, 7)]
    assert firsts[0] == firsts[2] == 900
    assert 900 not in (firsts[1], firsts[3])
    assert answers[8].json()["hidden"] == 1
    assert 900 in open_tenant_index(store.folder).granted("acme")


def test_refusals(store: TenantStore) -> None:
    body = {"queries": VECTORS[:1].tolist(), "k": 5}
    codes = [
        answer.status_code
        for answer in _ask(
            store,
            ("nobody", "/search", body),
            ("ka", "/search", body | {"where": "bolt"}),
            ("ka", "/search", body | {"k": 0}),
            ("kroot", "/search", body),
            ("kroot", "/search", body | {"tenant": "unknown", "strict": True}),
            ("ka", "/search", {"queries": [[1.0, 2.0]]}),
            ("kroot", "/grant", {"ids": [12345], "tenant": "acme"}),
        )
    ]
    assert codes == [401, 400, 422, 400, 400, 400, 400]
    (unknown,) = _ask(store, ("", "/search", body | {"tenant": "unknown"}), keys={})
    assert unknown.json()["ids"] == [[-1] * 5]
