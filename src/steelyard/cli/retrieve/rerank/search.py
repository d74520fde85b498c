"""`steelyard retrieve rerank search`: texts ordered by token vectors from a drive."""

from pathlib import Path
from typing import Any, Literal

from steelyard.catalog import storage_tier
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.multivector import PrefetchedReranker, RankedDocuments, ThrottledReader
from steelyard.retrieve.multivector.folder import WEIGHT, RerankFolder
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["read_queries", "search"]

_SNIPPET = 160


def search(
    folder: Path,
    query: str = "",
    *,
    queries: Path | None = None,
    k: int = 10,
    rerank: int = 128,
    prefetch: float = 0.2,
    reader: Literal["threads", "mmap", "memory"] = "threads",
    drive: str = "",
    depth: int = 32,
    nprobe: int = 0,
    json: Switch = False,
) -> None:
    """Find texts; documents are read from the drive while their candidates are searched.

    Example: steelyard retrieve rerank search papers "heat transfer in a slender body"

    Args:
        folder: folder that `steelyard retrieve rerank build` wrote.
        query: what to look for.
        queries: file with a query in each line, in its place; queries of a call share reads.
        k: texts of each query.
        rerank: candidates that are ranked by their words; the rest follow in the index's order.
        prefetch: share of the search after which reads begin; 1 for none before its end.
        reader: threads reads past the page cache; mmap and memory are there to compare.
        drive: play a drive of the catalog, such as 870-evo, instead of using this machine's.
        depth: reads under way at once.
        nprobe: cells to look into; as many as the index was built for when 0.
        json: print JSON instead of tables.
    """
    require_range(1, k=k, rerank=rerank, depth=depth)
    require_range(0, nprobe=nprobe)
    require_range(0, 1, is_open=True, prefetch=prefetch)
    asked = _asked(query, queries)
    found = RerankFolder.open(folder)
    source = ThrottledReader(found.store, storage_tier(drive), depth=depth) if drive else reader
    texts, tokens = found.encoder.encode_queries(asked)
    with PrefetchedReranker(
        found.index,
        found.store,
        reader=source,
        prefetch_step=prefetch,
        rerank=rerank,
        depth=depth,
        weight=WEIGHT,
        nprobe=nprobe,
        encoder=found.encoder.fingerprint,
    ) as reranker:
        # The first search loads kernels, which is no part of what is shown.
        reranker.search(texts[:1], tokens[:1], k)
        ranked = reranker.search(texts, tokens, k)
    # A query without a known word is as near to any text: nothing answers it.
    is_known = [bool(text.any()) or len(own) > 0 for text, own in zip(texts, tokens, strict=True)]
    answers = [
        _answers(found, ranked, place) if is_known[place] else [] for place in range(len(asked))
    ]
    values = {
        "queries": [
            {"query": text, "answers": rows} for text, rows in zip(asked, answers, strict=True)
        ],
        "trace": ranked.trace.values(),
    }
    shown = zip(asked[:10], answers, strict=False)
    tables = [Section(text, [_table(rows)]) for text, rows in shown]
    page = Report(f"Texts of {folder}", "", [*tables, Section("Search", [_facts(ranked)])])
    print_report(page, json=json, values=values)


def _asked(query: str, queries: Path | None) -> list[str]:
    """Return the queries."""
    if bool(query.strip()) == (queries is not None):
        raise ConfigError("give either a query or --queries", hint="one of them, not both")
    if queries is None:
        return [query]
    return read_queries(queries)


def read_queries(path: Path) -> list[str]:
    """Read queries, one in each line.

    Args:
        path: the file.

    Returns:
        Lines that are not blank.

    Raises:
        DataError: it cannot be read, or holds none.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataError(
            f"cannot read queries from {path}: {reason}", hint="give a file with one in each line"
        ) from error
    if not any(lines):
        raise DataError(f"{path} holds no query", hint="write one in each line")
    return [line for line in lines if line]


def _answers(found: RerankFolder, ranked: RankedDocuments, place: int) -> list[dict[str, Any]]:
    """Return the texts of one query."""
    pairs = zip(ranked.ids[place].tolist(), ranked.scores[place].tolist(), strict=True)
    return [
        {
            "document": number,
            "score": score,
            "source": found.passages.source(number),
            "text": found.passages.text(number),
        }
        for number, score in pairs
        if number >= 0
    ]


def _table(rows: list[dict[str, Any]]) -> Table:
    """List texts."""
    cells: list[list[Cell]] = [
        [row["score"], row["source"], " ".join(row["text"].split())[:_SNIPPET]] for row in rows
    ]
    told = "" if rows else "no word of it is known"
    return Table([Column("score"), Column("source"), Column("text")], cells, told)


def _facts(ranked: RankedDocuments) -> Facts:
    """Say what the search did."""
    trace = ranked.trace
    facts = [
        ("time", pretty(trace.total_s, "s"), "measured"),
        ("search before reads", pretty(trace.early_s, "s"), ""),
        ("search beside reads", pretty(trace.beside_s, "s"), ""),
        ("waiting for reads", pretty(trace.stall_s, "s"), ""),
        ("reads of what was missed", pretty(trace.late_s, "s"), ""),
        ("read", f"{trace.reads:,} documents, {pretty(trace.read_bytes, 'byte')}", ""),
        ("guessed early", f"{trace.hit_rate:.0%} of the candidates", ""),
        ("damaged, left out", f"{trace.damaged:,}", ""),
    ]
    return Facts([*facts, ("note", trace.note, "")] if trace.note else facts)
