"""Indexes that tenants share, against a plain search of each tenant's vectors."""

import multiprocessing
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError, StoreError
from steelyard.retrieve.tenants import (
    ClusterTreeIndex,
    TenantShards,
    audit,
    create_store,
    library,
    open_tenant_index,
    parse_condition,
    train_tree,
    tune_probes,
    writing_store,
)
from steelyard.retrieve.tenants.files import read_tree_index, write_tree_index
from steelyard.retrieve.tenants.lists import CHUNK, TenantLists
from steelyard.retrieve.tenants.store import LOG, SNAPSHOT
from steelyard.retrieve.tenants.trial import difference
from steelyard.retrieve.tuning import recall_at

DIM = 8
RNG = np.random.default_rng(5)
MIDDLES = RNG.normal(size=(40, DIM)) * 4
POINTS = np.asarray(
    MIDDLES[RNG.integers(0, 40, 3000)] + RNG.normal(size=(3000, DIM)), dtype=np.float32
)
ALL = 10**6


def made(count: int = 2000) -> ClusterTreeIndex:
    index = ClusterTreeIndex(DIM, branching=4, shortlist=16, leaf_size=16)
    index.train(POINTS[:count])
    index.add(POINTS[:count])
    return index


def plain(numbers: set[int], query: np.ndarray, k: int) -> list[int]:
    own = np.array(sorted(numbers), np.int64)
    apart = ((POINTS[own] - query) ** 2).sum(axis=1)
    return own[np.lexsort((own, apart))][:k].tolist()


def test_leaves_are_numbered_from_left_to_right() -> None:
    tree = train_tree(POINTS, branching=4, leaf_size=16)
    for node in np.flatnonzero(tree.num_children).tolist():
        children = range(tree.first_child[node], tree.first_child[node] + tree.num_children[node])
        ends = [tree.first_leaf[node], *(tree.last_leaf[child] for child in children)]
        assert [tree.first_leaf[child] for child in children] == ends[:-1]
        assert ends[-1] == tree.last_leaf[node]
    leaves = tree.leaves_of(POINTS)
    assert leaves.min() >= 0
    assert leaves.max() < tree.num_leaves
    assert np.bincount(leaves).max() < 200


def test_a_tree_of_equal_vectors_is_one_leaf_or_few() -> None:
    tree = train_tree(np.ones((500, DIM), np.float32), branching=4, leaf_size=16)
    assert tree.num_leaves >= 1
    with pytest.raises(ConfigError, match="1 children"):
        train_tree(POINTS, branching=1)


def test_a_grant_that_splits_every_chunk_finds_room() -> None:
    lists, leaves = TenantLists(), np.zeros(6000, np.int32)
    tenant, other = lists.add_tenant(), lists.add_tenant()
    seen = set(range(0, 4800, 8))
    lists.grant(tenant, np.array(sorted(seen), np.int32), leaves)
    lists.grant(other, np.arange(5000, 5600, dtype=np.int32), leaves)
    for _ in range(3):
        starts = np.cumsum([0, *(len(part) for part in chunks_of(lists, tenant))])
        rows = lists.rows_of(tenant)
        # Rows behind the first of each chunk fill it, one at a time; then one row splits each.
        for begin, end in pairwise(starts.tolist()):
            free = [row for row in range(rows[begin], 6000) if row not in seen]
            for row in free[: CHUNK - (end - begin)]:
                lists.grant(tenant, np.array([row], np.int32), leaves)
                seen.add(row)
        firsts = [int(part[0]) for part in chunks_of(lists, tenant)]
        more = [next(row for row in range(first, 6000) if row not in seen) for first in firsts]
        lists.grant(tenant, np.array(more, np.int32), leaves)
        seen |= set(more)
        assert not lists.trouble(leaves)
        assert lists.rows_of(tenant).tolist() == sorted(seen)
        assert lists.rows_of(other).tolist() == list(range(5000, 5600))
    assert len(chunks_of(lists, tenant)) >= 80


def chunks_of(lists: TenantLists, tenant: int) -> list[np.ndarray]:
    rows, lengths, places, chunks, _ = lists.arrays()
    first, count, _ = places[tenant].tolist()
    return [rows[chunk, : lengths[chunk]] for chunk in chunks[first : first + count].tolist()]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3]))
