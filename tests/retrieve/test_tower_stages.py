"""Stages around the training of towers: pairs, students, refinement, folders, files of vectors."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog import Architecture
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import ConfigError, DataError, SteelyardWarning
from steelyard.nn.towers import Tower
from steelyard.nn.transformer import build
from steelyard.retrieve.datastore import Datastore
from steelyard.retrieve.towers import (
    QueryEncoder,
    TowerEncoder,
    begin_with_teacher,
    begin_with_texts,
    cloze_pairs,
    contrastive_entropy,
    distill_queries,
    load_encoder,
    made_queries,
    mine_negatives,
    ndcg,
    ranks_of_own,
    refine_queries,
    save_encoder,
    title_pairs,
)
from steelyard.retrieve.towers.bulk import encode_file, require_vectors_of
from steelyard.retrieve.towers.sources import document_groups, sentences
from steelyard.train import EstimatorConfig

WORDS = [a + b for a in ("ba", "ko", "mi", "tu", "re") for b in ("lan", "sod", "fer", "gup")]
RNG = np.random.default_rng(4)
TEXTS = [" ".join(RNG.choice(WORDS, 8)) for _ in range(64)]
TOKENIZER = train_tokenizer(TEXTS, 300)


def _tower(seed: int, dim: int = 16, width: int = 32) -> Tower:
    arch = Architecture(
        name="tiny",
        num_layers=1,
        hidden_size=width,
        num_heads=2,
        num_kv_heads=2,
        head_dim=width // 2,
        intermediate_size=64,
        vocab_size=300,
        max_positions=64,
    )
    return Tower(build(arch, seed=seed), dim, pooling="mean", seed=seed)


def _encoder(seed: int, dim: int = 16) -> TowerEncoder:
    return TowerEncoder(_tower(seed, dim), TOKENIZER, max_tokens=32)


def _config(steps: int) -> EstimatorConfig:
    return EstimatorConfig(steps=steps, batch_size=16, learning_rate=5e-3, threads=1)


def test_titles_and_sentences_become_pairs_that_know_their_source() -> None:
    texts = [
        "One two three four. Five six seven eight? Nine ten eleven twelve!",
        "Only one sentence stands here",
        "",
    ]
    titles = title_pairs(["a b", "", "c"], texts)
    assert (titles.queries, titles.dropped) == (["a b"], 2)
    clozes = cloze_pairs(texts, kept_share=0.0)
    assert clozes.dropped == 2
    assert clozes.queries == sentences(texts[0])
    assert clozes.documents[1] == "One two three four. Nine ten eleven twelve!"
    both = titles + clozes
    assert both.documents[both.own[2]] == clozes.documents[1]
    # All come from the first text: none is a negative of another.
    assert set(both.groups.tolist()) == {0}
    assert len(cloze_pairs(texts, most=2)) == 2
    with pytest.raises(DataError, match="two sentences"):
        cloze_pairs(texts[1:])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 5)), min_size=1, max_size=12))
def test_groups_join_equal_texts_and_sources(rows: list[tuple[str, int]]) -> None:
    texts, sources = [text for text, _ in rows], np.array([source for _, source in rows])
    groups = document_groups(texts, sources)
    names = list(range(len(rows)))
    # The slow way: give linked rows one name until nothing changes.
    for _ in rows:
        for i in range(len(rows)):
            for j in range(len(rows)):
                if texts[i] == texts[j] or sources[i] == sources[j]:
                    low = min(names[i], names[j])
                    names[i] = names[j] = low
    for i in range(len(rows)):
        for j in range(len(rows)):
            assert (groups[i] == groups[j]) == (names[i] == names[j])


def test_duplicates_are_found_by_hash_and_are_no_negatives() -> None:
    pairs = title_pairs(["a", "b", "c"], ["same text", "same text", "other"])
    assert pairs.duplicates == 1
    assert pairs.groups[0] == pairs.groups[1] != pairs.groups[2]
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, 4)).astype("f4") for n in (5, 30))
    groups = np.arange(30) // 3
    own = rng.integers(0, 30, 5)
    mined = mine_negatives(queries, documents, own, ranks=(0, 12), groups=groups)
    for row in range(5):
        order = np.argsort(-(queries[row] @ documents.T), kind="stable")
        allowed = [one for one in order.tolist() if groups[one] != groups[own[row]]]
        assert mined[row].tolist() == allowed[:12]
    with pytest.raises(DataError, match="one group"):
        mine_negatives(queries, documents, own, groups=np.zeros(30, int))


def test_a_student_of_another_width_learns_a_map(tmp_path: Path) -> None:
    teacher, student = _encoder(0, 16), _encoder(7, 8)
    before = student.encode(TEXTS[:4])
    student.tower.project_to(16)
    # More numbers keep every cosine; the map costs no further product.
    np.testing.assert_allclose(
        student.encode(TEXTS[:4]) @ student.encode(TEXTS[:4]).T, before @ before.T, atol=1e-5
    )
    assert student.tower.projection.shape == (16, 32)
    other = _encoder(7, 24)
    with pytest.warns(SteelyardWarning, match="1 of 65 texts"):
        losses = distill_queries(teacher, other, [*TEXTS, ""], _config(30), tmp_path / "run")
    assert other.dim == 16 and np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_refinement_moves_the_queries_alone(tmp_path: Path) -> None:
    queries = [" ".join(text.split()[:3]) for text in TEXTS]
    student, documents = _encoder(3), _encoder(5).encode(TEXTS)
    kept = documents.copy()

    def hits() -> float:
        scores = student.encode(queries) @ documents.T
        return float((ranks_of_own(scores, np.arange(64)) < 5).mean())

    before = hits()
    losses = refine_queries(
        student, documents, (queries, np.arange(64)), _config(40), tmp_path, ranks=(2, 20)
    )
    assert losses[-1] < losses[0] and hits() > before
    assert np.array_equal(documents, kept)
    with pytest.raises(ConfigError, match="16"):
        refine_queries(student, documents[:, :8], (queries, np.arange(64)), _config(1), tmp_path)


def test_token_tables_begin_with_latent_vectors() -> None:
    rng = np.random.default_rng(0)
    rows = [[*rng.integers(0, 30, 20).tolist(), one] for one in range(40, 140)]
    model = _tower(0, width=16).model
    before = model.embedding.weight.detach().clone()
    begin_with_texts(model, rows, size=0.5)
    table = model.embedding.weight.detach()
    known = sorted({one for row in rows for one in row if one < 30})
    assert torch.equal(table[200:], before[200:])
    assert float(table[known].square().mean().sqrt()) == pytest.approx(0.5, rel=1e-4)
    with pytest.raises(DataError, match="directions"):
        begin_with_texts(_tower(0, width=32).model, rows[:3])


def test_entropy_and_ranks_equal_the_plain_way() -> None:
    rng = np.random.default_rng(1)
    queries, documents = rng.normal(size=(6, 5)), rng.normal(size=(40, 5))
    own = rng.integers(0, 40, 6)
    found = contrastive_entropy(queries, documents, own, negatives=39, temperature=0.3)
    scores = queries @ documents.T / 0.3
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    plain = -np.log(shares[np.arange(6), own])
    np.testing.assert_allclose(found, plain, rtol=1e-10)
    ranks = ranks_of_own(scores, own)
    assert ranks.tolist() == [int((s > s[p]).sum()) for s, p in zip(scores, own, strict=True)]
    assert ranks_of_own(np.zeros((1, 5)), np.array([2])).tolist() == [2]
    np.testing.assert_allclose(
        ndcg(np.array([0, 1, 9, 10])), [1, 1 / np.log2(3), 1 / np.log2(11), 0]
    )
    with pytest.raises(ConfigError, match="documents besides"):
        contrastive_entropy(queries, documents, own, negatives=40)


def test_folders_bring_encoders_back_and_refuse_mixtures(tmp_path: Path) -> None:
    documents, student = _encoder(1), _encoder(2)
    save_encoder(documents, tmp_path / "documents")
    save_encoder(QueryEncoder(student, documents.fingerprint), tmp_path / "queries")
    again, asks = load_encoder(tmp_path / "documents"), load_encoder(tmp_path / "queries")
    assert isinstance(again, TowerEncoder) and isinstance(asks, QueryEncoder)
    assert again.fingerprint == asks.fingerprint == documents.fingerprint
    assert np.array_equal(asks.encode(TEXTS[:3]), student.encode(TEXTS[:3]))
    about = tmp_path / "queries" / "encoder.json"
    values = json.loads(about.read_text())
    about.write_text(json.dumps(values | {"max_tokens": 12}))
    with pytest.raises(DataError, match="holds encoder"):
        load_encoder(tmp_path / "queries")
    with pytest.raises(DataError, match="no encoder"):
        load_encoder(tmp_path)


def test_a_student_asks_the_store_of_its_teacher_and_no_other(tmp_path: Path) -> None:
    documents, student = _encoder(1), _encoder(2)
    named = [(f"text {place}", text) for place, text in enumerate(TEXTS)]
    Datastore.build(tmp_path / "store", named, documents)
    asks = QueryEncoder(student, documents.fingerprint)
    assert Datastore(tmp_path / "store", asks).search(TEXTS[:2], 3).ids.shape == (2, 3)
    with pytest.raises(ConfigError, match="built with encoder"):
        Datastore(tmp_path / "store", QueryEncoder(student, _encoder(9).fingerprint))
    with pytest.raises(ConfigError, match="queries alone"):
        Datastore.build(tmp_path / "other", named, asks)


def test_files_of_vectors_go_on_after_a_kill_and_name_their_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = _encoder(1)
    monkeypatch.setattr("steelyard.retrieve.towers.bulk._PART", 16)
    texts = [*TEXTS[:40], " ", *TEXTS[40:]]
    path = tmp_path / "vectors.npy"

    class Dying:
        dim, fingerprint, calls = encoder.dim, encoder.fingerprint, 0

        def encode(self, texts: Sequence[str]) -> np.ndarray:
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return encoder.encode(texts)

    with pytest.raises(KeyboardInterrupt):
        encode_file(Dying(), texts, path)
    assert not path.exists()
    rest = Dying()
    rest.calls = 10
    assert encode_file(rest, texts, path) == 1
    assert rest.calls == 10 + 3
    rows = np.load(path)
    assert not rows[40].any()
    np.testing.assert_allclose(np.delete(rows, 40, axis=0), encoder.encode(TEXTS), atol=1e-5)
    require_vectors_of(path, encoder)
    with pytest.raises(ConfigError, match="made by encoder"):
        require_vectors_of(path, _encoder(8))
    assert [item.name for item in sorted(tmp_path.iterdir())] == ["vectors.npy", "vectors.npy.json"]


def test_a_student_begins_near_its_teacher() -> None:
    teacher = _encoder(0)
    with torch.no_grad():
        # Layers that are not trained yet hide what tokens mean: rows of size 1 stand above them.
        teacher.tower.model.embedding.weight.div_(0.2)
    wanted = teacher.encode(TEXTS)
    student, other = (TowerEncoder(_tower(9, 8), TOKENIZER, max_tokens=32) for _ in range(2))
    begin_with_teacher(student.tower, teacher.tower)
    assert student.dim == 16
    near = (student.encode(TEXTS) * wanted).sum(axis=1).mean()
    other.tower.project_to(16)
    assert near > 0.8 > (other.encode(TEXTS) * wanted).sum(axis=1).mean()
    narrow = TowerEncoder(_tower(9, 16, width=8), TOKENIZER, max_tokens=32)
    begin_with_teacher(narrow.tower, teacher.tower)
    assert narrow.tower.projection.shape == (16, 8)
    with pytest.raises(ConfigError, match="size 0"):
        begin_with_teacher(student.tower, teacher.tower, size=0.0)


def test_made_queries_are_parts_of_texts_and_all_different() -> None:
    texts = [f"w{n} a{n} b{n} c{n} d{n} e{n}" for n in range(20)] + ["short", ""]
    found = made_queries(texts, 150, words=(3, 5), noise=0.2, seed=1)
    assert len(set(found)) == 150 and not set(found) & set(texts)
    assert found == made_queries(texts, 150, words=(3, 5), noise=0.2, seed=1)
    for query in found:
        inside = [set(query.split()) <= set(text.split()) for text in texts]
        assert sum(inside) == 1 and 1 <= len(query.split()) <= 5
    runs = made_queries(texts, 50, words=(3, 5), noise=0.0)
    assert all(any(query in text for text in texts) for query in runs)
    with pytest.raises(DataError, match="are wanted"):
        made_queries(["a b c d"], 100, noise=0.0)
    with pytest.raises(ConfigError, match="noise"):
        made_queries(texts, 5, noise=1.0)
    assert made_queries([], 0) == []
