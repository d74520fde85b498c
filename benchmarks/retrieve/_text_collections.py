"""Collections of texts that forecasts are judged on: cut from abstracts, or generated."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.laws._shared import shared
from benchmarks.retrieve._judged_texts import JudgedTexts

__all__ = ["read_abstracts", "write_collection"]

_SMALLEST, _LARGEST = 1.5e5, 2.5e6
"""Characters of a collection."""


def read_abstracts() -> dict[str, list[str]]:
    """Return the texts of collections that people wrote, by name."""
    with gzip.open(shared("arxiv-abstracts") / "papers.jsonl.gz", "rt", encoding="utf-8") as lines:
        papers = [json.loads(line) for line in lines]
    judged = JudgedTexts.read(shared("cranfield"))
    return {
        "arxiv": [f"{row['title']}\n\n{row['abstract']}" for row in papers],
        "cranfield": [text for _, text in judged.documents],
    }


def write_collection(
    rng: np.random.Generator, written: dict[str, list[str]], folder: Path
) -> tuple[str, Path]:
    """Write a collection of drawn kind and size, as files or as one of JSON lines.

    Args:
        rng: draws all.
        written: what `read_abstracts` returned.
        folder: made here.

    Returns:
        What it was cut from, and the folder.
    """
    folder.mkdir(parents=True)
    kind = str(rng.choice([*written, "generated"]))
    most = float(np.exp(rng.uniform(np.log(_SMALLEST), np.log(_LARGEST))))
    if kind == "generated":
        texts = _generated(rng)
    else:
        own = written[kind]
        texts = (own[place] for place in rng.permutation(len(own)).tolist())
    kept: list[str] = []
    size = 0
    for text in texts:
        kept.append(text)
        size += len(text)
        if size >= most:
            break
    if rng.random() < 0.3:
        rows = (json.dumps({"text": text}) for text in kept)
        (folder / "texts.jsonl").write_text("\n".join(rows))
    else:
        for number, text in enumerate(kept):
            (folder / f"{number}.txt").write_text(text)
    return kind, folder


def _generated(rng: np.random.Generator) -> Iterator[str]:
    """Yield documents of words whose frequencies fall as in a language, each of a few topics."""
    size = int(rng.choice([5_000, 20_000, 60_000]))
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "or")]
    words = np.array(
        ["".join(rng.choice(syllables, int(rng.integers(1, 5)))) for _ in range(size)], object
    )
    shares = 1 / np.arange(1, size + 1) ** float(rng.uniform(0.9, 1.15))
    shares /= shares.sum()
    ends = np.cumsum(shares)
    topics = [rng.permutation(size)[:400] for _ in range(30)]
    length = float(rng.choice([60, 200, 800]))
    while True:
        count = max(int(rng.exponential(length)), 12)
        places = np.minimum(np.searchsorted(ends, rng.random(count)), size - 1)
        # A third of the words are of the document's topic, so that documents differ in sense.
        of_topic = rng.random(count) < 1 / 3
        own = topics[int(rng.integers(len(topics)))]
        places[of_topic] = own[rng.integers(0, len(own), int(of_topic.sum()))]
        yield "\n".join(_sentences(rng, words[places].tolist()))


def _sentences(rng: np.random.Generator, words: list[str]) -> Iterator[str]:
    """Yield sentences of 8 to 20 words."""
    first = 0
    while first < len(words):
        last = first + int(rng.integers(8, 21))
        yield " ".join(words[first:last]).capitalize() + "."
        first = last
