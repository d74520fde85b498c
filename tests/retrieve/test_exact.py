"""Exact searches against sorting everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve import exact
from steelyard.retrieve.exact import ExactSearch


def sorted_all(vectors, queries, k):
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    order = [np.lexsort((np.arange(len(vectors)), -row))[:k] for row in products]
    return np.array(order)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 400),
    st.integers(1, 40),
    st.integers(1, 50),
    st.sampled_from(["float16", "float32", "uint8"]),
    st.sampled_from([0.0, 1.0, 1e4]),
)
def test_nothing_is_missed(seed, count, dim, k, dtype, shift):
    rng = np.random.default_rng(seed)
    if dtype == "uint8":
        vectors = rng.integers(0, 4, (count, dim), dtype=np.uint8)
    else:
        # A shift makes vectors alike, and bytes tell them apart badly.
        vectors = (rng.normal(size=(count, dim)) + shift).astype(dtype)
    queries = rng.normal(size=(5, dim)).astype(np.float32)
    hits = ExactSearch(vectors).search(queries, k, threads=2)
    most = min(k, count)
    assert (hits.ids[:, :most] == sorted_all(vectors, queries, most)).all()
    assert (hits.ids[:, most:] == -1).all()


def test_vectors_stay_in_their_file(tmp_path):
    rng = np.random.default_rng(0)
    made = rng.normal(size=(3000, 64)).astype(np.float16)
    np.save(tmp_path / "v.npy", made)
    index = ExactSearch(np.load(tmp_path / "v.npy", mmap_mode="r"))
    assert isinstance(index.vectors, np.memmap)
    assert sum(index.memory_bytes().values()) < made.nbytes * 0.63
    queries = rng.normal(size=(40, 64)).astype(np.float32)
    hits = index.search(queries, 20)
    assert (hits.ids == sorted_all(made, queries, 20)).all()
    assert hits.stats.reranked < 40 * 300


def test_exact_searches_without_a_compiler_are_equal(monkeypatch):
    library = exact._library()
    assert library is None or exact._difference(library) == 0
    monkeypatch.setenv("STEELYARD_NATIVE", "0")
    exact._library.cache_clear()
    try:
        rng = np.random.default_rng(1)
        vectors, queries = rng.normal(size=(500, 30)), rng.normal(size=(4, 30))
        found = ExactSearch(vectors.astype(np.float32)).search(queries, 7, threads=2).ids
        wanted = sorted_all(vectors.astype(np.float32), queries.astype(np.float32), 7)
        assert (found == wanted).all()
    finally:
        exact._library.cache_clear()


def test_unusual_input_is_refused():
    index = ExactSearch(np.ones((3, 4), np.float32))
    with pytest.raises(ConfigError, match="k is 0"):
        index.search(np.ones(4), 0)
    with pytest.raises(ConfigError, match="threads is 0"):
        index.search(np.ones(4), 1, threads=0)
    with pytest.raises(DataError, match="have 3 numbers"):
        index.search(np.ones(3), 1)
    with pytest.raises(DataError, match="row 0 of the queries is not finite"):
        index.search(np.full(4, np.inf), 1)
    with pytest.raises(DataError, match="row 1 of the vectors is not finite"):
        ExactSearch(np.array([[1.0, 2], [np.nan, 1]]))
    with pytest.raises(DataError, match=r"vectors are float64 \[2, 2000\]"):
        ExactSearch(np.ones((2, 2000)))
