"""Scores by words against the plain formula, fusion of two rankings, and weights for it."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.datastore import Datastore
from steelyard.retrieve.index import Hits, SearchStats
from steelyard.retrieve.text import LatentEncoder
from steelyard.retrieve.text.fusion import Fusion
from steelyard.retrieve.text.lexical import K1, B, BM25Index
from steelyard.retrieve.text.weighing import made_queries, weigh

WORDS = [f"word{number}" for number in range(60)]
RNG = np.random.default_rng(4)
TEXTS = [" ".join(RNG.choice(WORDS, int(RNG.integers(3, 25)))) for _ in range(80)]


def _plain(texts: Sequence[str], query: str) -> list[float]:
    """Score by the formula of Lucene's BM25."""
    counts = [Counter(text.split()) for text in texts]
    mean = sum(len(text.split()) for text in texts) / len(texts)
    found = []
    for count, text in zip(counts, texts, strict=True):
        total = 0.0
        for word in query.split():
            holding = sum(word in other for other in counts)
            if not holding:
                continue
            rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            length = 1 - B + B * len(text.split()) / mean
            total += rarity * count[word] / (count[word] + K1 * length)
        found.append(total)
    return found


def test_scores_are_those_of_the_formula(tmp_path: Path) -> None:
    BM25Index.build(text.encode() for text in TEXTS).save(tmp_path / "words")
    index = BM25Index.open(tmp_path / "words")
    queries = [" ".join(RNG.choice(WORDS, 4)) for _ in range(20)] + ["word1 unknown"]
    hits = index.search(queries, 5)
    for row, query in enumerate(queries):
        expected = _plain(TEXTS, query)
        np.testing.assert_allclose(index.scores(query), expected, rtol=1e-4, atol=1e-6)
        order = sorted(range(len(TEXTS)), key=lambda place: (-index.scores(query)[place], place))
        assert hits.ids[row].tolist() == order[:5]


def test_few_hits_end_with_none_and_wrong_input_is_named(tmp_path: Path) -> None:
    index = BM25Index.build([b"one two", b"three", b""])
    hits = index.search(["two", "nothing"], 3)
    assert hits.ids.tolist() == [[0, -1, -1], [-1, -1, -1]]
    assert np.isneginf(hits.distances[1]).all()
    with pytest.raises(DataError, match="none of 2 passages has a word"):
        BM25Index.build([b"", b"--"])
    with pytest.raises(ConfigError, match="k is 0"):
        index.search(["two"], 0)
    index.save(tmp_path / "words")
    raw = bytearray((tmp_path / "words").read_bytes())
    raw[70] ^= 1
    (tmp_path / "words").write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        BM25Index.open(tmp_path / "words").search(["two"], 1)


def _hits(rows: list[tuple[int, float]]) -> Hits:
    ids = np.array([[number for number, _ in rows]], np.int64)
    return Hits(
        ids=ids, distances=np.array([[v for _, v in rows]], np.float32), stats=SearchStats()
    )


def test_fusion_by_hand() -> None:
    words, vectors = _hits([(3, 8.0), (1, 4.0)]), _hits([(1, 0.5), (2, 0.25), (-1, -np.inf)])
    found = Fusion("weighted", 0.25).fuse(words, vectors, 4)
    # Rankings of few end at 0: 8/8 and 4/8 of words, .5/.5 and .25/.5 of vectors.
    assert found.ids.tolist() == [[3, 1, 2, -1]]
    assert found.distances[0, :3] == pytest.approx([0.75, 0.625, 0.125])
    ranks = Fusion("ranks").fuse(words, vectors, 2)
    assert ranks.ids.tolist() == [[1, 3]]
    assert ranks.distances[0, 0] == pytest.approx(1 / 62 + 1 / 61)
    with pytest.raises(ConfigError, match="weight of 2"):
        Fusion("weighted", 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=12), st.integers(0, 10))
def test_all_weight_on_one_ranking_is_that_ranking(numbers: list[int], k: int) -> None:
    scores = np.linspace(9, 1, len(numbers))
    one = _hits(list(zip(numbers, scores.tolist(), strict=True)))
    other = _hits([(number, 1.0) for number in range(40, 45)])
    kept = Fusion("weighted", 0.0).fuse(one, other, len(numbers)).ids[0].tolist()
    assert kept == numbers
    assert (
        Fusion("weighted", 1.0).fuse(other, one, k + 1).ids[0].tolist()[: len(numbers)]
        == (numbers[: k + 1])
    )


def test_made_queries_are_not_in_their_passage() -> None:
    texts = [f"the quick fox {n} jumps high. over a lazy dog {n} sleeps. fin" for n in range(50)]
    made = made_queries(texts, np.random.default_rng(0), 30)
    assert len(made) == 30
    for place, query, rest in made:
        assert query in texts[place]
        assert query not in rest
    assert not made_queries(["one line only", ""], np.random.default_rng(0), 5)


def test_weights_follow_what_finds_passages() -> None:
    rng = np.random.default_rng(1)
    topics = [[f"t{topic}w{n}" for n in range(12)] for topic in range(40)]
    texts = [
        ". ".join(" ".join(rng.choice(topics[n % 40], 6)) for _ in range(4)) for n in range(400)
    ]
    noise = weigh(texts, lambda pool: lambda texts: rng.normal(size=(len(texts), 8)))
    assert noise.fusion.vector_weight < 0.5
    assert noise.queries > 50
    useful = weigh(texts, lambda pool: LatentEncoder.fit(pool, 40).encode)
    assert useful.found["chosen"] >= 0.9 * max(useful.found["words"], useful.found["vectors"])
    assert weigh(texts[:5], lambda pool: LatentEncoder.fit(pool, 4).encode).queries == 0


@pytest.mark.parametrize("kind", ["flat", "ivf", "ivfpq", "bm25", "hybrid"])
def test_datastores_of_each_kind(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(2)
    documents = [(f"d{n}", " ".join(rng.choice(WORDS, 20))) for n in range(400)]
    encoder = None if kind == "bm25" else LatentEncoder.fit([text for _, text in documents], 16)
    store = Datastore.build(tmp_path, documents, encoder, index=kind, shard_passages=300)
    queries = [text for _, text in documents[:30]]
    found = store.search(queries, 3)
    assert (found.ids[:, 0] == np.arange(30)).mean() > (0.6 if "ivf" in kind else 0.95)
    again = Datastore(tmp_path, encoder)
    np.testing.assert_array_equal(again.search(queries, 3).ids, found.ids)
    if encoder:
        with pytest.raises(ConfigError, match="was built with encoder"):
            Datastore(tmp_path, LatentEncoder.fit(queries, 4))


def test_kinds_that_need_an_encoder_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an encoder"):
        Datastore.build(tmp_path, [("a", "b c")], index="hybrid")
    with pytest.raises(ConfigError, match="no index is called 'tree'"):
        Datastore.build(tmp_path, [("a", "b c")], index="tree")
    with pytest.raises(DataError, match="no document has a text"):
        Datastore.build(tmp_path, [("a", "")], index="bm25")
