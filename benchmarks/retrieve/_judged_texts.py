"""The Cranfield collection: abstracts, queries and judgements."""

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JudgedTexts:
    """A test collection.

    Attributes:
        documents: names and texts of those that have one.
        queries: texts.
        relevant: names of the relevant documents of each query.
    """

    documents: list[tuple[str, str]]
    queries: list[str]
    relevant: list[set[str]]

    @classmethod
    def read(cls, folder: Path) -> "JudgedTexts":
        """Read the collection."""
        rows = _lines(folder / "docs.jsonl.gz")
        asked = _lines(folder / "queries.jsonl.gz")
        found: dict[str, set[str]] = {}
        with (folder / "qrels.tsv").open(newline="") as file:
            for query, document, *_ in csv.reader(file, delimiter="\t"):
                found.setdefault(query, set()).add(document)
        documents = [(str(row["id"]), row["text"]) for row in rows if row["text"].strip()]
        relevant = [found.get(str(row["id"]), set()) for row in asked]
        return cls(documents, [row["text"] for row in asked], relevant)

    def gains(self, ranked: list[list[str]], k: int = 10) -> NDArray[np.float64]:
        """Return nDCG@k of each query, all relevant documents alike."""
        weights = 1 / np.log2(np.arange(k) + 2)
        found = []
        for names, wanted in zip(ranked, self.relevant, strict=True):
            hits = np.array([name in wanted for name in names[:k]], float)
            best = weights[: min(k, len(wanted))].sum()
            found.append(float((hits * weights[: len(hits)]).sum() / best) if best else 0.0)
        return np.array(found)


def _lines(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]
