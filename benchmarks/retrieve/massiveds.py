"""A store of passages studied from one search: equal answers, cost, trend, decontamination.

Passages are cut from text that every machine with Python has; readers are trained here. 1 compares
late answers with stores built anew, 2 their cost, 3 and 4 read held-out text over two decades of
store, 5 times the search for copied text against the plain double loop.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.common import Check, alternate, ratio
from benchmarks.retrieve._machine_text import Documents, machine_text
from benchmarks.retrieve._reader_trend import TrendSize, trend_checks
from benchmarks.retrieve._store_equality import Asked, cost_checks, equality_checks

from steelyard.data.tokenizer import train_tokenizer
from steelyard.parallel import torch_threads
from steelyard.retrieve.datastore import Datastore, cut_passages
from steelyard.retrieve.datastore.overlap import Contamination, overlaps
from steelyard.retrieve.readers import cut_windows
from steelyard.retrieve.text import LatentEncoder

PAPER = ["06-massiveds"]

_WORDS, _VOCAB = 64, 4096


def run(quick: bool) -> list[Check]:
    """Build one store, and ask it everything."""
    max_bytes, candidates, asked = (2_000_000, 300, 100) if quick else (48_000_000, 1000, 400)
    size = TrendSize(steps=20, windows=1000, heldout=64, candidates=300, width=64)
    if not quick:
        size = TrendSize(steps=300, windows=8000, heldout=1000, candidates=1000, width=96)
    documents, heldout = machine_text(max_bytes)
    with torch_threads(2), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = train_tokenizer((text for _, text in documents[::10]), _VOCAB)
        texts = [text for _, whole in documents for text in cut_passages(whole, _WORDS)]
        # The encoder is made once, however the stores are.
        encoder = LatentEncoder.fit(texts, 128)
        begin_s = time.perf_counter()
        store = Datastore.build(folder / "store", documents, encoder, words=_WORDS)
        build_s = time.perf_counter() - begin_s
        print(f"{len(store):,} passages of {len(documents):,} documents in {build_s:.0f} s")
        windows = cut_windows(heldout, tokenizer, known_tokens=64, wanted_tokens=64, most=asked)
        given = Asked(
            store=store,
            queries=windows.queries,
            answers=windows.answers,
            candidates=candidates,
            build_s=build_s,
        )
        checks = [*equality_checks(given), *cost_checks(given)]
        checks += trend_checks(store, documents, heldout, tokenizer, size, folder)
    return [*checks, *_decontamination(documents, 50 if quick else 1000)]


def _decontamination(documents: Documents, count: int) -> list[Check]:
    """Time the search for copied runs against comparing every word with every other."""
    passages = [text for _, whole in documents[:400] for text in cut_passages(whole)][: 2 * count]
    left, right = passages[:count], passages[-count:]
    rng = np.random.default_rng(0)
    for place in range(0, count, 4):
        words = left[place].split()
        first = int(rng.integers(0, max(1, len(words) - 40)))
        right[place] = " ".join([*right[place].split()[:60], *words[first : first + 40]])
    pairs = np.stack([np.arange(count), np.arange(count)], axis=1)
    raws = [[text.encode() for text in side] for side in (left, right)]
    rule = Contamination(jaccard=2.0)
    ours = overlaps(raws[0], raws[1], pairs, rule)
    split = [[_words(text) for text in side] for side in (left, right)]
    plain = [_longest_run(a, b) >= rule.run_words for a, b in zip(*split, strict=True)]
    times = alternate(
        {
            "ours": lambda: overlaps(raws[0], raws[1], pairs, rule),
            "loops": lambda: [_longest_run(a, b) for a, b in zip(*split, strict=True)],
        },
        rounds=3,
        warm_up=0,
    )
    spread = ratio(times["loops"], times["ours"])
    print(
        f"copied runs in {count} pairs, {sum(plain)} found: {spread.median:.0f}x the double loop "
        f"({spread.low:.0f} to {spread.high:.0f})"
    )
    wrong = float(np.mean(ours != np.array(plain)))
    return [
        Check("5 pairs judged unlike the double loop", wrong, 0.0, "lower"),
        Check("5 speed over the double loop", spread.median, 50.0, "higher"),
    ]


def _words(text: str) -> list[str]:
    """Return the words that grams are made of."""
    kept = [letter if letter.isalnum() or letter == "_" else " " for letter in text.lower()]
    return "".join(kept).split()


def _longest_run(left: list[str], right: list[str]) -> int:
    """Return the longest run of words that both have, from every pair of places."""
    best = 0
    for i in range(len(left)):
        for j in range(len(right)):
            length = 0
            while (
                i + length < len(left)
                and j + length < len(right)
                and left[i + length] == right[j + length]
            ):
                length += 1
            best = max(best, length)
    return best
