"""Folders of text searched: quality beside words and vectors alone and bm25s, time, second builds.

1 judges rankings of the Cranfield abstracts: weights of hybrid search are chosen on queries made
from the abstracts; people's queries of odd places were looked at while this was made, those of even
places are reported. 2 times a build of 10,000 passages of text that every machine has, and a second
build after one file changed. 3 compares searches by words with those of bm25s itself.
"""

import tempfile
import time
from pathlib import Path

import bm25s
import numpy as np
from benchmarks.common import Check, alternate, ratio
from benchmarks.laws._shared import shared
from benchmarks.retrieve._judged_texts import JudgedTexts
from benchmarks.retrieve._machine_text import machine_text

from steelyard.parallel import torch_threads
from steelyard.retrieve.corpus import CorpusIndex, CorpusOptions, build_corpus
from steelyard.retrieve.text.lexical import BM25Index

PAPER: list[str] = ["06-massiveds"]

_MINUTE_S = 60.0
_PASSAGES = 10_000


def run(quick: bool) -> list[Check]:
    """Judge, then time."""
    with torch_threads(2), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*_quality(folder), *_builds(folder, 2_000 if quick else _PASSAGES)]


def _quality(folder: Path) -> list[Check]:
    """Compare rankings of queries that nothing was chosen on."""
    judged = JudgedTexts.read(shared("cranfield"))
    source = folder / "abstracts"
    source.mkdir()
    for name, text in judged.documents:
        (source / f"{name}.txt").write_text(text)
    # One passage per abstract: the longest has 700 words.
    options = CorpusOptions(kind="hybrid", words=1000)
    index = build_corpus(folder / "cranfield", [source], options).index
    found = {
        "hybrid": index.store.hits(judged.queries, 10).ids,
        "latent vectors": index.store.vector_hits(judged.queries, 10).ids,
    }
    assert index.store.words is not None
    found["BM25"] = index.store.words.search(judged.queries, 10).ids
    ranked = {name: _named(index, ids) for name, ids in found.items()}
    ranked["bm25s alone"] = _peer(judged)
    gains = {name: judged.gains(rows) for name, rows in ranked.items()}
    held = np.arange(len(judged.queries)) % 2 == 0
    print(f"nDCG@10 on {held.sum()} queries kept aside (and on those that were looked at)")
    for name, values in gains.items():
        print(f"  {name:16} {values[held].mean():.4f} ({values[~held].mean():.4f})")
    print(f"  weights: {index.store.shape.fusion.told()}")
    means = {name: float(values[held].mean()) for name, values in gains.items()}
    return [
        Check(f"1 nDCG@10 of hybrid over {name}", means["hybrid"] / means[name], 1.0, "higher")
        for name in means
        if name != "hybrid"
    ]


def _named(index: CorpusIndex, ids: np.ndarray) -> list[list[str]]:
    """Return the names of the documents of each query."""
    passages = index.store.passages
    return [
        [Path(passages.source(number)).stem for number in row if number >= 0]
        for row in ids.tolist()
    ]


def _peer(judged: JudgedTexts) -> list[list[str]]:
    """Return what bm25s finds with its own words and stop list."""
    names = [name for name, _ in judged.documents]
    engine = bm25s.BM25()
    texts = [text for _, text in judged.documents]
    engine.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize(judged.queries, stopwords="en", show_progress=False)
    found, _ = engine.retrieve(asked, k=10, show_progress=False)
    return [[names[place] for place in row] for row in found.tolist()]


def _builds(folder: Path, passages: int) -> list[Check]:
    """Time a first and a second build, and searches by words beside bm25s."""
    source = folder / "texts"
    count = _write(source, passages)
    began_s = time.perf_counter()
    first = build_corpus(folder / "index", [source])
    first_s = time.perf_counter() - began_s
    changed = sorted(source.iterdir())[count // 2]
    changed.write_text(changed.read_text() + "\nan unheard-of sentence about quinces\n")
    began_s = time.perf_counter()
    second = build_corpus(folder / "index", [source])
    second_s = time.perf_counter() - began_s
    total = len(second.index)
    print(
        f"{total:,} passages of {count:,} files: first build {first_s:.1f} s, second "
        f"{second_s:.1f} s ({second.encoded} encoded); {first.why}"
    )
    assert second.index.search("quinces", 1)[0].path == str(changed.resolve())
    return [
        Check(
            "2 time of a build of 10,000 passages over a minute",
            first_s * _PASSAGES / total / _MINUTE_S,
            1.0,
            "lower",
        ),
        Check("2 passages encoded again after one changed file", second.encoded, 3.0, "lower"),
        Check("2 time of the second build over the first", second_s / first_s, 0.5, "lower"),
        _search_check(second.index),
    ]


def _write(folder: Path, passages: int) -> int:
    """Write text that every machine has into files of a few passages; return how many."""
    folder.mkdir()
    documents, _ = machine_text(2_500 * passages)
    written = words = 0
    for _, text in documents:
        (folder / f"{written:05d}.txt").write_text(text)
        written += 1
        words += len(text.split())
        if words >= 90 * passages:
            break
    return written


def _search_check(index: CorpusIndex) -> Check:
    """Compare searches by words with those of bm25s on the same passages."""
    texts = list(index.store.passages.texts())
    rng = np.random.default_rng(0)
    queries = [" ".join(rng.choice(text.split(), 6)) for text in rng.choice(texts, 100)]
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    tokens = bm25s.tokenize(texts, stopwords=[], show_progress=False)
    engine.index(tokens, show_progress=False)
    ours = index.store.words
    assert isinstance(ours, BM25Index)

    def theirs() -> None:
        for query in queries:
            asked = bm25s.tokenize([query], stopwords=[], show_progress=False)
            engine.retrieve(asked, k=10, show_progress=False)

    times = alternate(
        {"ours": lambda: [ours.search([query], 10) for query in queries], "bm25s": theirs},
        rounds=5,
    )
    spread = ratio(times["bm25s"], times["ours"])
    print(f"searches by words, one at a time: {spread.median:.2f}x bm25s")
    return Check("3 speed of a search by words over bm25s", spread.median, 1.0, "higher")
