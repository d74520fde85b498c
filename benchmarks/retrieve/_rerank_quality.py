"""Ranking a tenth of the candidates by token vectors, against ranking all, on two collections.

Cranfield has judgements; its odd queries chose the encoder's constants, its even ones are counted.
The other collection was looked at once: titles of papers ask for their own abstracts.
"""

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared

from steelyard.retrieve.multivector import PrefetchedReranker
from steelyard.retrieve.multivector.folder import WEIGHT, RerankFolder, build_folder

_K = 10
_ALL, _TENTH = 1000, 98
"""Documents differ in length: two fewer than a tenth, so that bytes are a tenth too."""


@dataclass(frozen=True)
class Collection:
    """Texts, queries, and which texts answer which query.

    Attributes:
        name: what it is called.
        texts: documents.
        queries: queries.
        answers: places of documents that answer each.
    """

    name: str
    texts: list[str]
    queries: list[str]
    answers: list[set[int]]


def cranfield() -> Collection:
    """Return the collection with its even queries."""
    folder = shared("cranfield")
    docs, queries = (_rows(folder / f"{name}.jsonl.gz") for name in ("docs", "queries"))
    places = {int(row["id"]): place for place, row in enumerate(docs)}
    answers: dict[int, set[int]] = {}
    with (folder / "qrels.tsv").open() as file:
        for row in csv.reader(file, delimiter="\t"):
            if row[0].isdigit():
                answers.setdefault(int(row[0]), set()).add(places[int(row[1])])
    kept = [row for row in queries if int(row["id"]) % 2 == 0 and int(row["id"]) in answers]
    return Collection(
        "Cranfield, even queries",
        [row["text"] for row in docs],
        [row["text"] for row in kept],
        [answers[int(row["id"])] for row in kept],
    )


def titles() -> Collection:
    """Return abstracts with a title of every eighth paper as a query."""
    rows = _rows(shared("arxiv-abstracts") / "papers.jsonl.gz")
    asked = range(3, len(rows), 8)
    return Collection(
        "titles and abstracts",
        [row["abstract"] for row in rows],
        [rows[place]["title"] for place in asked],
        [{place} for place in asked],
    )


def _rows(path: Path) -> list[dict]:
    """Read JSON lines."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def ndcg(ids: np.ndarray, answers: set[int]) -> float:
    """Return the normalized discounted gain of ten places; every answer counts the same."""
    gains = 1 / np.log2(np.arange(2, _K + 2))
    found = sum(gains[place] for place, number in enumerate(ids[:_K].tolist()) if number in answers)
    return float(found / gains[: len(answers)].sum())


def quality_checks(folder: Path, quick: bool) -> list[Check]:
    """Rank all candidates and a tenth of them, on both collections."""
    checks = []
    for made in (cranfield(),) if quick else (cranfield(), titles()):
        texts = [(str(place), text) for place, text in enumerate(made.texts)]
        found = build_folder(folder / made.name.split(",")[0].split()[0], texts)
        checks += _compared(made, found)
    return checks


def _compared(made: Collection, found: RerankFolder) -> list[Check]:
    """Compare both ways on one collection."""
    texts, tokens = found.encoder.encode_queries(made.queries)
    values, read = {}, {}
    for rerank in (_ALL, _TENTH):
        with PrefetchedReranker(
            found.index,
            found.store,
            reader="memory",
            prefetch_step=1.0,
            rerank=rerank,
            weight=WEIGHT,
            nprobe=found.index.nlist,
        ) as reranker:
            gains, bytes_ = [], 0
            for place, answers in enumerate(made.answers):
                ranked = reranker.search(texts[place : place + 1], tokens[place : place + 1], _K)
                gains.append(ndcg(ranked.ids[0], answers))
                bytes_ += ranked.trace.read_bytes
        values[rerank], read[rerank] = float(np.mean(gains)), bytes_
    alone = found.index.search(texts, _K, nprobe=found.index.nlist).ids
    base = float(np.mean([ndcg(row, own) for row, own in zip(alone, made.answers, strict=True)]))
    print(
        f"{made.name}: nDCG@10 {values[_ALL]:.4f} by the tokens of 1,000 candidates, "
        f"{values[_TENTH]:.4f} of {_TENTH}, {base:.4f} by texts alone; "
        f"{read[_ALL] / read[_TENTH]:.1f}x fewer bytes"
    )
    name = made.name.split(",")[0].split()[0]
    return [
        Check(
            f"5 nDCG@10 of a tenth over all, {name}", values[_TENTH] / values[_ALL], 0.99, "higher"
        ),
        Check(f"5 bytes of all over a tenth, {name}", read[_ALL] / read[_TENTH], 10.0, "higher"),
    ]
