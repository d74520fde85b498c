"""An index of texts over HTTP: passages, embeddings in OpenAI's form, refusals, a newer build."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path

import httpx
import numpy as np
import pytest

from steelyard.catalog import Architecture
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import ConfigError
from steelyard.nn.towers import Tower
from steelyard.nn.transformer import build
from steelyard.retrieve.corpus import CorpusOptions, build_corpus
from steelyard.retrieve.serving.text_app import make_text_app
from steelyard.retrieve.serving.text_service import TextService
from steelyard.retrieve.towers import QueryEncoder, TowerEncoder

OPTIONS = CorpusOptions(words=16, dim=4)


def _build(folder: Path, index: Path, kind: str = "hybrid") -> None:
    options = CorpusOptions(words=16, dim=4, kind=kind)
    build_corpus(index, [folder], options)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("the kettle is on the stove\n\nthe cat sleeps on the mat\n")
    (folder / "b.md").write_text("trains leave at noon\nand arrive at night\n")
    _build(folder, tmp_path / "index")
    return folder, tmp_path / "index"


def _ask(service: TextService, *asked: tuple[str, Mapping[str, object]], **options: object) -> list:
    async def run() -> list[httpx.Response]:
        app = make_text_app(service, **options)  # pyright: ignore[reportArgumentType]
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            found = []
            for route, body in asked:
                found.append(await (client.post(route, json=body) if body else client.get(route)))
            return found

    return asyncio.run(run())


def test_passages_come_with_their_lines(places: tuple[Path, Path]) -> None:
    folder, index = places
    one, many, health, metrics = _ask(
        TextService(index),
        ("/search", {"query": "when do they arrive", "k": 1}),
        ("/search", {"queries": ["kettle", "cat"], "k": 1}),
        ("/health", {}),
        ("/metrics", {}),
    )
    (best,) = one.json()["answers"]
    assert (best["path"], best["line"]) == (str(folder / "b.md"), 2)
    assert [items[0]["path"] for items in many.json()["answers"]] == [str(folder / "a.md")] * 2
    assert health.json()["kind"] == "words + flat vectors"
    told = 'steelyard_retrieve_requests_total{route="/search",status="200"} 2.0'
    assert told in metrics.text


def test_embeddings_have_openais_form(places: tuple[Path, Path]) -> None:
    service = TextService(places[1])
    texts = ["the cat sleeps", "trains at noon"]
    plain, coded, one = _ask(
        service,
        ("/v1/embeddings", {"input": texts, "model": "any"}),
        ("/v1/embeddings", {"input": texts, "encoding_format": "base64"}),
        ("/v1/embeddings", {"input": texts[0]}),
    )
    encoder = service.index.store.encoder
    assert encoder is not None
    expected = encoder.encode(texts)
    body = plain.json()
    assert (body["object"], body["model"]) == ("list", encoder.fingerprint)
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    rows = [item["embedding"] for item in body["data"]]
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert [item["index"] for item in body["data"]] == [0, 1]
    raw = [base64.b64decode(item["embedding"]) for item in coded.json()["data"]]
    np.testing.assert_array_equal(np.frombuffer(b"".join(raw), "<f4").reshape(2, -1), expected)
    np.testing.assert_allclose(one.json()["data"][0]["embedding"], expected[0], atol=1e-6)


def test_refusals(places: tuple[Path, Path], tmp_path: Path) -> None:
    service = TextService(places[1])
    found = _ask(
        service,
        ("/search", {"query": " "}),
        ("/search", {"query": "cat", "k": 0}),
        ("/search", {"k": 3}),
        ("/search", {"query": "a", "queries": ["b"]}),
        ("/v1/embeddings", {"input": [""]}),
        ("/v1/embeddings", {"input": "cat", "dimensions": 512}),
    )
    assert [answer.status_code for answer in found] == [400, 422, 400, 400, 400, 400]
    assert "empty" in found[0].json()["error"]["message"]
    closed, open_ = _ask(
        service, ("/search", {"query": "cat"}), ("/health", {}), keys={"secret": "me"}
    )
    assert (closed.status_code, open_.status_code) == (401, 200)
    _build(places[0], tmp_path / "words", "bm25")
    refused, found = _ask(
        TextService(tmp_path / "words"),
        ("/v1/embeddings", {"input": "cat"}),
        ("/search", {"query": "cat", "k": 1}),
    )
    assert refused.status_code == 400
    assert "no encoder" in refused.json()["error"]["message"]
    assert found.json()["answers"][0]["line"] == 3


def test_a_newer_build_is_opened(places: tuple[Path, Path]) -> None:
    folder, index = places
    service = TextService(index)
    (folder / "c.md").write_text("a walrus in the bathtub\n")
    _build(folder, index)
    (answer,) = _ask(service, ("/search", {"query": "walrus", "k": 1}))
    assert answer.json()["answers"][0]["path"] == str(folder / "c.md")
    assert service.num_reloads == 1


def _tower(texts: list[str], seed: int) -> TowerEncoder:
    tokenizer = train_tokenizer(texts, 300)
    arch = Architecture(
        name="tiny",
        num_layers=1,
        hidden_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=16,
        vocab_size=300,
        max_positions=64,
    )
    return TowerEncoder(Tower(build(arch, seed=seed), 4, pooling="mean"), tokenizer, max_tokens=64)


def test_a_student_asks_an_index_of_its_teacher(places: tuple[Path, Path]) -> None:
    folder, index = places
    texts = [path.read_text() for path in folder.iterdir()]
    teacher, small = _tower(texts, 0), _tower(texts, 1)
    student = QueryEncoder(small, teacher.fingerprint)
    flat = CorpusOptions(words=16, kind="flat")
    build_corpus(index, [folder], flat, encoder=teacher)
    service = TextService(index, student)
    asked = "when do trains leave"
    found, models, health, queries, documents = _ask(
        service,
        ("/search", {"query": asked, "k": 3}),
        ("/v1/models", {}),
        ("/health", {}),
        ("/v1/embeddings", {"input": asked}),
        ("/v1/embeddings", {"input": asked, "model": teacher.fingerprint}),
    )
    # Scores are those of the student's vector among the teacher's.
    best = found.json()["answers"][0]
    own = teacher.encode([best["text"]])[0] @ small.encode([asked])[0]
    assert best["score"] == pytest.approx(float(own), abs=1e-5)
    names = [item["id"] for item in models.json()["data"]]
    assert names == [teacher.fingerprint, small.fingerprint]
    assert health.json()["query_encoder"] == small.fingerprint
    for answer, encoder in ((queries, small), (documents, teacher)):
        assert answer.json()["model"] == encoder.fingerprint
        row = answer.json()["data"][0]["embedding"]
        np.testing.assert_allclose(row, encoder.encode([asked])[0], atol=1e-5)


def test_wrong_pairs_are_refused_by_name(places: tuple[Path, Path], tmp_path: Path) -> None:
    folder, index = places
    texts = [path.read_text() for path in folder.iterdir()]
    teacher, other = _tower(texts, 0), _tower(texts, 2)
    student = QueryEncoder(_tower(texts, 1), teacher.fingerprint)
    with pytest.raises(ConfigError, match="encoder that was fitted") as refused:
        TextService(index, student)
    assert teacher.fingerprint in str(refused.value)
    _build(folder, tmp_path / "words", "bm25")
    with pytest.raises(ConfigError, match="by words alone"):
        TextService(tmp_path / "words", student)
    options = CorpusOptions(words=16, kind="flat")
    build_corpus(tmp_path / "t", [folder], options, encoder=teacher)
    service = TextService(tmp_path / "t", student)
    # A newer build by another tower is not opened: the student would ask what it does not know.
    build_corpus(tmp_path / "t", [folder], options, encoder=other)
    found, health = _ask(service, ("/search", {"query": "cat", "k": 1}), ("/health", {}))
    assert found.status_code == 200
    assert other.fingerprint in health.json()["refused"]
    assert health.json()["encoder"] == teacher.fingerprint
