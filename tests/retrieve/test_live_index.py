"""An index under changes answers as one that was built of what is there, also after a kill."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.append_log import AppendLog
from steelyard.errors import DataError, StoreError
from steelyard.retrieve import IVFFlat
from steelyard.retrieve.index import Hits
from steelyard.retrieve.merging import merge_hits
from steelyard.retrieve.serving.live import LiveIndex, live_index

RNG = np.random.default_rng(5)
VECTORS = RNG.normal(size=(60, 4)).astype(np.float32)
QUERIES = RNG.normal(size=(7, 4)).astype(np.float32)


def _saved(path: Path, count: int = 30, metric: str = "l2") -> Path:
    index = IVFFlat(4, nlist=3, nprobe=3, metric="l2" if metric == "l2" else "ip")
    index.train(VECTORS)
    index.add(VECTORS[:count])
    index.save(path)
    return path


def _built(there: dict[int, np.ndarray], k: int, metric: str) -> Hits:
    exact = IVFFlat(4, metric="l2" if metric == "l2" else "ip")
    if there:
        exact.add(np.array(list(there.values())), np.array(list(there)))
    return exact.search(QUERIES, k)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from("arsko"), st.integers(0, 40)), max_size=12),
    metric=st.sampled_from(["l2", "ip"]),
)
def test_changes_answer_as_an_index_of_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], metric: str
) -> None:
    path = _saved(tmp_path_factory.mktemp("live") / "a.index", metric=metric)
    there = {number: VECTORS[number] for number in range(30)}
    log = AppendLog(path.with_suffix(".log"))
    live = LiveIndex(path, log=log)
    for step, number in steps:
        vector = VECTORS[(number * 7) % 60] + 0.5
        if step == "a" and number not in there:
            live.add(vector[None], np.array([number]))
            there[number] = vector
        elif step == "r" and number in there:
            live.remove(np.array([number]))
            del there[number]
        elif step == "s":
            live.settle()
        elif step == "k":
            # As after a kill: nothing is written at the end, file and log are read anew.
            live = LiveIndex(path, log=log)
        elif step == "o":
            # A kill between writing the file and beginning the log anew.
            live.settle()
            live.index.save(path)
            live = LiveIndex(path, log=log)
    assert len(live) == len(there)
    expected, found = _built(there, 9, metric), live.search(QUERIES, 9)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-6)
    exactly = live.search_exactly(QUERIES, 9)
    assert exactly is not None
    np.testing.assert_array_equal(exactly.ids, expected.ids)
    live.fold()
    with live_index(path, read_only=True) as again:
        np.testing.assert_array_equal(again.search(QUERIES, 9).ids, expected.ids)


def test_what_does_not_fit_is_refused_and_not_kept(tmp_path: Path) -> None:
    path = _saved(tmp_path / "a.index")
    with live_index(path) as live:
        for ids, vectors, words in (
            (np.array([3]), VECTORS[:1], "the number 3"),
            (None, VECTORS[:, :3], "3 numbers"),
            (None, VECTORS[:1] * np.nan, "row 0"),
        ):
            with pytest.raises(DataError, match=words):
                live.add(vectors, ids)
        with pytest.raises(DataError, match="no vector 99"):
            live.remove(np.array([1, 99]))
        assert len(live) == 30
        assert live.add(VECTORS[:2]).tolist() == [30, 31]
        assert not live.is_due()


def test_a_second_writer_is_refused_and_readers_change_nothing(tmp_path: Path) -> None:
    path = _saved(tmp_path / "a.index")
    with live_index(path):
        with pytest.raises(StoreError, match=r"a\.index\.changes"), live_index(path):
            pass
        with live_index(path, read_only=True) as reader, pytest.raises(StoreError, match="reading"):
            reader.add(VECTORS[:1])


def test_a_log_of_another_index_is_named(tmp_path: Path) -> None:
    path = _saved(tmp_path / "a.index")
    log = AppendLog(path.with_suffix(".log"))
    LiveIndex(path, log=log).add(VECTORS[:2])
    IVFFlat(5).save(path)
    with pytest.raises(DataError, match="vectors of 4 numbers"):
        LiveIndex(path, log=log)


@given(
    distances=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    k=st.integers(1, 6),
)
def test_merged_parts_are_the_whole(distances: list[int], cuts: list[int], k: int) -> None:
    values = np.array(distances, np.float32)[:, None]
    ids = np.arange(len(values))
    whole = IVFFlat(1)
    whole.add(values, ids)
    parts = []
    for part in np.split(ids, sorted(min(cut, len(ids)) for cut in cuts)):
        index = IVFFlat(1)
        if len(part):
            index.add(values[part], part)
        parts.append(index.search(np.zeros((1, 1)), k))
    merged, expected = merge_hits(parts, k, "l2"), whole.search(np.zeros((1, 1)), k)
    np.testing.assert_array_equal(merged.ids, expected.ids)
    np.testing.assert_array_equal(merged.distances, expected.distances)
