"""Token vectors on a drive: records, readers, builds that are disturbed, and re-ranking."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog.storage import StorageTier
from steelyard.errors import BackendError, CapacityError, ConfigError, DataError, StoreError
from steelyard.files import exclusive
from steelyard.retrieve import IVFPQ, IVFFlat
from steelyard.retrieve.multivector import (
    MultiVectorStore,
    PrefetchedReranker,
    ThrottledReader,
)
from steelyard.retrieve.multivector.candidates import CandidateSearch
from steelyard.retrieve.multivector.guesses import count_hits
from steelyard.retrieve.multivector.jobs import AskedTexts, ScoreJob
from steelyard.retrieve.multivector.readers import MemoryReader, ThreadedReader, make_reader
from steelyard.retrieve.tenants import ClusterTreeIndex

TEXT, TOKEN = 16, 12
KINDS = ("fp16", "int8", "pq")
SLOW = pytest.mark.slow


def documents(count=300, seed=0, most=25):
    """Clustered documents; every seventh has no tokens."""
    rng = np.random.default_rng(seed)
    middles = rng.normal(size=(12, TEXT))
    for number in range(count):
        length = int(rng.integers(1, most)) if number % 7 else 0
        text = middles[number % 12] + 0.5 * rng.normal(size=TEXT)
        tokens = rng.normal(size=(length, TOKEN))
        yield number, text / np.linalg.norm(text), tokens - 3.0 * (number % 5 == 0)


def queries(count=6, seed=1):
    rng = np.random.default_rng(seed)
    texts = rng.normal(size=(count, TEXT)).astype(np.float32)
    return texts, [rng.normal(size=(n, TOKEN)).astype(np.float32) for n in range(count)]


def built(path, count=300, **options):
    return MultiVectorStore.build(path, documents(count), **{"block": 512} | options)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {kind: built(folder / kind, dtype=kind, max_tokens=10) for kind in KINDS}


@pytest.fixture(scope="module")
def index():
    texts = np.stack([text for _, text, _ in documents()]).astype(np.float32)
    made = IVFFlat(TEXT, nlist=16, nprobe=8, metric="ip")
    made.train(texts)
    made.add(texts)
    return made


def slow_score(store, number, text, tokens):
    """The score of one document by the slow obvious way."""
    own_text, own = store.document(number)
    best = (own @ tokens.T).max(axis=0).sum() if len(own) and len(tokens) else 0.0
    return own_text @ text, best


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_scores_like_the_obvious_way_with_negative_products_and_split_documents(
    stores, kind
):
    store, (texts, tokens) = stores[kind], queries()
    assert store.counts.empty == 43 and store.counts.split > 50
    asked = AskedTexts.of(texts, tokens, store)
    wanted = np.random.default_rng(2).integers(0, 300, (6, 40))
    wanted[0, 3] = -1
    jobs = []
    for name in ("memory", "mmap", "threads"):
        reader = make_reader(name, store, depth=4)
        jobs.append(ScoreJob.of(store, asked, wanted))
        reader.score(jobs[-1])
        reader.close()
    for other in jobs[1:]:
        assert (other.text_scores == jobs[0].text_scores).all()
        assert (other.token_scores == jobs[0].token_scores).all()
    for pair, place in enumerate(jobs[0].pair_places.tolist()):
        query, number = place // 40, int(wanted.reshape(-1)[place])
        text, best = slow_score(store, number, texts[query], tokens[query])
        assert jobs[0].text_scores[pair] == pytest.approx(text, abs=2e-5)
        assert jobs[0].token_scores[pair] == pytest.approx(best, rel=1e-5, abs=1e-4)


def test_codes_are_as_close_as_they_promise(stores):
    given_ = {number: tokens for number, _, tokens in documents()}
    for kind, most in (("fp16", 1e-3), ("int8", 1 / 127)):
        for number in (1, 5, 10):
            kept = stores[kind].document(number)[1]
            assert np.abs(kept - given_[number]).max() <= most * np.abs(given_[number]).max()
    far = [np.square(stores["pq"].document(n)[1] - given_[n]).mean() for n in (1, 2, 3)]
    assert np.mean(far) < 0.6  # the variance is 1
    assert stores["pq"].layout.token_bytes == 5


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    most=st.integers(1, 20),
    gaps=st.integers(1, 1000),
)
def test_any_lengths_come_back(tmp_path_factory, lengths, most, gaps):
    rng = np.random.default_rng(3)
    rows = [
        (place * gaps, rng.normal(size=4), rng.normal(size=(length, 5)))
        for place, length in enumerate(lengths)
    ]
    store = MultiVectorStore.build(
        tmp_path_factory.mktemp("any") / "s", rows, block=512, max_tokens=most
    )
    assert sum(store.memory_bytes().values()) <= 17 * len(rows)
    for number, text, tokens in rows:
        kept_text, kept = store.document(number)
        np.testing.assert_allclose(kept_text, text, atol=2e-3)
        np.testing.assert_allclose(kept, tokens, atol=4e-3)
    reader, asked = MemoryReader(store), AskedTexts.of(np.ones((1, 4)), [np.eye(5)], store)
    job = ScoreJob.of(store, asked, np.array([[number for number, _, _ in rows]]))
    reader.score(job)
    expected = [store.document(n)[1].max(axis=0, initial=-np.inf).sum() for n, _, _ in rows]
    expected = [0.0 if np.isinf(value) else value for value in expected]
    np.testing.assert_allclose(job.token_scores, expected, rtol=1e-5, atol=1e-5)


def candidate_indexes(texts, index):
    codes = IVFPQ(TEXT, nlist=8, parts=4, nprobe=6, metric="ip")
    codes.train(np.tile(texts, (2, 1)))
    codes.add(texts)
    tree = ClusterTreeIndex(TEXT, nprobe=90, metric="ip", branching=4, leaf_size=8, shortlist=16)
    tree.train(texts)
    tree.add(texts)
    tree.grant(np.arange(0, 300, 2), "even")
    return [(index, {}), (codes, {}), (tree, {"tenant": "even"}), (tree, {"where": "NOT even"})]


def test_ranking_is_the_same_for_every_share_reader_and_index(stores, index):
    store, (texts, tokens) = stores["fp16"], queries()
    vectors = np.stack([text for _, text, _ in documents()]).astype(np.float32)
    for candidates, words in candidate_indexes(vectors, index):
        first = None
        for reader in ("memory", "threads"):
            for share in (1.0, 0.05, 0.3, 0.7):
                with PrefetchedReranker(
                    candidates, store, reader=reader, prefetch_step=share, rerank=30, depth=3
                ) as reranker:
                    found = reranker.search(texts, tokens, 40, **words)
                    one = reranker.search(texts[2:3], tokens[2:3], 40, **words)
                if first is None:
                    first = found
                assert (found.ids == first.ids).all() and (found.scores == first.scores).all()
                assert (one.ids == first.ids[2]).all() and (one.scores == first.scores[2]).all()
                assert found.trace.hits + found.trace.misses == (first.ids[:, :30] >= 0).sum()
                assert (share < 1) == (found.trace.prefetched > 0)
        # Beyond what is ranked again, scores go on falling.
        assert (np.diff(first.scores, axis=1)[first.ids[:, 1:] >= 0] <= 0).all()
        if "tenant" in words:
            assert (first.ids % 2 == 0).all()
        number = int(first.ids[3, 0])
        expected = slow_score(store, number, texts[3], tokens[3])
        assert first.scores[3, 0] == pytest.approx(sum(expected), rel=1e-4)


def test_a_batch_reads_each_document_once(stores, index):
    texts, tokens = queries()
    same = np.tile(texts[:1], (5, 1)), [tokens[4]] * 5
    with PrefetchedReranker(index, stores["fp16"], rerank=20, prefetch_step=0.5) as reranker:
        alone = reranker.search(texts[:1], tokens[4:5], 5).trace
        together = reranker.search(*same, 5).trace
    assert together.reads == alone.reads and together.read_bytes == alone.read_bytes
    assert together.hits == 5 * alone.hits


def test_hits_are_the_final_candidates_of_the_cells_searched_first(stores, index):
    texts, tokens = queries(20)
    tokens = [tokens[5]] * 20
    cells = np.repeat(np.arange(16), np.diff(index.rows.starts))
    cell_of = dict(zip(index.rows.ids.tolist(), cells.tolist(), strict=True))
    order = np.argsort(-(texts @ index.centers.T), axis=1, kind="stable")
    for share, first in ((0.25, 2), (0.5, 4)):
        final = index.search(texts, 15).ids
        exact = sum(
            cell_of[number] in order[query, :first]
            for query, row in enumerate(final.tolist())
            for number in row
        )
        with PrefetchedReranker(
            index, stores["fp16"], reader="memory", rerank=15, prefetch_step=share
        ) as reranker:
            assert reranker.search(texts, tokens, 5).trace.hits == exact
        assert count_hits(CandidateSearch(index=index), texts, [share], [15]).sum() == exact


def test_a_flipped_byte_drops_that_document_and_counts_it(tmp_path, index):
    store, (texts, tokens) = built(tmp_path / "s"), queries()

    def search():
        with PrefetchedReranker(index, store, rerank=50, prefetch_step=0.4) as reranker:
            return reranker.search(texts[2:3], tokens[2:3], 50)

    before = search()
    victim = int(before.ids[0, 3])
    place = int(store.offsets[victim])
    for offset in (0, 4, 9, 20, 100, int(store.blocks[victim]) * 512 - 1):
        with store.records.open("r+b") as file:
            file.seek(place + offset)
            byte = file.read(1)[0]
            file.seek(place + offset)
            file.write(bytes([byte ^ 4]))
        after = search()
        assert after.trace.damaged == 1
        rest = before.ids[before.ids != victim]
        assert (after.ids[0, : len(rest)] == rest).all() and after.ids[0, len(rest)] == -1
        with pytest.raises(DataError):
            store.document(victim)
        with store.records.open("r+b") as file:
            file.seek(place + offset)
            file.write(bytes([byte]))
    assert (search().ids == before.ids).all()


def test_policies_for_long_documents_are_counted(tmp_path):
    rows = [(0, np.ones(4), np.ones((9, 4))), (1, np.ones(4), np.ones((2, 4)))]
    cut = MultiVectorStore.build(tmp_path / "a", rows, max_tokens=4, long="truncate")
    assert (cut.counts.truncated, cut.counts.lost_tokens) == (1, 5)
    assert len(cut.document(0)[1]) == 4
    split = MultiVectorStore.build(tmp_path / "b", rows, max_tokens=4)
    assert split.counts.split == 1 and len(split.document(0)[1]) == 9
    with pytest.raises(DataError, match="document 0 has 9 tokens"):
        MultiVectorStore.build(tmp_path / "c", rows, max_tokens=4, long="error")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, [np.nan, 1], np.ones((1, 2)))], "not finite"),
        ([(0, [1, 1], np.full((1, 2), np.inf))], "document 0"),
        ([(0, [1e6, 1], np.ones((1, 2)))], "65,504"),
        ([(0, [1, 1], np.full((1, 2), 1e6))], "65,504"),
        ([(0, [1, 1], np.ones((1, 2))), (1, [1, 1, 1], np.ones((1, 2)))], "document 1"),
        ([(0, [1, 1], np.ones((1, 2))), (1, [1, 1], np.ones((1, 3)))], "document 1"),
        ([(4, [1, 1], np.ones((1, 2))), (4, [1, 1], np.ones((1, 2)))], "4 comes after 4"),
        ([(0, [1, 1], np.ones(2))], "document 0"),
        ([], "without documents"),
    ],
)
def test_bad_documents_are_refused_by_number(tmp_path, rows, words):
    with pytest.raises(DataError, match=words):
        MultiVectorStore.build(tmp_path / "s", rows)
    assert not (tmp_path / "s").exists()


def test_bad_options_are_refused(tmp_path, stores, index):
    for options in ({"block": 1000}, {"max_tokens": 0}, {"dtype": "fp8"}, {"max_tokens": 70000}):
        with pytest.raises(ConfigError):
            built(tmp_path / "s", **options)
    with pytest.raises(ConfigError, match="codes learned from"):
        MultiVectorStore.build(tmp_path / "s", documents(5), dtype="pq")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("keep")
    with pytest.raises(ConfigError, match="is no store"):
        built(tmp_path / "mine")
    store = stores["fp16"]
    for options in ({"prefetch_step": 0}, {"rerank": 0}, {"reader": "tape"}, {"depth": 0}):
        with pytest.raises(ConfigError):
            PrefetchedReranker(index, store, **options)
    with pytest.raises(DataError, match="numbers"):
        PrefetchedReranker(IVFFlat(3), store)


def test_bad_queries_are_refused(tmp_path, stores, index):
    texts, tokens = queries()
    with PrefetchedReranker(index, stores["fp16"]) as reranker:
        for given_ in ((texts[:, :3], tokens), (texts, tokens[:2]), (texts * np.nan, tokens)):
            with pytest.raises(DataError):
                reranker.search(*given_, 3)
        with pytest.raises(DataError, match="query 3"):
            reranker.search(texts, [*tokens[:3], np.ones((2, 5)), *tokens[4:]], 3)
        with pytest.raises(ConfigError):
            reranker.search(texts, tokens, 0)
        with pytest.raises(ConfigError, match="tenant"):
            reranker.search(texts, tokens, 3, tenant="a")
    few = built(tmp_path / "few", 100, encoder="words-1")
    with pytest.raises(DataError, match="there is no document"):
        PrefetchedReranker(index, few, reader="memory").search(texts, tokens, 3)
    with pytest.raises(DataError, match="encoded by other"):
        PrefetchedReranker(index, few, encoder="other")


def test_damaged_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="no store"):
        MultiVectorStore.open(tmp_path)
    store = built(tmp_path / "s", 20)
    os.truncate(store.records, 1000)
    with pytest.raises(DataError, match="1,000 bytes"):
        MultiVectorStore.open(tmp_path / "s")


BUILDER = """
import sys, time
import numpy as np
from pathlib import Path
from steelyard.retrieve.multivector import MultiVectorStore
def rows(start):
    rng = np.random.default_rng(0)
    for number in range(400):
        text, tokens = rng.normal(size=8), rng.normal(size=(number % 20, 8))
        if number == int(sys.argv[2]):
            print("there", flush=True)
            time.sleep(60)
        if number >= start:
            yield number, text, tokens