def test_random_changes_leave_every_tenant_its_own_vectors(seed: int, num_shards: int) -> None:
    rng = np.random.default_rng(seed)
    shards = [ClusterTreeIndex(DIM, branching=4, shortlist=8) for _ in range(num_shards)]
    for shard in shards:
        shard.train(POINTS[:300])
    index = TenantShards(shards)
    index.add(POINTS[:300])
    there, seen = set(range(300)), {"a": set(), "b": set(), "c d": set()}
    for _ in range(60):
        tenant = str(rng.choice(list(seen)))
        some = rng.choice(sorted(there), int(rng.integers(1, 90)), replace=False)
        kind = rng.choice(["grant", "grant", "revoke", "remove", "search"])
        if kind == "grant":
            assert index.grant(some, tenant) == len(set(some.tolist()) - seen[tenant])
            seen[tenant] |= set(some.tolist())
        elif kind == "revoke":
            assert index.revoke(some, tenant) == len(set(some.tolist()) & seen[tenant])
            seen[tenant] -= set(some.tolist())
        elif kind == "remove" and len(there) > 100:
            index.remove(some[:3])
            there -= set(some[:3].tolist())
            for numbers in seen.values():
                numbers -= set(some[:3].tolist())
        query = POINTS[int(rng.integers(0, len(POINTS)))]
        few = index.search(query, 5, tenant=tenant, nprobe=12).ids[0]
        assert set(few[few >= 0].tolist()) <= seen[tenant]
        everything = index.search(query, 5, tenant=tenant, nprobe=ALL).ids[0]
        wanted = plain(seen[tenant], query, 5)
        assert everything.tolist() == wanted + [-1] * (5 - len(wanted))
    index.check()


def test_large_tenants_are_searched_through_the_tree_and_exactly_when_told() -> None:
    index = made()
    own = RNG.choice(2000, 1200, replace=False)
    index.grant(own[:700], "one")
    for number in own[700:].tolist():
        index.grant(np.array([number]), "one")
    index.check()
    found = exact = 0
    for query in POINTS[2000:2050]:
        wanted = plain(set(own.tolist()), query, 10)
        hits = index.search(query, 10, tenant="one", nprobe=200)
        assert hits.stats.scanned < 500
        assert hits.stats.probed > 0
        found += len(set(hits.ids[0].tolist()) & set(wanted))
        exact += index.search(query, 10, tenant="one", nprobe=ALL).ids[0].tolist() == wanted
    assert exact == 50
    assert found > 450
    assert np.array_equal(index.granted("one"), np.sort(own))


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_large_tenants_are_searched_through_the_tree(metric) -> None:
    rng = np.random.default_rng(8)
    middles = rng.normal(size=(60, 40)) * 2
    points = (middles[rng.integers(0, 60, 6020)] + rng.normal(size=(6020, 40))).astype(np.float32)
    index = ClusterTreeIndex(40, metric=metric)
    index.train(points)
    index.add(points[:6000])
    own = rng.choice(6000, 4000, replace=False)
    index.grant(own, "one")
    exact = index.search(points[6000:], 10, tenant="one", nprobe=ALL)
    few = index.search(points[6000:], 10, tenant="one", nprobe=900)
    assert few.stats.probed > 0
    assert few.stats.reranked < few.stats.scanned / 2 < 20 * 1500 / 2
    assert recall_at(few.ids, exact.ids).mean() > 0.95
    assert np.isin(few.ids, own).all()
    given = {"stops": [200, 500], "tenant": "one"}
    first, _, last = index.search_steps(points[6000:], 10, nprobe=900, **given)
    assert np.array_equal(last.ids, few.ids)
    assert first.stats.scanned < last.stats.scanned == few.stats.scanned
    assert last.stats.reranked < last.stats.scanned / 2
    *_, last = index.search_steps(points[6000:], 10, nprobe=ALL, **given)
    assert np.array_equal(last.ids, exact.ids)
    with pytest.raises(DataError, match="row 1 of the queries is not finite"):
        index.search(np.array([points[0], np.full(40, np.nan)]), 3, tenant="one")


def test_searches_of_tenants_without_a_compiler_are_equal(monkeypatch) -> None:
    code = library.tenant_library()
    assert code is None or difference(code) == 0
    monkeypatch.setenv("STEELYARD_NATIVE", "0")
    library.tenant_library.cache_clear()
    try:
        assert library.tenant_library() is None
        index = made()
        index.grant(np.arange(300), "one")
        hits = index.search(POINTS[2000], 3, tenant="one", nprobe=ALL)
        assert hits.ids[0].tolist() == plain(set(range(300)), POINTS[2000], 3)
    finally:
        library.tenant_library.cache_clear()


