"""`steelyard retrieve search "words"`: passages with file and line."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steelyard.cli.output import print_report
from steelyard.errors import ConfigError
from steelyard.retrieve.corpus import CorpusAnswer, CorpusIndex
from steelyard.retrieve.datastore import PassageEncoder
from steelyard.runs.report import Cell, Column, Report, Section, Table
from steelyard.units import pretty

__all__ = ["asking_parameters", "is_text_index", "query_tower", "search_texts"]


def is_text_index(path: Path) -> bool:
    """Whether a folder holds an index of texts."""
    return (path / "corpus.json").is_file()


def search_texts(
    folder: Path,
    queries: Sequence[str],
    *,
    encoder: Path | None = None,
    k: int,
    nprobe: int,
    json: bool,
) -> None:
    """Print the passages that answer queries.

    Args:
        folder: index of texts.
        queries: texts.
        encoder: folder of a tower of queries for this index; None for the index's own encoder.
        k: passages of each.
        nprobe: cells to look into; the index's own number when 0.
        json: print JSON instead of tables.
    """
    tower = query_tower(encoder) if encoder else None
    index = CorpusIndex.asked_by(folder, tower) if tower else CorpusIndex(folder)
    if not queries:
        raise ConfigError("no query is given", hint="steelyard retrieve search 'what you look for'")
    began_s = time.perf_counter()
    found = index.search_all(queries, k, nprobe=nprobe or None)
    took_s = time.perf_counter() - began_s
    told = f"{len(index):,} passages in {pretty(took_s / len(queries), 's')} a query"
    sections = [
        Section(query, [_table(answers)]) for query, answers in zip(queries, found, strict=True)
    ]
    page = Report("Passages", told, sections)
    values: dict[str, Any] = {
        "index": str(folder),
        "seconds": took_s,
        "queries": [
            {"query": query, "answers": [asdict(answer) for answer in answers]}
            for query, answers in zip(queries, found, strict=True)
        ],
    }
    print_report(page, json=json, values=values)


def query_tower(folder: Path) -> PassageEncoder:
    """Return the tower in a folder that encodes queries.

    Args:
        folder: what `steelyard retrieve towers distill` or `train` wrote.

    Returns:
        The tower.

    Raises:
        DataError: there is none.
    """
    from steelyard.retrieve.towers import load_encoder

    return load_encoder(folder)


def asking_parameters(index: CorpusIndex) -> int:
    """Return the parameters of the tower that encodes the queries of an index.

    Args:
        index: index of texts.

    Returns:
        Parameters without embeddings.

    Raises:
        ConfigError: the index is not asked by a tower.
    """
    from steelyard.cli.retrieve.towers.texts import parameters_of
    from steelyard.retrieve.towers import QueryEncoder, TowerEncoder

    found = index.store.encoder
    inner = found.encoder if isinstance(found, QueryEncoder) else found
    if not isinstance(inner, TowerEncoder):
        raise ConfigError(
            f"--plan is for towers, and {index.folder} has none",
            hint="build it with --encoder towers/documents",
        )
    return parameters_of(inner.tower)


def _table(answers: Sequence[CorpusAnswer]) -> Table:
    """List passages with their places."""
    rows: list[list[Cell]] = [
        [f"{answer.score:.2f}", f"{_near(answer.path)}:{answer.line}", answer.snippet]
        for answer in answers
    ]
    columns = [Column("score", align="right"), Column("place"), Column("text")]
    return Table(columns, rows, "" if rows else "nothing shares a word with it")


def _near(path: str) -> str:
    """Return a path as seen from here, where it lies below."""
    here = Path.cwd()
    found = Path(path)
    return str(found.relative_to(here)) if found.is_relative_to(here) else path
