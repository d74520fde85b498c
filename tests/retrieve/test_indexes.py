import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CapacityError, ConfigError, DataError
from steelyard.retrieve import IVFPQ, IVFFastScan, IVFFlat, ProductQuantizer, open_index
from steelyard.retrieve.cells import nearest_cells
from steelyard.retrieve.distance import new_heap, offer, sorted_heap
from steelyard.retrieve.native import choice
from steelyard.retrieve.native.trial import difference
from steelyard.retrieve.pq import train_rotation
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.shuffled import CodeBlocks, byte_tables
from steelyard.retrieve.tuning import recall_at, tune

SIFT = Path(__file__).parents[2].parent / "shared" / "data" / "sift-5k" / "sift5k.npz"


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(30, 16)) * 4
    return (middles[rng.integers(0, 30, 3000)] + rng.normal(size=(3000, 16))).astype(np.float32)


def slow_nearest(vectors, ids, query, k, metric):
    """Compare one by one, ties by number."""
    apart = ((vectors - query) ** 2).sum(axis=1) if metric == "l2" else -(vectors @ query)
    order = np.lexsort((ids, apart))[:k]
    return ids[order]


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_one_cell_is_exact_as_are_all_cells(vectors, metric):
    queries = vectors[:20] + 0.1
    wanted = [slow_nearest(vectors, np.arange(3000), query, 7, metric) for query in queries]
    flat = IVFFlat(16, metric=metric)
    flat.add(vectors)
    cells = IVFFlat(16, nlist=20, metric=metric)
    cells.train(vectors)
    cells.add(vectors)
    assert flat.search(queries, 7).ids.tolist() == [row.tolist() for row in wanted]
    assert (cells.search(queries, 7, nprobe=20).ids == flat.search(queries, 7).ids).all()
    few = cells.search(queries, 7, nprobe=2)
    assert few.stats.probed == 40
    assert few.stats.scanned < 3000 * 20 / 4
    assert recall_at(few.ids, flat.search(queries, 7).ids).mean() > 0.8


def test_published_neighbours_of_descriptors_are_found():
    if not SIFT.is_file():
        pytest.skip("needs ../shared/data/sift-5k")
    data = np.load(SIFT)
    index = IVFFlat(128, store="uint8")
    index.add(data["base"])
    assert (index.search(data["query"], 100).ids == data["neighbors"]).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40), st.integers(1, 9))
def test_a_heap_keeps_the_nearest_whatever_the_order(pairs, k):
    heap, ids = new_heap(1, k)
    for distance, number in pairs:
        offer(heap[0], ids[0], np.float32(distance), number)
    distances, numbers = sorted_heap(heap, ids)
    wanted = sorted(pairs)[:k]
    assert list(zip(distances[0].tolist(), numbers[0].tolist(), strict=True)) == [
        *wanted,
        *[(np.inf, -1)] * (k - len(wanted)),
    ]


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["add", "remove", "search", "reopen"]), max_size=12), st.data())
def test_any_order_of_changes_equals_a_table(tmp_path_factory, words, data):
    folder = tmp_path_factory.mktemp("index")
    rng = np.random.default_rng(len(words))
    index, table = IVFFlat(4, nlist=3), {}
    index.train(rng.normal(size=(20, 4)))
    for word in words:
        if word == "add":
            rows = rng.normal(size=(5, 4)).astype(np.float32)
            table |= dict(zip(index.add(rows).tolist(), rows, strict=True))
        elif word == "remove" and table:
            gone = data.draw(st.sampled_from(sorted(table)))
            index.remove(np.array([gone]))
            del table[gone]
        elif word == "reopen":
            index.save(folder / "index")
            index = open_index(folder / "index")
        query = rng.normal(size=4).astype(np.float32)
        ids = np.array(list(table), dtype=np.int64)
        rows = np.array(list(table.values()), dtype=np.float32).reshape(-1, 4)
        found = index.search(query, 3, nprobe=3).ids[0]
        assert found[found >= 0].tolist() == slow_nearest(rows, ids, query, 3, "l2").tolist()
        assert len(index) == len(table)


@pytest.mark.parametrize(("metric", "rotate"), [("l2", False), ("ip", False), ("l2", True)])
def test_codes_are_compared_by_what_they_stand_for(vectors, metric, rotate):
    vectors = vectors[:1000]
    index = IVFPQ(16, nlist=8, parts=4, metric=metric, rotate=rotate)
    index.train(vectors)
    index.add(vectors)
    index.rows.settle()
    cells = np.repeat(np.arange(8), np.diff(index.rows.starts))
    rebuilt = index.centers[cells] + index.codec.quantizer.decode(index.rows.columns["codes"])
    queries = vectors[:10] + 0.2
    hits = index.search(queries, 5, nprobe=8)
    for row, query in enumerate(queries @ index.codec.rotation):
        apart = ((rebuilt - query) ** 2).sum(axis=1) if metric == "l2" else rebuilt @ query
        known = dict(zip(index.rows.ids.tolist(), apart.tolist(), strict=True))
        best = sorted(known.values(), reverse=metric == "ip")[:5]
        assert hits.distances[row] == pytest.approx(best, rel=1e-3, abs=1e-2)
        assert [known[number] for number in hits.ids[row]] == pytest.approx(
            best, rel=1e-3, abs=0.01
        )


