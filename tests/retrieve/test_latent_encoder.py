"""Latent vectors of texts, against dense linear algebra."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.text import LatentEncoder
from steelyard.retrieve.text.weights import WordWeights, count_words

RNG = np.random.default_rng(2)
TOPICS = [[f"{topic}{n}" for n in range(30)] for topic in ("fish", "rail", "moss", "volt")]
TEXTS = [" ".join(RNG.choice(TOPICS[n % 4], 25)) for n in range(120)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "bb", "c_1", "öl"]), max_size=9), max_size=5))
def test_counts_are_those_of_counting(texts: list[list[str]]) -> None:
    counts = count_words(" ".join(words).encode() for words in texts)
    for row, words in enumerate(texts):
        begin, end = counts.indptr[row], counts.indptr[row + 1]
        assert sorted(counts.data[begin:end].tolist()) == sorted(Counter(words).values())


def test_directions_are_singular_vectors() -> None:
    encoder = LatentEncoder.fit(TEXTS, 4)
    rows = encoder.weights.rows(count_words(text.encode() for text in TEXTS)).toarray()
    exact = np.linalg.svd(rows, full_matrices=False)[2][:4]
    # The same space: singular values of the product of two bases of it are 1.
    assert np.linalg.svd(exact @ encoder.directions)[1] == pytest.approx(1, abs=1e-3)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)


def test_texts_of_a_topic_are_near_each_other_though_they_share_few_words() -> None:
    encoder = LatentEncoder.fit(TEXTS, 4)
    asked = encoder.encode([" ".join(topic[:2]) for topic in TOPICS])
    best = (asked @ encoder.encode(TEXTS).T).argsort(axis=1)[:, -20:]
    assert (best % 4 == np.arange(4)[:, None]).all()


def test_an_encoder_is_kept_whole_and_known_by_its_fingerprint(tmp_path: Path) -> None:
    encoder = LatentEncoder.fit(TEXTS, 8)
    encoder.save(tmp_path / "latent.pack")
    again = LatentEncoder.open(tmp_path / "latent.pack")
    assert again.fingerprint == encoder.fingerprint != LatentEncoder.fit(TEXTS, 7).fingerprint
    assert np.array_equal(again.encode(TEXTS[:3]), encoder.encode(TEXTS[:3]))
    assert np.array_equal(LatentEncoder.fit(TEXTS, 8).directions, encoder.directions)


def test_texts_without_known_words_are_zeros_and_none_at_all_is_refused() -> None:
    encoder = LatentEncoder.fit(TEXTS, 500)
    assert encoder.dim == 120
    assert not encoder.encode(["", "unheard-of words"]).any()
    with pytest.raises(DataError, match="none of 2 texts has a word"):
        LatentEncoder.fit(["", "--"])
    with pytest.raises(ConfigError, match="0 numbers"):
        LatentEncoder.fit(TEXTS, 0)


def test_rare_words_join_no_texts_and_are_left_out() -> None:
    counts = count_words([b"one two", b"one three", b"one two four"])
    assert len(WordWeights.fit(counts, 10).buckets) == 2
    assert len(WordWeights.fit(counts, 1).buckets) == 1
    assert len(WordWeights.fit(count_words([b"alone"]), 10).buckets) == 1