MultiVectorStore.build(Path(sys.argv[1]), rows, dtype=sys.argv[3], commit_bytes=20_000, block=512)
"""


@pytest.mark.parametrize(
    ("stop", "dtype"),
    [(399, "fp16"), pytest.param(0, "fp16", marks=SLOW), pytest.param(399, "pq", marks=SLOW)],
)
def test_a_killed_build_goes_on_and_ends_the_same(tmp_path, stop, dtype):
    def run(name, stop):
        command = [sys.executable, "-c", BUILDER, str(tmp_path / name), str(stop), dtype]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    with run("a", stop) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"there\n"
        killed.send_signal(signal.SIGKILL)
    assert not (tmp_path / "a").exists()
    # A torn end of both files, as of a kill amid a write.
    beside = tmp_path / ".a.building"
    for name in ("records.bin", "progress.log"):
        if (beside / name).exists():
            with (beside / name).open("ab") as file:
                file.write(b"torn")
    for name in ("a", "b"):
        with run(name, -1) as whole:
            assert whole.wait() == 0
    for name in ("records.bin", "table.pack", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert not beside.exists()


def test_a_build_goes_on_only_with_the_same_documents(tmp_path):
    def broken():
        yield from documents(150)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MultiVectorStore.build(tmp_path / "s", broken(), commit_bytes=1, max_tokens=10)
    kept = (tmp_path / ".s.building" / "records.bin").stat().st_size
    if kept:
        others = ((number + 5, text, tokens) for number, text, tokens in documents(300))
        with pytest.raises(DataError, match="was interrupted"):
            MultiVectorStore.build(tmp_path / "s", others, commit_bytes=1, max_tokens=10)


def test_a_full_disk_leaves_the_old_store_and_the_build_goes_on(tmp_path, monkeypatch):
    old = built(tmp_path / "s", 50)
    real = os.fdatasync

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("steelyard.retrieve.multivector.writing.os.fdatasync", full)
    with pytest.raises(CapacityError, match="disk full"):
        built(tmp_path / "s", 300)
    assert len(MultiVectorStore.open(tmp_path / "s")) == len(old)
    monkeypatch.setattr("steelyard.retrieve.multivector.writing.os.fdatasync", real)
    assert len(built(tmp_path / "s", 300)) == 300


def test_a_second_writer_is_refused_by_name(tmp_path):
    with (
        exclusive(tmp_path / ".s.building"),
        pytest.raises(StoreError, match=r"another process is working in .*\.s\.building"),
    ):
        built(tmp_path / "s", 5)


def test_reads_without_direct_access_say_so(stores, index, monkeypatch):
    real = os.open

    def refusing(path, flags, *rest, **words):
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest, **words)

    monkeypatch.setattr(os, "open", refusing)
    texts, tokens = queries()
    with PrefetchedReranker(index, stores["fp16"]) as reranker:
        trace = reranker.search(texts, tokens, 3).trace
    assert "page cache" in trace.note and "O_DIRECT is refused" in trace.note
    with pytest.raises(BackendError, match="past the page cache"):
        ThreadedReader(stores["fp16"], direct=True)


def test_a_played_drive_gives_the_same_and_is_no_faster_than_told(stores, index):
    texts, tokens = queries()
    slow = StorageTier(
        name="slow", vendor="x", bytes_per_s=1e6, first_byte_s=0.01, reads_per_s=5000
    )
    reader = ThrottledReader(stores["fp16"], slow, depth=8)
    with PrefetchedReranker(index, stores["fp16"], reader=reader, prefetch_step=0.5) as reranker:
        found = reranker.search(texts, tokens, 10)
    with PrefetchedReranker(index, stores["fp16"], reader="memory") as reranker:
        expected = reranker.search(texts, tokens, 10)
    assert (found.ids == expected.ids).all() and (found.scores == expected.scores).all()
    assert found.trace.total_s > found.trace.read_bytes / 1e6
    assert "plays slow" in found.trace.note
    with pytest.raises(ConfigError, match="latency"):
        ThrottledReader(stores["fp16"], StorageTier(name="s3", vendor="x", bytes_per_s=1e6))


def test_a_search_in_two_threads_takes_turns(stores, index):
    from concurrent.futures import ThreadPoolExecutor

    texts, tokens = queries()
    with (
        PrefetchedReranker(index, stores["fp16"], depth=2) as reranker,
        ThreadPoolExecutor(4) as threads,
    ):
        one = reranker.search(texts, tokens, 10)
        for other in threads.map(lambda _: reranker.search(texts, tokens, 10), range(12)):
            assert (other.ids == one.ids).all() and (other.scores == one.scores).all()


def test_a_search_is_looked_at_before_the_rest_of_it_is_done(index, monkeypatch):
    scanned = []
    engine = index._settled()
    scan = engine.scan
    monkeypatch.setattr(
        engine, "scan", lambda *given, **more: scanned.append(1) or scan(*given, **more)
    )
    steps = CandidateSearch(index=index, nprobe=8).steps(queries(1)[0], 5, 0.25)
    _, is_last = next(steps)
    assert not is_last and len(scanned) == 1
    _, is_last = next(steps)
    assert is_last and len(scanned) == 2


def test_queued_reads_and_threads_score_alike_and_dropped_documents_are_not_read(stores):
    store, (texts, tokens) = stores["fp16"], queries()
    asked = AskedTexts.of(texts, tokens, store)
    wanted = np.random.default_rng(4).permutation(300)[None, :60].repeat(6, axis=0)
    jobs = []
    for is_queued in (True, False):
        reader = ThreadedReader(store, depth=7)
        queued, reader.is_queued = reader.is_queued, is_queued and reader.is_queued
        jobs.append(ScoreJob.of(store, asked, wanted))
        jobs[-1].keep_only(wanted[0, ::2])
        reader.score(jobs[-1])
        reader.is_queued = queued
        reader.close()
    # What is wanted most is read first; half of it was given up before it was asked for.
    assert (jobs[0].numbers == wanted[0]).all() and jobs[0].num_read == 30
    assert jobs[0].damaged == 0 and jobs[0].num_bytes < jobs[0].sizes.sum()
    for name in ("states", "text_scores", "token_scores"):
        assert (getattr(jobs[0], name) == getattr(jobs[1], name)).all()
