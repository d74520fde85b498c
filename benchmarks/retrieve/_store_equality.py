"""Late answers against stores that are built anew for every size, seed and filter."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from benchmarks.common import Check
from numpy.typing import NDArray
from scipy.stats import binom

from steelyard.data.sketch.near_duplicates import word_count
from steelyard.retrieve.datastore import Candidates, Datastore, failure_probability, study_grid
from steelyard.retrieve.datastore.overlap import Contamination, overlaps
from steelyard.retrieve.datastore.sampling import is_sampled
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.text import LatentEncoder

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
SEEDS = (0, 1, 2)
_K, _MIN_WORDS, _SPARE = 3, 13, 200
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A store with its queries and the texts that its passages may not hold.

    Attributes:
        store: the whole store.
        queries: texts.
        answers: text of each query that answers are judged by.
        candidates: candidates K of the search.
        build_s: seconds that building the store took.
    """

    store: Datastore
    queries: list[str]
    answers: list[str]
    candidates: int
    build_s: float


def equality_checks(asked: Asked) -> list[Check]:
    """Compare late answers with rebuilt stores, cell by cell."""
    encoder, passages = asked.store.encoder, asked.store.passages
    assert encoder is not None
    texts = list(passages.texts())
    vectors = np.asarray(encoder.encode(texts), np.float32)
    queries = np.asarray(encoder.encode(asked.queries), np.float32)
    long = np.array([word_count(text.encode()) >= _MIN_WORDS for text in texts])
    found = asked.store.search(asked.queries, asked.candidates)
    cleaned = {
        "none": found,
        "cleaned": found.filter(_MIN_WORDS).decontaminate(asked.answers),
    }
    # Without a word that the encoder knows a query finds nothing, in a store of any size.
    asks = found.ids[:, 0] >= 0
    print(f"{len(asks) - asks.sum()} of {len(asks)} queries have no known word")
    wrong = compared = inside = bands = 0
    for name, candidates in cleaned.items():
        for share in SHARES:
            short = 0
            for seed in SEEDS:
                drawn = candidates.subsample(share, seed)
                stays = is_sampled(np.arange(len(texts)), share, seed)
                if name == "cleaned":
                    stays &= long
                rebuilt = _rebuilt(vectors, queries, np.flatnonzero(stays))
                if name == "cleaned":
                    rebuilt = _decontaminated(rebuilt, texts, asked.answers)
                is_short = drawn.is_short(_K)
                same = (drawn.top(_K).ids == rebuilt[:, :_K]).all(axis=1)
                wrong += int((~same & ~is_short).sum())
                compared += int((~is_short).sum())
                short += int((is_short & asks).sum())
            if name == "none":
                rate = failure_probability(asked.candidates, _K, share)
                trials = int(asks.sum()) * len(SEEDS)
                low, high = binom.ppf([0.005, 0.995], trials, rate)
                inside, bands = inside + (low <= short <= high), bands + 1
                print(f"share {share:g}: {short} of {trials} short, {rate * trials:.2f} expected")
    print(f"{compared - wrong:,} of {compared:,} answers equal those of stores built anew")
    return [
        Check("1 answers that differ from a rebuilt store's", wrong / compared, 0.001, "lower"),
        Check("1 sizes whose failures lie in the binomial band", inside / bands, 1.0, "higher"),
    ]


def _rebuilt(vectors: NDArray[np.float32], queries: NDArray[np.float32], numbers: Ids) -> Ids:
    """Return the best passages of an index that holds some of them alone."""
    index = IVFFlat(vectors.shape[1], metric="ip")
    index.add(vectors[numbers], numbers)
    return index.search(queries, _K + _SPARE).ids


def _decontaminated(ids: Ids, texts: list[str], answers: list[str]) -> Ids:
    """Leave out passages that hold the answer of their query."""
    rows, columns = np.nonzero(ids >= 0)
    numbers, places = np.unique(ids[rows, columns], return_inverse=True)
    raws = [texts[number].encode() for number in numbers.tolist()]
    pairs = np.stack([places, rows], axis=1)
    copies = overlaps(raws, [text.encode() for text in answers], pairs, Contamination())
    kept = np.full(ids.shape, -1)
    for row in range(len(ids)):
        of_row = rows == row
        left = ids[row, columns[of_row][~copies[of_row]]]
        kept[row, : len(left)] = left
    return kept


def cost_checks(asked: Asked) -> list[Check]:
    """Compare the study's operations and seconds with those of building every store anew."""
    filters: dict[str, Callable[[Candidates], Candidates]] = {
        "none": lambda found: found,
        "long": Candidates.filter,
        "clean": lambda found: found.filter().decontaminate(asked.answers),
    }
    begin_s = time.perf_counter()
    found = asked.store.search(asked.queries, asked.candidates)
    study_grid(found, lambda top: top.scores[:, 0], shares=SHARES, seeds=SEEDS, filters=filters)
    study_s = asked.build_s + time.perf_counter() - begin_s
    drawn = sum(share * (len(SEEDS) if share < 1 else 1) for share in SHARES) * len(filters)
    # A store built anew encodes, compares and cleans its own passages. Cleaning looks at the
    # candidates of the queries, of which every store but the smallest has equally many.
    quarter_s, filter_s = _rebuild_s(asked, 0.25, list(filters.values()))
    cells = sum(len(SEEDS) if share < 1 else 1 for share in SHARES)
    rebuilt_s = quarter_s * drawn / 0.25 + filter_s * cells
    print(
        f"study of {len(filters)} x {len(SHARES)} x {len(SEEDS)} stores: {study_s:.1f} s; a "
        f"rebuilt store of a quarter takes {quarter_s:.1f} s, its filters {filter_s:.1f} s, all "
        f"stores {rebuilt_s:.0f} s (extrapolated)"
    )
    return [
        Check("2 operations of the study over those of rebuilding", 1 / drawn, 0.1, "lower"),
        Check("2 seconds of the study over those of rebuilding", study_s / rebuilt_s, 0.1, "lower"),
    ]


def _rebuild_s(
    asked: Asked, share: float, filters: list[Callable[[Candidates], Candidates]]
) -> tuple[float, float]:
    """Return the seconds of building and searching a share of the passages, and of all filters."""
    passages = asked.store.passages
    numbers = np.flatnonzero(is_sampled(np.arange(len(passages)), share, 0))
    encoder = asked.store.encoder
    assert isinstance(encoder, LatentEncoder)
    begin_s = time.perf_counter()
    index = IVFFlat(encoder.dim, metric="ip")
    for first in range(0, len(numbers), 1024):
        part = numbers[first : first + 1024]
        index.add(encoder.encode([passages.text(one) for one in part.tolist()]), part)
    hits = index.search(encoder.encode(asked.queries), asked.candidates)
    built_s = time.perf_counter() - begin_s
    found = Candidates.of_search(passages, hits.ids, hits.distances)
    for change in filters:
        change(found).top(_K)
    return built_s, time.perf_counter() - begin_s - built_s