def test_comparing_the_best_again_finds_more(vectors):
    index = IVFPQ(16, nlist=8, parts=2, rerank=20)
    index.train(vectors)
    index.add(vectors)
    truth = np.array(
        [slow_nearest(vectors, np.arange(3000), row, 10, "l2") for row in vectors[:50]]
    )
    plain = recall_at(index.search(vectors[:50], 10, nprobe=8, rerank=0).ids, truth).mean()
    again = index.search(vectors[:50], 10, nprobe=8)
    assert recall_at(again.ids, truth).mean() > max(0.95, plain)
    assert again.stats.reranked == 50 * 200


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_half_bytes_rank_what_whole_vectors_decide(vectors, tmp_path, metric):
    index = IVFFastScan(16, nlist=8, metric=metric, rerank=8)
    index.train(vectors)
    numbers = index.add(vectors)
    truth = [slow_nearest(vectors, numbers, query, 10, metric) for query in vectors[:40]]
    hits = index.search(vectors[:40], 10, nprobe=8)
    assert recall_at(hits.ids, np.array(truth)).mean() > 0.9
    whole = IVFFlat(16, metric=metric)
    whole.add(vectors)
    assert (hits.distances[:, 0] == whole.search(vectors[:40], 1).distances[:, 0]).mean() > 0.9
    gone = hits.ids[0, :3]
    index.remove(gone)
    index.add(vectors[gone], gone)
    index.save(tmp_path / "index")
    again = open_index(tmp_path / "index").search(vectors[:40], 10, nprobe=8)
    assert recall_at(again.ids, hits.ids).mean() > 0.99
    steps = list(index.search_steps(vectors[:5], 3, nprobe=8))
    assert (steps[-1].ids == index.search(vectors[:5], 3, nprobe=8).ids).all()


@given(st.integers(0, 10**6), st.integers(1, 90), st.integers(1, 9))
@settings(max_examples=40)
def test_the_shuffled_scan_adds_table_entries_up(seed, count, k):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (count, 4), dtype=np.uint8)
    middle = int(rng.integers(0, count + 1))
    blocks = CodeBlocks.of(codes, np.array([0, middle, count], np.int64))
    tables = rng.integers(0, 256, (4, 16), dtype=np.uint8)
    heap, rows = new_heap(1, k)
    blocks.scan(np.array([1, 0]), tables, heap[0], rows[0])
    sums = tables[np.arange(4), codes].astype(int).sum(axis=1)
    wanted = np.lexsort((np.arange(count), sums))[:k]
    distances, found = sorted_heap(heap, rows)
    assert found[0, : len(wanted)].tolist() == wanted.tolist()
    assert distances[0, : len(wanted)].tolist() == sums[wanted].tolist()


def test_byte_tables_keep_the_order_of_distances():
    rng = np.random.default_rng(0)
    query = rng.normal(size=8).astype(np.float32)
    centers = rng.normal(size=(4, 16, 2)).astype(np.float32)
    norms = (centers**2).sum(axis=2)
    tables = byte_tables(query, centers, norms, np.float32(-2))
    true = norms - 2 * np.einsum("pcd,pd->pc", centers, query.reshape(4, 2))
    lifted = true - true.min(axis=1, keepdims=True)
    assert tables.astype(float) == pytest.approx(lifted * 255 / lifted.max(), abs=0.51)


def test_searches_without_a_compiler_are_equal(monkeypatch, vectors):
    library = choice._library()
    assert library is None or difference(library) == 0
    whole = np.rint(vectors * 4)
    made = [IVFFlat(16, nlist=37), IVFFastScan(16, nlist=37, rerank=4)]
    for index in made:
        index.train(whole)
        index.add(whole)
    natives = [index.search(whole[:30], 9, nprobe=5) for index in made]
    monkeypatch.setenv("STEELYARD_NATIVE", "0")
    choice._library.cache_clear()
    try:
        assert choice._library() is None
        for index, native in zip(made, natives, strict=True):
            index.remove(index.add(whole[:1]))  # what was arranged for native code is forgotten
            hits = index.search(whole[:30], 9, nprobe=5)
            assert (hits.ids == native.ids).all()
            assert (hits.distances == native.distances).all()
            assert hits.stats == native.stats
    finally:
        choice._library.cache_clear()


