"""`steelyard retrieve search`: passages that answer a text, or the nearest vectors of queries."""

import time
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import numpy as np

from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.build_texts import latest_index
from steelyard.cli.retrieve.search_texts import is_text_index, search_texts
from steelyard.errors import ConfigError
from steelyard.files import atomic_path
from steelyard.retrieve import Hits, open_index
from steelyard.retrieve.opening import is_index_file
from steelyard.retrieve.reading import VECTOR_SUFFIXES, read_vectors
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["hit_table", "hit_values", "search"]

_SHOWN = 10
_Words = Annotated[
    str,
    cyclopts.Parameter(
        help="A text to look for; or the file of an index of vectors and a .npy, .fvecs or .bvecs "
        "file of queries."
    ),
]
"""The help of arguments that may be many stands here: it is not read from a docstring."""


def search(
    *words: _Words,
    index: Path | None = None,
    encoder: Path | None = None,
    k: int = 10,
    nprobe: int = 0,
    rerank: int | None = None,
    out: Path | None = None,
    json: Switch = False,
) -> None:
    """Find the passages that answer a text, or the nearest vectors of queries.

    Example: steelyard retrieve search "how are backups made"

    Args:
        *words: a text to look for; or an index and a file of queries.
        index: folder of an index of texts; the one that was built last when not given.
        encoder: folder of a tower of queries that was trained or distilled for the tower of the
            index; the index's own encoder when not given.
        k: passages or neighbours of each query.
        nprobe: cells to look into; as many as the index was told to when 0.
        rerank: candidates per neighbour that are compared again by whole vectors.
        out: .npz file for the arrays ids and distances of vectors, one row per query.
        json: print JSON instead of tables: all hits of up to 1,000 queries.
    """
    require_range(0, nprobe=nprobe)
    first = Path(words[0]).expanduser() if words else Path()
    if index is None and _is_of_vectors(first, words):
        if len(words) != 2:
            raise ConfigError(
                f"{first} and {len(words) - 1} files of queries",
                hint="give an index of vectors and one file of queries",
            )
        if encoder is not None:
            raise ConfigError("--encoder is for texts", hint="a file of queries has their vectors")
        _search_vectors(first, Path(words[1]), k, nprobe, rerank, out, json)
        return
    if rerank is not None or out is not None:
        name = "--rerank" if rerank is not None else "--out"
        raise ConfigError(f"{name} is for vectors", hint="give an index and a file of queries")
    # A folder with an index in front of the text names it as --index does.
    is_named = index is None and len(words) > 1 and is_text_index(first)
    folder = first if is_named else (index or latest_index())
    told = " ".join(words[1:] if is_named else words)
    asked = [told] if told.strip() else []
    search_texts(folder, asked, encoder=encoder, k=k, nprobe=nprobe, json=json)


def _is_of_vectors(first: Path, words: tuple[str, ...]) -> bool:
    """Whether words name an index of vectors, or a file of queries behind what should be one."""
    if len(words) == 2 and Path(words[1]).suffix in VECTOR_SUFFIXES:
        return not is_text_index(first)
    # A word of a text may be the name of a file; alone it is one only where it holds an index.
    return first.is_file() and (len(words) > 1 or is_index_file(first))


def _search_vectors(
    index: Path,
    queries: Path,
    k: int,
    nprobe: int,
    rerank: int | None,
    out: Path | None,
    json: bool,
) -> None:
    """Find the nearest vectors of each query."""
    found = open_index(index)
    asked = np.asarray(read_vectors(queries))
    began_s = time.perf_counter()
    hits = found.search(asked, k, nprobe=nprobe or None, rerank=rerank)
    took_s = time.perf_counter() - began_s
    if out is not None:
        with atomic_path(out) as beside, beside.open("wb") as file:
            np.savez(file, ids=hits.ids, distances=hits.distances)
    facts = Facts(
        [
            ("queries", f"{len(asked):,}", ""),
            ("time", pretty(took_s, "s"), "measured"),
            ("compared per query", f"{hits.stats.scanned / len(asked):,.0f} of {len(found):,}", ""),
            ("cells per query", f"{hits.stats.probed / len(asked):,.0f} of {found.nlist:,}", ""),
        ]
    )
    sections = [Section("Search", [facts]), Section("Hits", [hit_table(hits)])]
    page = Report(f"Nearest vectors in {index}", found.kind, sections)
    print_report(page, json=json, values=hit_values(hits, took_s))


def hit_table(hits: Hits) -> Table:
    """List the hits of the first queries."""
    rows: list[list[Cell]] = []
    for query in range(min(_SHOWN, len(hits.ids))):
        pairs = zip(hits.ids[query].tolist(), hits.distances[query].tolist(), strict=True)
        told = "  ".join(f"{number} ({distance:.4g})" for number, distance in pairs if number >= 0)
        rows.append([query, told])
    left = len(hits.ids) - _SHOWN
    caption = f"and {left:,} more queries; --out keeps all" if left > 0 else ""
    return Table([Column("query"), Column("vectors (distance), nearest first")], rows, caption)


def hit_values(hits: Hits, took_s: float) -> dict[str, Any]:
    """Return the figures, for programs."""
    return {
        "seconds": took_s,
        "scanned": hits.stats.scanned,
        "probed": hits.stats.probed,
        "reranked": hits.stats.reranked,
        "ids": hits.ids[:1000].tolist(),
        "distances": hits.plain_distances(1000),
    }
