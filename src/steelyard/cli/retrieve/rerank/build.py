"""`steelyard retrieve rerank build`: token vectors of texts on a drive."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from steelyard.cli.following import say_next
from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cli.retrieve.rerank.texts import read_texts
from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.multivector.folder import ABOUT, ENCODER, RerankFolder, build_folder
from steelyard.runs.progress import progress
from steelyard.runs.report import Facts, Report, Section
from steelyard.units import pretty

__all__ = ["build"]


def build(
    source: Path,
    *,
    out: Path,
    column: str = "text",
    words: int = 200,
    dtype: Literal["fp16", "int8", "pq"] = "fp16",
    block: int = 4096,
    max_tokens: int = 512,
    long: Literal["split", "truncate", "error"] = "split",
    token_dim: int = 32,
    json: Switch = False,
) -> None:
    """Encode texts word by word; words go to the drive, a small index stays in memory.

    The same command after an interruption goes on where it was.

    Example: steelyard retrieve rerank build papers.jsonl --out papers

    Args:
        source: table with a column of texts (.jsonl, .ndjson, .parquet, .csv), text file or folder.
        out: folder for all that is built; an older one is replaced at the end.
        column: column with the texts, of a table.
        words: most words of a passage that files are cut into; rows of a table stay whole.
        dtype: what words are kept as: fp16, int8, or pq (short codes).
        block: bytes of a block that is read at once, a multiple of 512.
        max_tokens: words of a record at most.
        long: longer documents: split goes on in a second record, truncate leaves the rest out and
            counts it, error refuses.
        token_dim: numbers in the vector of a word.
        json: print JSON instead of a table.
    """
    require_range(1, words=words, max_tokens=max_tokens)
    require_range(4, token_dim=token_dim)
    require_range(512, block=block)
    if block % 512:
        raise ConfigError(f"--block is {block}, but must be a multiple of 512")
    _require_own(out)
    began_s = time.perf_counter()
    with progress("build", total=1.0, quiet=json) as advance:
        texts = read_texts(source, column=column, words=words)
        advance(0.1, f"{len(texts):,} texts")
        made = build_folder(
            out,
            texts,
            dtype=dtype,
            block=block,
            max_tokens=max_tokens,
            long=long,
            token_dim=token_dim,
        )
        advance(1.0, "done")
    _show(made, out, dtype, long, time.perf_counter() - began_s, json)
    if not json:
        say_next("retrieve", "rerank", "search", out, "what to look for")


def _require_own(out: Path) -> None:
    """Refuse a folder that holds something else than an earlier or an interrupted build."""
    require_place(out, "a folder")
    is_begun = any((out / name).exists() for name in (ABOUT, ENCODER))
    if out.exists() and any(out.iterdir()) and not is_begun:
        raise DataError(f"--out {out} holds something else", hint="name an empty or new folder")


def _show(made: RerankFolder, out: Path, dtype: str, long: str, took_s: float, json: bool) -> None:
    """Print what was built."""
    counts, store = made.store.counts, made.store
    index_bytes = sum(made.index.memory_bytes().values())
    table_bytes = sum(store.memory_bytes().values())
    records_bytes = store.records.stat().st_size
    facts = [
        ("documents", f"{counts.documents:,}, {counts.tokens:,} words", ""),
        ("without known words", f"{counts.empty:,}", "ranked by their text's vector alone"),
        ("longer than a record", f"{counts.split:,} split, {counts.truncated:,} truncated", long),
        ("words left out", f"{counts.lost_tokens:,}", ""),
        ("on the drive", pretty(records_bytes, "byte"), dtype),
        ("in memory", pretty(index_bytes + table_bytes, "byte"), "index and table"),
        ("with words in memory", pretty(index_bytes + records_bytes, "byte"), "for comparison"),
        ("time", pretty(took_s, "s"), "measured"),
    ]
    page = Report(f"Token vectors in {out}", dtype, [Section("Store", [Facts(facts)])])
    values = {
        "counts": asdict(counts),
        "layout": asdict(store.layout),
        "encoder": store.encoder,
        "index_bytes": index_bytes,
        "table_bytes": table_bytes,
        "records_bytes": records_bytes,
        "seconds": took_s,
    }
    print_report(page, json=json, values=values)
