"""Late answers for smaller and cleaner stores are those of stores that were built so."""

import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.datastore import (
    Candidates,
    Datastore,
    cut_passages,
    failure_probability,
    study_grid,
)
from steelyard.retrieve.datastore.overlap import Contamination, overlaps
from steelyard.retrieve.datastore.passages import PassageStore, writing_passages
from steelyard.retrieve.datastore.sampling import is_sampled, mean_failure

WORDS = [f"word{number}" for number in range(300)]


class _Bags:
    """Bags of words by fixed random vectors."""

    dim = 16
    fingerprint = "bags of words, 16"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(texts), self.dim))
        for row, text in enumerate(texts):
            for word in text.split():
                rows[row] += np.random.default_rng(zlib.crc32(word.encode())).normal(size=self.dim)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _documents(seed: int = 0, count: int = 120) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        text = " ".join(rng.choice(WORDS, int(rng.integers(5, 40))))
        found.append((f"doc{number}", text))
        if number % 10 == 0:
            found.append((f"copy{number}", text))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Datastore:
    folder = tmp_path_factory.mktemp("store")
    return Datastore.build(folder, _documents(), _Bags(), words=20, shard_passages=50)


QUERIES = [" ".join(np.random.default_rng(90 + n).choice(WORDS, 6)) for n in range(12)]


def _honest(store: Datastore, share: float, seed: int, min_words: int, k: int) -> np.ndarray:
    """Build the smaller store's vectors anew and rank all of its passages."""
    texts = list(store.passages.texts())
    there = is_sampled(np.arange(len(texts)), share, seed)
    numbers = np.array([n for n in np.flatnonzero(there) if len(texts[n].split()) >= min_words])
    found = np.full((len(QUERIES), k), -1)
    if not len(numbers):
        return found
    scores = _Bags().encode(QUERIES).astype("f4") @ _Bags().encode(
        [texts[n] for n in numbers]
    ).T.astype("f4")
    order = np.argsort(-scores.round(5), axis=1, kind="stable")[:, :k]
    found[:, : order.shape[1]] = numbers[order]
    return found


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("min_words", [0, 13])
def test_late_is_honest_but_where_too_few_are_left(
    store: Datastore, share: float, min_words: int
) -> None:
    candidates, k = store.search(QUERIES, 60), 3
    for seed in range(3):
        late = candidates.filter(min_words).subsample(share, seed)
        expected = _honest(store, share, seed, min_words, k)
        is_whole = ~late.is_short(k)
        np.testing.assert_array_equal(late.top(k).ids[is_whole], expected[is_whole])
        # Per-passage filters commute with the sample (lemma A.4).
        other = candidates.subsample(share, seed).filter(min_words)
        np.testing.assert_array_equal(other.ids, late.ids)


def test_shards_change_nothing(store: Datastore, tmp_path: Path) -> None:
    whole = Datastore.build(tmp_path, _documents(), _Bags(), words=20, shard_passages=10_000)
    one, other = store.search(QUERIES, 30), whole.search(QUERIES, 30)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.scores, other.scores)


def test_a_killed_build_goes_on_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []

    class Failing(_Bags):
        def encode(self, texts: Sequence[str]) -> np.ndarray:
            if len(encoded) == 2:
                raise KeyboardInterrupt
            encoded.append(len(texts))
            return _Bags.encode(self, texts)

    with pytest.raises(KeyboardInterrupt):
        Datastore.build(tmp_path, _documents(), Failing(), words=20, shard_passages=50)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.index")}
    assert len(kept) == 2
    made = Datastore.build(tmp_path, _documents(), _Bags(), words=20, shard_passages=50)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(made) == len(list(made.passages.texts()))


def test_another_encoder_is_refused(store: Datastore) -> None:
    class Other(_Bags):
        fingerprint = "others"

    with pytest.raises(ConfigError, match="encoder bags of words, 16, this is others"):
        Datastore(store.folder, Other())


