"""Indexes over HTTP: answers, refusals, shards that die, and recall that is watched."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from steelyard.errors import ConfigError
from steelyard.retrieve import IVFFlat
from steelyard.retrieve.serving.app import make_app
from steelyard.retrieve.serving.live import live_index
from steelyard.retrieve.serving.metrics import RetrieveMetrics
from steelyard.retrieve.serving.queue import SearchQueue
from steelyard.retrieve.serving.service import SearchService
from steelyard.retrieve.serving.shards import LocalIndex, ProcessIndex, ShardDownError
from steelyard.retrieve.serving.turns import TooBusyError, Turns
from steelyard.retrieve.serving.watch import RecallWatch

RNG = np.random.default_rng(8)
VECTORS = RNG.normal(size=(400, 6)).astype(np.float32)
QUERIES = RNG.normal(size=(5, 6)).astype(np.float32)


def _exact(vectors: np.ndarray = VECTORS) -> IVFFlat:
    index = IVFFlat(6)
    index.add(vectors)
    return index


def _file(path: Path, rows: slice, *, nprobe: int = 8) -> Path:
    index = IVFFlat(6, nlist=8, nprobe=nprobe)
    index.train(VECTORS)
    index.add(VECTORS[rows], np.arange(400)[rows])
    index.save(path)
    return path


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SearchService]:
    with live_index(_file(tmp_path / "a.index", slice(None))) as live:
        made = SearchService([LocalIndex(live)])
        yield made
        made.close()


async def _with_client(app: object, ask: object) -> None:
    transport = httpx.ASGITransport(app=app)  # pyright: ignore[reportArgumentType]
    async with (
        app.router.lifespan_context(app),  # pyright: ignore[reportAttributeAccessIssue]
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        await ask(client)  # pyright: ignore[reportCallIssue, reportGeneralTypeIssues]


def test_many_askers_get_each_their_own(service: SearchService) -> None:
    expected = _exact().search(QUERIES, 4)

    async def ask(client: httpx.AsyncClient) -> None:
        bodies = [{"queries": QUERIES[i % 5 :][:1].tolist(), "k": 4} for i in range(30)]
        answers = await asyncio.gather(*(client.post("/search", json=body) for body in bodies))
        for number, answer in enumerate(answers):
            assert answer.json()["ids"] == expected.ids[number % 5 :][:1].tolist()
            assert answer.json()["partial"] is False
        text = (await client.get("/metrics")).text
        assert 'steelyard_retrieve_requests_total{route="/search",status="200"} 30.0' in text
        batches = float(text.split("batch_queries_count ")[1].split()[0])
        assert batches < 30  # those that waited were answered together

    asyncio.run(_with_client(make_app(service), ask))


def test_vectors_come_and_go(service: SearchService) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        new = {"vectors": [[9.0] * 6, [8.0] * 6]}
        assert (await client.post("/add", json=new)).json() == {"ids": [400, 401]}
        body = {"queries": [[9.0] * 6], "k": 2}
        assert (await client.post("/search", json=body)).json()["ids"] == [[400, 401]]
        assert (await client.post("/remove", json={"ids": [400]})).json() == {"removed": 1}
        assert (await client.post("/search", json=body)).json()["ids"][0][0] == 401
        assert (await client.get("/health")).json()["vectors"] == 401

    asyncio.run(_with_client(make_app(service), ask))


@pytest.mark.parametrize(
    ("route", "body", "status", "words"),
    [
        ("/search", {"queries": [[1.0] * 5]}, 400, "5 numbers, the index has 6"),
        ("/search", {"queries": [[1.0] * 6, [1.0]]}, 400, "1 to 6 numbers"),
        ("/search", {"queries": [[1.0] * 6], "k": 0}, 422, "greater than or equal to 1"),
        ("/search", {"queries": []}, 422, "at least 1"),
        ("/add", {"vectors": [[1.0] * 6], "ids": [3]}, 400, "number 3"),
        ("/add", {"vectors": [[1.0] * 6], "ids": [2**70]}, 422, "less than"),
        ("/remove", {"ids": [7, 9999]}, 400, "no vector 9999"),
        ("/search", {"queries": [[1.0] * 6], "nprobes": 3}, 422, "no field 'nprobes'"),
        ("/search", {"queries": [["a"] * 6]}, 422, "queries.0.0: input should be a valid number"),
        ("/search", {}, 422, "queries: field required"),
        ("/search", b'{"queries": [[1.0,', 422, "the body is no JSON: Expecting value"),
        ("/search", b'{"queries": [[NaN, 1, 1, 1, 1, 1]]}', 400, "row 0 of the queries is not"),
        ("/search", b"", 422, "the body is no JSON object"),
        ("/nowhere", {"queries": [[1.0] * 6]}, 404, "no route /nowhere"),
        ("/health", {"k": 1}, 405, "/health takes no POST"),
    ],
)
def test_bad_requests_say_what_is_wrong_in_one_form(
    service: SearchService, route: str, body: dict[str, object] | bytes, status: int, words: str
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def ask(client: httpx.AsyncClient) -> None:
        head = {"content-type": "application/json"}
        answer = await client.post(route, content=raw, headers=head)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert words in error["message"]
        assert error["hint"]

    asyncio.run(_with_client(make_app(service, is_watched=False), ask))


def test_keys_and_lengths_are_checked(service: SearchService) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        body = {"queries": [[1.0] * 6]}
        assert (await client.post("/search", json=body)).status_code == 401
        wrong = {"Authorization": "Bearer nope"}
        assert (await client.post("/search", json=body, headers=wrong)).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert (await client.post("/search", json=body, headers=right)).status_code == 200
        long = {"queries": [[1.0] * 600]}
        assert (await client.post("/search", json=long, headers=right)).status_code == 413
        assert (await client.get("/health")).status_code == 200

    app = make_app(service, keys={"secret": "alice"}, body_limit_bytes=1000)
    asyncio.run(_with_client(app, ask))


def test_more_than_may_wait_is_refused(service: SearchService) -> None:
    async def ask() -> None:
        queue = SearchQueue(service, RetrieveMetrics(), most_waiting=3)
        first = asyncio.ensure_future(queue.search(QUERIES, 2, nprobe=0, strict=False))
        await asyncio.sleep(0)
        with pytest.raises(TooBusyError, match="5 queries wait"):
            await queue.search(QUERIES, 2, nprobe=0, strict=False)
        running = asyncio.ensure_future(queue.run())
        assert len((await first).hits.ids) == 5
        running.cancel()

    asyncio.run(ask())


def test_turns_are_bounded_and_in_order() -> None:
    counts: list[int] = []
    is_free = threading.Event()
    done: list[int] = []

    def work(number: int) -> int:
        is_free.wait(60)
        done.append(number)
        return number

    async def ask() -> None:
        turns = Turns(most=3, noted=counts.append)
        held = [asyncio.ensure_future(turns.run(lambda n=n: work(n))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(TooBusyError, match="3 requests wait"):
            await turns.run(lambda: 9)
        is_free.set()
        assert await asyncio.gather(*held) == done == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            await turns.run(lambda: 1 // 0)
        assert await turns.run(lambda: 9) == 9

    asyncio.run(ask())
    assert max(counts) == 3
    assert counts[-1] == 0


def test_shards_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with (
        live_index(_file(tmp_path / "a.index", slice(0, 9))) as first,
        live_index(_file(tmp_path / "b.index", slice(8, 20))) as second,
        pytest.raises(ConfigError, match=r"number 8 is in .*a\.index and in .*b\.index"),
    ):
        SearchService([LocalIndex(first), LocalIndex(second)])


def test_recall_is_that_of_exact_answers(tmp_path: Path) -> None:
    path = _file(tmp_path / "a.index", slice(None), nprobe=1)
    with live_index(path, read_only=True) as live:
        service = SearchService([LocalIndex(live)])
        found = service.search(VECTORS[:40] + 0.5, 5)
        assert found is not None
        true = _exact().search(VECTORS[:40] + 0.5, 5)
        expected = np.mean(
            [np.isin(t, f).mean() for t, f in zip(true.ids, found.hits.ids, strict=True)]
        )
        now = [0.0]
        watch = RecallWatch(clock=lambda: now[0])
        watch.note(VECTORS[:40] + np.float32(0.5), found.hits.ids)
        while watch.is_due():
            watch.check(service)
            now[0] += 1.0
        assert watch.num_checked == 40
        assert watch.recall == pytest.approx(expected)
        assert expected < 1
        watch.note(VECTORS[:2], found.hits.ids[:2])
        watch.forget()
        assert not watch.is_due()
        service.close()


def test_draws_are_even_and_bounded() -> None:
    watch = RecallWatch(kept=20)
    for first in range(0, 400, 7):
        rows = VECTORS[first : first + 7]
        watch.note(rows, np.arange(first, first + len(rows))[:, None])
    numbers = [int(ids[0]) for _, ids in watch._drawn]
    assert len(set(numbers)) == 20
    assert min(numbers) < 200 < max(numbers)


def test_a_killed_shard_makes_answers_partial_until_it_is_back(tmp_path: Path) -> None:
    paths = [_file(tmp_path / f"{n}.index", slice(n, None, 2)) for n in range(2)]
    shards = [ProcessIndex(path) for path in paths]
    service = SearchService(shards)
    try:
        added = service.add(np.full((1, 6), 9.0))
        whole = service.search(QUERIES, 6)
        assert whole is not None
        np.testing.assert_array_equal(whole.hits.ids, _exact().search(QUERIES, 6).ids)
        process = shards[0]._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # What is asked of a dead shard first starts it again: here how it is.
        metrics, reached = RetrieveMetrics(), service.reached()
        metrics.note_shards(reached, service)
        assert b"steelyard_retrieve_shards_down 1.0" in metrics.text()
        assert [about.size for about in reached] == [200]
        with pytest.raises(ShardDownError, match=r"0\.index"):
            service.search(QUERIES, 6, strict=True)
        deadline = time.monotonic() + 120
        found = service.search(QUERIES, 6)
        while found is not None and found.missing and time.monotonic() < deadline:
            assert not np.isin(found.hits.ids, np.arange(0, 400, 2)).any()
            time.sleep(0.1)
            found = service.search(QUERIES, 6)
        assert found is not None
        np.testing.assert_array_equal(found.hits.ids, whole.hits.ids)
        # What was acknowledged before the kill is there after it, wherever it went.
        again = service.search(np.full((1, 6), 9.0), 1)
        assert again is not None
        assert again.hits.ids[0, 0] == added[0]
        assert service.num_restarts >= 1
    finally:
        service.close()
