import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.sketch.minhash import MinHasher
from steelyard.data.sketch.near_duplicates import (
    duplicate_roots,
    gram_sets,
    shingles,
    text_signatures,
    word_counts,
    word_hashes,
    word_rows,
)


def plain_shingles(text: str, width: int = 5) -> set[tuple[str, ...]]:
    """The slow obvious version: words by a regular expression, shingles as tuples."""
    words = re.findall(
        r"[0-9a-z_\x80-\U0010ffff]+", re.sub("[A-Z]", lambda letter: letter[0].lower(), text)
    )
    width = min(width, len(words))
    return {tuple(words[i : i + width]) for i in range(len(words) - width + 1)} if words else set()


def jaccard(one: set, other: set) -> float:
    return len(one & other) / len(one | other)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="abcdefAB 01_,.\n\té世", max_size=120))
def test_shingles_are_as_many_as_the_plain_ones(text):
    assert len(shingles(text.encode())) == len(plain_shingles(text))


@settings(max_examples=60, deadline=None)
@given(
    st.text(alphabet="abC ,", max_size=60),
    st.text(alphabet="abC ,", max_size=60),
    st.integers(1, 3),
)
def test_shingles_are_shared_exactly_when_the_plain_ones_are(one, other, width):
    ours = np.intersect1d(shingles(one.encode(), width), shingles(other.encode(), width))
    assert len(ours) == len(plain_shingles(one, width) & plain_shingles(other, width))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(alphabet="abC ,é", max_size=30), max_size=5),
    st.integers(1, 4),
    st.booleans(),
)
def test_many_documents_at_once_are_as_one_by_one(texts, width, short):
    raws = [text.encode() for text in texts]
    words, starts = word_rows(raws)
    grams, begins = gram_sets(words, starts, width, short=short)
    assert word_counts(raws).tolist() == [len(word_hashes(raw)) for raw in raws]
    for row, raw in enumerate(raws):
        assert words[starts[row] : starts[row + 1]].tolist() == word_hashes(raw).tolist()
        has_any = short or len(word_hashes(raw)) >= width
        alone = shingles(raw, width).tolist() if has_any else []
        assert grams[begins[row] : begins[row + 1]].tolist() == alone


def edited(words: list[str], edits: int, draw: random.Random) -> list[str]:
    words = list(words)
    for _ in range(edits):
        words[draw.randrange(len(words))] = f"new{draw.randrange(10**6)}"
    return words


def corpus() -> list[str]:
    draw = random.Random(0)
    documents = []
    for _ in range(40):
        words = [f"w{draw.randrange(3000)}" for _ in range(400)]
        documents += [" ".join(edited(words, edits, draw)) for edits in (0, 1, 3, 8, 20, 60)]
    return documents


def test_signatures_estimate_exact_similarity_and_clusters_follow_it():
    documents = corpus()
    exact = [plain_shingles(document) for document in documents]
    signed = text_signatures((document.encode() for document in documents), MinHasher())
    pairs = [(6 * base + i, 6 * base + j) for base in range(40) for i in range(6) for j in range(i)]
    truth = np.array([jaccard(exact[i], exact[j]) for i, j in pairs])
    estimate = np.array([(signed[i] == signed[j]).mean() for i, j in pairs])
    assert np.abs(estimate - truth).mean() < 0.04
    assert abs((estimate - truth).mean()) < 0.02
    roots = duplicate_roots(signed)
    joined = np.array([roots[i] == roots[j] for i, j in pairs])
    assert joined[truth > 0.9].mean() > 0.98
    assert joined[truth < 0.6].sum() == 0
    assert all(roots[i] // 6 == i // 6 for i in range(len(documents)))
    assert (roots <= np.arange(len(roots))).all()
    assert (roots[roots] == roots).all()


def test_equal_documents_join_the_first_and_empty_ones_do_not_fail():
    signed = text_signatures(
        [b"one two three four five six", b"", b"One, two; three four five six!", b"..."],
        MinHasher(),
    )
    assert duplicate_roots(signed).tolist() == [0, 1, 0, 1]
    assert duplicate_roots(signed[:1]).tolist() == [0]
    assert duplicate_roots(signed[:0]).tolist() == []


def test_another_seed_gives_other_hashes():
    hashes = shingles(b"one two three four five six seven")
    assert not np.array_equal(MinHasher(0).signature(hashes), MinHasher(1).signature(hashes))
    assert np.array_equal(MinHasher(1).signature(hashes), MinHasher(1).signature(hashes))


@pytest.mark.parametrize("bands", [1, 7, 112])
def test_any_banding_finds_identical_documents(bands):
    signed = text_signatures([b"a b c d e f"] * 3, MinHasher())
    assert duplicate_roots(signed, bands=bands).tolist() == [0, 0, 0]