def test_steps_get_better_and_end_in_the_result(vectors):
    for index in (IVFFlat(16, nlist=16), IVFPQ(16, nlist=16, parts=4, rerank=4)):
        index.train(vectors)
        index.add(vectors)
        steps = list(index.search_steps(vectors[:9], 5, nprobe=16))
        assert [step.stats.probed for step in steps] == [9, 18, 36, 72, 144]
        assert (steps[-1].ids == index.search(vectors[:9], 5, nprobe=16).ids).all()
    index = IVFFlat(16, nlist=16)
    index.train(vectors)
    index.add(vectors)
    worst = [step.distances[:, -1] for step in index.search_steps(vectors[:9], 5, nprobe=16)]
    assert all((later <= earlier).all() for earlier, later in itertools.pairwise(worst))


def test_a_rotation_lowers_the_error_of_codes():
    rng = np.random.default_rng(0)
    mixing = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    skewed = (rng.normal(size=(1000, 16)) * np.linspace(3, 0.1, 16)) @ mixing
    skewed = skewed.astype(np.float32)
    rotation, turned = train_rotation(skewed, 4, rounds=5)
    assert rotation @ rotation.T == pytest.approx(np.eye(16), abs=1e-4)

    def error(quantizer, rows):
        return float(((quantizer.decode(quantizer.encode(rows)) - rows) ** 2).mean())

    assert error(turned, skewed @ rotation) < error(ProductQuantizer.trained(skewed, 4), skewed)


def test_an_index_file_says_which_part_is_damaged(vectors, tmp_path):
    index = IVFPQ(16, nlist=8, parts=4)
    index.train(vectors)
    index.add(vectors, np.arange(3000) * 2)
    path = tmp_path / "index"
    index.save(path)
    again = open_index(path)
    assert (again.search(vectors[:5], 3).ids == index.search(vectors[:5], 3).ids).all()
    assert again.add(vectors[:1]).tolist() == [5999]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        open_index(path)
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match="cut short"):
        open_index(path)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.zeros((2, 3)), "have 3 numbers, the index has 4"),
        (np.array([[0, 1, 2, np.nan]]), "row 0 of the vectors is not finite"),
        (np.array([["a", "b", "c", "d"]]), "<U1"),
        (np.zeros((2, 2, 4)), "give numbers in rows"),
    ],
)
def test_vectors_that_are_none_are_refused(bad, said):
    with pytest.raises(DataError) as refused:
        IVFFlat(4).add(bad)
    assert said in f"{refused.value} {refused.value.hint}"


def test_numbers_are_each_there_once():
    index = IVFFlat(2)
    index.add(np.zeros((2, 2)), np.array([3, 5]))
    for ids, said in (([5], "5 is there twice"), ([-1], "-1 is below 0"), ([1, 2], "2")):
        with pytest.raises(DataError, match=said):
            index.add(np.zeros((1, 2)), np.array(ids))
    with pytest.raises(DataError, match="no vector 4"):
        index.remove(np.array([3, 4]))
    assert len(index) == 2
    assert index.search(np.zeros(2), 4).ids.tolist() == [[3, 5, -1, -1]]
    assert index.add(np.zeros((1, 2))).tolist() == [6]


def test_what_cannot_be_is_refused(vectors):
    with pytest.raises(ConfigError, match="cells"):
        IVFFlat(4, nlist=2, nprobe=3)
    with pytest.raises(ConfigError, match="no cells yet"):
        IVFFlat(16, nlist=2).add(vectors)
    with pytest.raises(ConfigError, match="5 cells for a sample of 3"):
        IVFFlat(16, nlist=5).train(vectors[:3])
    with pytest.raises(ConfigError, match="codes of 5 bytes"):
        IVFPQ(16, nlist=2, parts=5)
    with pytest.raises(ConfigError, match="k is 0"):
        IVFFlat(16).search(vectors[0], 0)
    with pytest.raises(ConfigError, match="whole numbers"):
        IVFFlat(16, store="uint8").add(vectors)
    codes = IVFPQ(16, nlist=2, parts=4)
    codes.train(vectors)
    codes.add(vectors)
    with pytest.raises(ConfigError, match="rerank is 2"):
        codes.search(vectors[0], 1, rerank=2)
    with pytest.raises(ConfigError, match="nprobe is 0"):
        IVFFlat(16).search(vectors[0], 1, nprobe=0)