def test_inner_products_find_the_largest() -> None:
    index = ClusterTreeIndex(DIM, branching=4, leaf_size=16, shortlist=16, metric="ip")
    index.train(POINTS)
    index.add(POINTS)
    index.grant(np.arange(1500), "one")
    hits = index.search(POINTS[2000:2010], 5, tenant="one", nprobe=1499)
    scores = POINTS[2000:2010] @ POINTS[:1500].T
    assert np.allclose(hits.distances, -np.sort(-scores, axis=1)[:, :5], rtol=1e-4)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("a AND b", lambda a, b, c: a & b),
        ("a and not b", lambda a, b, c: a - b),
        ('a OR b AND "c d"', lambda a, b, c: a | (b & c)),
        ('(a OR b) AND NOT (a AND "c d")', lambda a, b, c: (a | b) - (a & c)),
        ("NOT a", lambda a, b, c: set(range(2000)) - a),
        ("a AND nobody", lambda a, b, c: set()),
    ],
)
def test_conditions_are_exact_at_the_end(where: str, wanted) -> None:
    index = made()
    sets = [set(RNG.choice(2000, 600, replace=False).tolist()) for _ in range(3)]
    for name, own in zip(("a", "b", "c d"), sets, strict=True):
        index.grant(np.array(sorted(own)), name)
    admitted = wanted(*sets)
    for query in POINTS[2000:2010]:
        hits = index.search(query, 10, where=where, nprobe=ALL)
        expected = plain(admitted, query, 10) if admitted else []
        assert hits.ids[0].tolist() == expected + [-1] * (10 - len(expected))
    index.revoke(np.array(sorted(sets[0])), "a")
    after = index.search(POINTS[0], 2000, where="a AND b", nprobe=ALL).ids[0]
    assert (after == -1).all()


