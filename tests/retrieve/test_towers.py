"""Towers on texts: encoding, mined negatives, training in rounds, distilled queries."""

from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard.catalog import Architecture
from steelyard.data.tokenizer import train_tokenizer
from steelyard.errors import ConfigError, DataError
from steelyard.nn.towers import Tower, TowerPair
from steelyard.nn.transformer import build
from steelyard.retrieve.towers import (
    TextPairs,
    TowerEncoder,
    distill_queries,
    mine_negatives,
    train_towers,
)
from steelyard.retrieve.towers.encoder import padded_tokens
from steelyard.train import EstimatorConfig

WORDS = [a + b for a in ("ba", "ko", "mi", "tu", "re") for b in ("lan", "sod", "fer", "gup")]
RNG = np.random.default_rng(4)
DOCUMENTS = [" ".join(RNG.choice(WORDS, 8)) for _ in range(64)]
QUERIES = [" ".join(np.array(text.split())[RNG.permutation(8)[:3]]) for text in DOCUMENTS]
OWN = np.arange(64)
TOKENIZER = train_tokenizer(DOCUMENTS, 300)


def _tower(layers: int, seed: int, dim: int = 16) -> Tower:
    arch = Architecture(
        name="tiny",
        num_layers=layers,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=64,
        vocab_size=300,
        max_positions=64,
    )
    return Tower(build(arch, seed=seed), dim, pooling="mean", seed=seed)


def _config(steps: int, **fields: float) -> EstimatorConfig:
    rate = fields.get("learning_rate", 5e-3)
    return EstimatorConfig(steps=steps, batch_size=16, learning_rate=rate, threads=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, TowerPair, Path]:
    folder = tmp_path_factory.mktemp("towers")
    pair = TowerPair(_tower(1, 0), _tower(1, 1))
    found = train_towers(
        pair,
        TOKENIZER,
        (QUERIES, DOCUMENTS, OWN),
        _config(30),
        folder,
        hard_negatives=3,
        max_tokens=(32, 64),
    )
    return found, pair, folder


def _hit_share(queries: np.ndarray, documents: np.ndarray, k: int = 5) -> float:
    best = np.argsort(-(queries @ documents.T), axis=1)[:, :k]
    return float((best == OWN[:, None]).any(axis=1).mean())


def test_towers_learn_which_document_is_meant(trained) -> None:
    found, _, folder = trained
    untrained = TowerEncoder(_tower(1, 0), TOKENIZER, max_tokens=32)
    other = TowerEncoder(_tower(1, 1), TOKENIZER, max_tokens=64)
    before = _hit_share(untrained.encode(QUERIES), other.encode(DOCUMENTS))
    after = _hit_share(found.queries.encode(QUERIES), found.documents.encode(DOCUMENTS))
    assert after > max(0.5, before + 0.2)
    assert len(found.losses) == 60
    assert (folder / "round-1").is_dir()


def test_a_second_call_finds_what_the_first_left(trained) -> None:
    found, pair, folder = trained
    again = TowerPair(_tower(1, 0), _tower(1, 1))
    repeated = train_towers(
        again,
        TOKENIZER,
        (QUERIES, DOCUMENTS, OWN),
        _config(30),
        folder,
        hard_negatives=3,
        max_tokens=(32, 64),
    )
    assert repeated.losses == found.losses
    for one, other in zip(again.parameters(), pair.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_student_returns_its_teachers_vectors(trained, tmp_path: Path) -> None:
    teacher = trained[0].queries
    student = TowerEncoder(_tower(1, 7), TOKENIZER, max_tokens=32)
    texts = [" ".join(RNG.choice(WORDS, 3)) for _ in range(256)]
    losses = distill_queries(teacher, student, texts, _config(60), tmp_path / "run")
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    documents = trained[0].documents.encode(DOCUMENTS)
    wanted, got = teacher.encode(QUERIES), student.encode(QUERIES)
    # No score moves by more than the query's vector does, so the documents stay as they are.
    change = np.abs(wanted @ documents.T - got @ documents.T).max(axis=1)
    assert (change <= np.linalg.norm(wanted - got, axis=1) + 1e-5).all()


def test_encoding_depends_on_no_neighbour() -> None:
    encoder = TowerEncoder(_tower(2, 3), TOKENIZER, max_tokens=12)
    texts = [" ".join(WORDS[:count]) for count in (1, 9, 3, 20, 2)]
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)


def test_vectors_in_half_precision_keep_their_digits() -> None:
    tower = _tower(1, 0).eval()
    tokens, lengths = padded_tokens([[5, 6, 7], [8], [9, 10]])
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]
    assert lengths.tolist() == [3, 1, 2]
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = tower(tokens, lengths)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    with torch.inference_mode():
        torch.testing.assert_close(found, tower(tokens, lengths), atol=0.05, rtol=0)


def test_fingerprints_tell_encoders_apart() -> None:
    encoders = [
        TowerEncoder(_tower(1, 3), TOKENIZER, max_tokens=12),
        TowerEncoder(_tower(1, 4), TOKENIZER, max_tokens=12),
        TowerEncoder(_tower(1, 3), TOKENIZER, max_tokens=13),
        TowerEncoder(_tower(1, 3), train_tokenizer(DOCUMENTS, 280), max_tokens=12),
    ]
    assert len({encoder.fingerprint for encoder in encoders}) == 4
    same = TowerEncoder(_tower(1, 3), TOKENIZER, max_tokens=12)
    assert same.fingerprint == encoders[0].fingerprint


def test_mined_negatives_are_the_ranks_asked_for() -> None:
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, 6)).astype("f4") for n in (9, 40))
    own = rng.integers(0, 40, 9)
    found = mine_negatives(queries, documents, own, ranks=(4, 12))
    for row in range(9):
        order = np.argsort(-(queries[row] @ documents.T))
        assert found[row].tolist() == [one for one in order if one != own[row]][4:12]
    assert mine_negatives(queries, documents[:3], own % 3).shape == (9, 1)


def test_each_pair_comes_once_an_epoch_with_documents_of_its_own() -> None:
    hard = np.stack([(OWN + step) % 64 for step in (1, 2, 3)], axis=1)
    encoder = TowerEncoder(_tower(1, 0), TOKENIZER, max_tokens=32)
    pairs = TextPairs(
        QUERIES,
        DOCUMENTS,
        OWN,
        tokens=(encoder.tokens, encoder.tokens),
        batch_size=16,
        hard=hard,
        hard_in_batch=2,
    )
    batches = [pairs.batch(index) for index in range(4)]
    keys = torch.cat([batch["keys"] for batch in batches])
    assert len(set(keys[:, 0].tolist())) == 64
    assert keys.shape == (64, 3)
    assert all(len(set(row)) == 3 for row in keys.tolist())
    assert torch.equal(pairs.batch(2)["documents"], batches[2]["documents"])


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    encoder = TowerEncoder(_tower(1, 0), TOKENIZER, max_tokens=32)
    with pytest.raises(DataError, match="text 1 has no token"):
        encoder.encode(["ba", ""])
    with pytest.raises(ConfigError, match="65 tokens"):
        TowerEncoder(_tower(1, 0), TOKENIZER, max_tokens=65)
    with pytest.raises(DataError, match="batches of 99"):
        TextPairs(QUERIES, DOCUMENTS, OWN, tokens=(encoder.tokens, encoder.tokens), batch_size=99)
    with pytest.raises(ConfigError, match="batches of 16 from 3 texts"):
        distill_queries(encoder, encoder, QUERIES[:3], _config(2), tmp_path)