def test_tuning_holds_on_queries_it_did_not_see(vectors):
    index = IVFFlat(16, nlist=32)
    index.train(vectors)
    index.add(vectors)
    queries = vectors[:200] + 0.3
    truth = np.array([slow_nearest(vectors, np.arange(3000), row, 10, "l2") for row in queries])
    tuned = tune(index, queries, truth, recall=0.98)
    assert tuned.recall >= 0.98
    assert tuned.heldout_recall > 0.98 - 4 * tuned.heldout_error
    fewer = index.search(queries[::2], 10, nprobe=tuned.nprobe - 1)
    assert recall_at(fewer.ids, truth[::2]).mean() < 0.98
    codes = IVFPQ(16, nlist=8, parts=1)
    codes.train(vectors)
    codes.add(vectors)
    with pytest.raises(CapacityError, match="all 8 cells together find"):
        tune(codes, queries, truth, recall=0.99)


def test_nearest_cells_are_all_where_more_are_asked():
    centers = np.array([[0, 0], [3, 0], [0, 9]], np.float32)
    probes = nearest_cells(np.array([[1, 0]], np.float32), centers, 5, is_l2=True)
    assert probes.cells.tolist() == [[0, 1, 2]]
    assert probes.distances.tolist() == [[1, 4, 82]]


@pytest.mark.parametrize(("end", "kind"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4")])
def test_records_are_read_and_cut_ones_named(tmp_path, end, kind):
    rows = np.arange(12).reshape(3, 4).astype(kind)
    raw = b"".join(np.int32(4).tobytes() + row.tobytes() for row in rows)
    path = tmp_path / f"v{end}"
    path.write_bytes(raw)
    assert (read_vectors(path) == rows).all()
    path.write_bytes(raw[:-1])
    with pytest.raises(DataError, match="row 2 is cut short"):
        read_vectors(path)
    size = 4 + rows[0].nbytes
    path.write_bytes(raw[:size] + np.int32(5).tobytes() + raw[size + 4 :])
    with pytest.raises(DataError, match="row 1 has 5 numbers"):
        read_vectors(path)


def test_the_verbs_build_search_and_tune(vectors, tmp_path, capsys, monkeypatch):
    from steelyard.catalog.search_rates import SearchRates, store_search_rates
    from steelyard.cli.retrieve import app

    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path / "home"))

    def run(*words):
        app([str(word) for word in words], result_action="return_value", exit_on_error=False)
        return json.loads(capsys.readouterr().out)

    np.save(tmp_path / "v.npy", vectors)
    np.save(tmp_path / "q.npy", vectors[:40] + 0.1)
    names = [tmp_path / name for name in ("i", "q.npy", "v.npy")]
    words = ("--kind", "ivfpq", "--code-bytes", 4, "--rerank", 8, "--cells", 16, "--json")
    built = run("build", names[2], "--out", names[0], *words)
    assert built["vectors"] == 3000
    tuned = run("tune", *names[:2], "--vectors", names[2], "--recall", 0.9, "--write", "--json")
    found = run("search", *names[:2], "--k", 3, "--out", tmp_path / "hits.npz", "--json")
    assert found["probed"] == 40 * tuned["nprobe"]
    assert np.load(tmp_path / "hits.npz")["ids"].tolist() == found["ids"]
    # Once the machine is calibrated, candidates and the index are chosen as well.
    other = ("build", names[2], "--out", tmp_path / "j", "--kind", "ivf", "--cells", 16, "--json")
    run(*other)
    beside = ("tune", *names[:2], "--vectors", names[2], "--recall", 0.9, "--json")
    with pytest.raises(ConfigError, match="--beside"):
        run(*beside, "--beside", tmp_path / "j")
    per_kind = {"ivf": {"call": 1e-5, "rows": 1e-9}, "ivfpq": {"call": 1e-5, "rows": 2e-9}}
    store_search_rates(
        SearchRates(
            query_s=per_kind,
            build_s={},
            query_relative=dict.fromkeys(per_kind, 0.2),
            build_relative=0.0,
            threads=1,
            native=False,
            time_s=0.0,
            duration_s=0.0,
        )
    )
    chosen = run(*beside, "--beside", tmp_path / "j", "--write")
    best = chosen["best"]
    assert best["recall"] >= 0.9
    assert best["measured_s"] > 0
    assert open_index(Path(best["index"])).nprobe == best["nprobe"]
    exact = run("exact", names[2], names[1], "--k", 3, "--json")
    assert np.array(exact["ids"]).shape == (40, 3)
    page = tmp_path / "tuned.html"
    run(*beside, "--beside", tmp_path / "j", "--report", page)
    assert "What each index finds" in page.read_text()
    # A table is one of vectors once its column is named.
    pl.DataFrame({"v": vectors[:200].tolist()}).write_parquet(tmp_path / "v.parquet")
    table = ("build", tmp_path / "v.parquet", "--vector-column", "v", "--out", tmp_path / "c")
    assert run(*table, "--kind", "ivf", "--cells", 4, "--json")["vectors"] == 200
    with pytest.raises(ConfigError, match="--vector-column v is for one table"):
        run("build", tmp_path, "--vector-column", "v", "--out", tmp_path / "d")