@pytest.mark.parametrize("text", ["", "a AND", "a b", "(a", "AND a", 'a AND "b', "NOT", "a)"])
def test_conditions_that_cannot_be_read_are_refused_where_they_fail(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_condition(text)


def test_bad_input_is_refused_before_anything_changes() -> None:
    index = made(500)
    with pytest.raises(DataError, match="no vector 9999"):
        index.grant(np.array([1, 9999]), "a")
    assert index.granted("a").size == 0
    with pytest.raises(ConfigError, match="no tenant 'x'"):
        index.revoke(np.array([1]), "x")
    with pytest.raises(ConfigError, match="no tenant 'x'"):
        index.search(POINTS[0], 3, tenant="x", strict=True)
    assert (index.search(POINTS[0], 3, tenant="x").ids == -1).all()
    with pytest.raises(ConfigError, match="k is 0"):
        index.search(POINTS[0], 0, tenant="a")
    with pytest.raises(ConfigError, match="neither"):
        index.search(POINTS[0], 3)
    with pytest.raises(DataError, match="have 3 numbers"):
        index.search(np.zeros(3), 3, tenant="a")
    with pytest.raises(DataError, match="twice"):
        index.add(POINTS[:1], np.array([3]))
    with pytest.raises(ConfigError, match="0 letters"):
        index.grant(np.array([1]), "")
    broken = POINTS[:2].copy()
    broken[1, 2] = np.nan
    with pytest.raises(DataError, match="row 1"):
        index.add(broken)


def test_files_bring_back_the_same_answers(tmp_path: Path) -> None:
    index = made(800)
    index.grant(np.arange(0, 800, 3), "a")
    index.remove(np.array([3, 6]))
    write_tree_index(tmp_path / "one.index", index)
    again = read_tree_index(tmp_path / "one.index")[0]
    again.check()
    one, two = (item.search(POINTS[:20], 5, tenant="a", nprobe=90) for item in (index, again))
    assert np.array_equal(one.ids, two.ids)
    assert again.add(POINTS[:1]).tolist() == [800]
    raw = bytearray((tmp_path / "one.index").read_bytes())
    raw[len(raw) // 3] ^= 1
    (tmp_path / "bad.index").write_bytes(raw)
    with pytest.raises(DataError):
        read_tree_index(tmp_path / "bad.index")


def test_a_number_may_come_back_after_it_was_removed() -> None:
    index = made(100)
    index.grant(np.array([7]), "a")
    index.remove(np.array([7]))
    index.add(POINTS[200:201], np.array([7]))
    assert index.granted("a").size == 0
    index.grant(np.array([7]), "a")
    assert index.search(POINTS[200], 1, tenant="a").distances[0, 0] == 0
    index.check()


def test_a_store_keeps_every_change_and_knows_who_saw_what_when(tmp_path: Path) -> None:
    clock = iter(range(100, 200))
    index = ClusterTreeIndex(DIM, leaf_size=16)
    index.train(POINTS[:200])
    create_store(tmp_path / "store", index)
    with writing_store(tmp_path / "store", now_s=lambda: float(next(clock))) as store:
        store.add(POINTS[:200])  # 100
        store.grant(np.arange(50), "a")  # 101
        store.revoke(np.array([3]), "a")  # 102
        store.snapshot()
        store.remove(np.array([4]))  # 103
        store.grant(np.array([3]), "a")  # 104
        with pytest.raises(DataError, match="no vector 4"):
            store.grant(np.array([4]), "a")
        with (
            pytest.raises(StoreError, match="another process"),
            writing_store(tmp_path / "store", wait_s=0.1),
        ):
            pass
    found = open_tenant_index(tmp_path / "store")
    assert found.granted("a").tolist() == [n for n in range(50) if n != 4]
    asked = np.array([3, 4, 60])
    told = {
        at: [(item.is_visible, item.since_s) for item in audit(tmp_path / "store", "a", asked, at)]
        for at in (101.0, 102.5, 104.0)
    }
    assert [seen for seen, _ in told[101.0]] == [True, True, False]
    assert [seen for seen, _ in told[102.5]] == [False, True, False]
    assert told[104.0][0] == (True, 104.0)
    assert told[104.0][1] == (False, 103.0)
    with pytest.raises(DataError, match="already"):
        create_store(tmp_path / "store", index)
    with pytest.raises(DataError, match="no index for tenants"):
        open_tenant_index(tmp_path)


def test_a_torn_end_of_the_log_is_no_change(tmp_path: Path) -> None:
    index = ClusterTreeIndex(DIM, leaf_size=16)
    index.train(POINTS[:200])
    create_store(tmp_path, index)
    with writing_store(tmp_path) as store:
        store.add(POINTS[:200])
        store.grant(np.arange(20), "a")
    whole = (tmp_path / LOG).read_bytes()
    for cut in (1, 30, 100):
        (tmp_path / LOG).write_bytes(whole[:-cut])
        assert open_tenant_index(tmp_path).granted("a").size == 0
        assert len((tmp_path / LOG).read_bytes()) == len(whole) - cut
    with writing_store(tmp_path) as store:
        store.grant(np.arange(5), "b")
    found = open_tenant_index(tmp_path)
    assert (found.granted("a").size, found.granted("b").size) == (0, 5)
    assert (tmp_path / SNAPSHOT).is_file()


def _granting(folder: Path) -> None:
    with writing_store(folder) as store:
        for number in range(10**6):
            store.grant(np.array([number % 200]), f"t{number // 200}")


def test_a_killed_writer_loses_no_change_that_it_was_told_of(tmp_path: Path) -> None:
    index = ClusterTreeIndex(DIM, leaf_size=16)
    index.train(POINTS[:200])
    create_store(tmp_path, index)
    with writing_store(tmp_path) as store:
        store.add(POINTS[:200])
    writer = multiprocessing.get_context("spawn").Process(target=_granting, args=(tmp_path,))
    writer.start()
    begun = (tmp_path / LOG).stat().st_size
    while (tmp_path / LOG).stat().st_size < begun + 20_000:
        time.sleep(0.01)
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    found = open_tenant_index(tmp_path)
    found.check()
    sizes = [found.granted(name).size for name in found.tenants]
    assert sum(sizes) > 100
    assert sizes[:-1] == [200] * (len(sizes) - 1)


def test_the_fewest_vectors_for_a_recall_hold_on_other_queries() -> None:
    index = made(2000)
    index.grant(np.arange(2000), "large")
    index.grant(np.arange(0, 2000, 9), "small")
    queries = [(("large", "small")[place % 4 == 1], POINTS[2000 + place]) for place in range(200)]
    tuned = tune_probes(index, queries, k=5, recall=0.9)
    assert 10 < tuned.nprobe < 1500
    assert tuned.recall >= 0.9
    assert tuned.heldout_recall > 0.9 - 4 * tuned.heldout_error
    with pytest.raises(ConfigError, match="3 queries"):
        tune_probes(index, queries[:3])