def test_copies_go_but_for_the_best(store: Datastore) -> None:
    found = store.search(QUERIES, 60)
    texts = [[store.passages.text(n) for n in row if n >= 0] for row in found.dedup().ids.tolist()]
    for row, kept in enumerate(texts):
        assert len(kept) == len(set(kept))
        everything = [store.passages.text(n) for n in found.ids[row].tolist()]
        assert set(kept) == set(everything)
    assert found.dedup().counts().sum() < found.counts().sum()


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        (lambda c: c.subsample(0.5).dedup(), "dedup after subsample"),
        (lambda c: c.subsample(0.5).subsample(0.5), "subsample after subsample"),
        (
            lambda c: c.rerank(lambda _, t: np.zeros(len(t))).subsample(0.5),
            "subsample after rerank",
        ),
        (lambda c: c.top(2).filter(), "filter after top"),
        (lambda c: c.top(2).top(1), "top after top"),
    ],
)
def test_orders_that_are_no_store_are_refused(store: Datastore, steps: object, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        steps(store.search(QUERIES[:1], 5))  # pyright: ignore[reportCallIssue, reportGeneralTypeIssues]


def test_new_scores_order_the_best(store: Datastore) -> None:
    found = store.search(QUERIES, 9)
    again = found.rerank(lambda _, texts: np.array([len(text) for text in texts])).top(2)
    for row in range(len(found)):
        lengths = sorted((len(store.passages.text(n)) for n in found.ids[row]), reverse=True)
        assert [len(store.passages.text(n)) for n in again.ids[row]] == lengths[:2]


def test_failures_are_as_frequent_as_forecast() -> None:
    by_hand = sum(math.comb(1000, i) * 0.01**i * 0.99 ** (1000 - i) for i in range(3))
    assert failure_probability(1000, 3, 0.01) == pytest.approx(by_hand)
    few = [is_sampled(np.arange(200), 0.02, seed).sum() < 3 for seed in range(2000)]
    expected = failure_probability(200, 3, 0.02)
    assert abs(np.mean(few) - expected) < 4 * np.sqrt(expected * (1 - expected) / 2000)
    counts = np.array([0, 7, 1000, 7])
    alone = [failure_probability(int(count), 3, 0.1) for count in counts]
    assert mean_failure(counts, 3, 0.1) == pytest.approx(np.mean(alone))


def _longest_run(one: list[str], other: list[str]) -> int:
    best, before = 0, [0] * (len(other) + 1)
    for word in one:
        now = [0] * (len(other) + 1)
        for place, against in enumerate(other):
            now[place + 1] = before[place] + 1 if word == against else 0
            best = max(best, now[place + 1])
        before = now
    return best


@settings(max_examples=60, deadline=None)
@given(
    one=st.lists(st.sampled_from("abc"), max_size=14),
    other=st.lists(st.sampled_from("abc"), max_size=14),
)
def test_copies_are_found_as_by_the_double_loop(one: list[str], other: list[str]) -> None:
    rule = Contamination(gram_words=2, jaccard=2.0, run_words=4)
    raws = [" ".join(one).encode()], [" ".join(other).encode()]
    found = overlaps(*raws, np.array([[0, 0]]), rule)
    assert bool(found[0]) == (_longest_run(one, other) >= 4)
    grams = [{tuple(words[at : at + 2]) for at in range(len(words) - 1)} for words in (one, other)]
    if min(len(one), len(other)) >= 2:
        rule = Contamination(gram_words=2, jaccard=0.5, run_words=100)
        expected = len(grams[0] & grams[1]) >= 0.5 * len(grams[0] | grams[1])
        assert bool(overlaps(*raws, np.array([[0, 0]]), rule)[0]) == expected


def test_passages_that_hold_the_answer_go(store: Datastore) -> None:
    found = store.search(QUERIES, 5)
    texts = [store.passages.text(int(row[1])) for row in found.ids]
    clean = found.decontaminate(texts)
    for row in range(len(found)):
        assert found.ids[row, 1] not in clean.ids[row]
        assert found.ids[row, 0] in clean.ids[row] or texts[row] == store.passages.text(
            int(found.ids[row, 0])
        )


def test_a_study_is_one_cell_per_store(store: Datastore) -> None:
    found = store.search(QUERIES, 60)
    cells = study_grid(
        found,
        lambda top: np.where(top.ids[:, 0] >= 0, top.scores[:, 0], 0.0),
        shares=(0.1, 0.5, 1.0),
        filters={"none": lambda c: c, "distinct": Candidates.dedup},
    )
    assert len(cells) == 2 * (3 + 3 + 1)
    means = [np.mean([c.value for c in cells if c.share == s]) for s in (0.1, 0.5, 1.0)]
    assert means == sorted(means)
    assert all(cell.failure == 0 for cell in cells if cell.share == 1)


def test_passages_come_back_from_their_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steelyard.retrieve.datastore.passages._BLOCK_BYTES", 30)
    texts = ["ein kurzer Text", "ü" * 40, "x", "noch einer", "y z"]
    with writing_passages(tmp_path / "p.pack") as writer:
        for number, text in enumerate(texts):
            assert writer.add(text, f"file{number // 2}") == number
        with pytest.raises(DataError, match="empty passage of file9"):
            writer.add(" \n", "file9")
    store = PassageStore(tmp_path / "p.pack")
    assert list(store.texts()) == texts
    assert [store.source(n) for n in range(5)] == ["file0", "file0", "file1", "file1", "file2"]
    assert [raw.decode() for raw in store.raws(np.array([4, 1, 1]))] == [
        texts[4],
        texts[1],
        texts[1],
    ]
    with pytest.raises(IndexError):
        store.raw(5)


def test_texts_are_cut_at_words() -> None:
    assert cut_passages(" a  b\nc ", 2) == ["a b", "c"]
    assert cut_passages(" \n") == []
