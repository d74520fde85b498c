"""`steelyard retrieve towers encode`: a file of vectors from a column of texts."""

import time
from pathlib import Path

from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, print_report
from steelyard.cli.places import require_place
from steelyard.cli.retrieve.towers.texts import texts_of
from steelyard.retrieve.towers import load_encoder
from steelyard.retrieve.towers.bulk import encode_file
from steelyard.runs.report import Facts, Report, Section
from steelyard.units import pretty

__all__ = ["encode"]


def encode(
    encoder: Path, texts: Path, *, document: str = "document", out: Path, json: Switch = False
) -> None:
    """Turn texts into vectors; goes on where it was killed, and names the encoder beside.

    Example: steelyard retrieve towers encode towers/documents papers.jsonl --document abstract
    --out vectors.npy

    Args:
        encoder: folder of `steelyard retrieve towers train`, or of sentence-transformers.
        texts: file of JSON lines, CSV or Parquet.
        document: column of texts.
        out: .npy file with a row for each text, zeros for an empty one; NAME.npy.json beside it
            says which encoder made it.
        json: print JSON instead of a table.
    """
    require_place(out)
    found = load_encoder(encoder)
    rows = texts_of(texts, document)[0]
    begin_s = time.perf_counter()
    empty = encode_file(found, rows, out)
    took_s = time.perf_counter() - begin_s
    values = {
        "encoder": found.fingerprint,
        "rows": len(rows),
        "empty": empty,
        "dim": found.dim,
        "seconds": took_s,
    }
    facts = Facts(
        [
            ("encoder", found.fingerprint, ""),
            ("texts", f"{len(rows):,}", f"{empty:,} of them empty"),
            ("numbers in a vector", f"{found.dim:,}", ""),
            ("took", pretty(took_s, "s"), "measured"),
        ]
    )
    print_report(
        Report(f"Vectors in {out}", "", [Section("Encoded", [facts])]), json=json, values=values
    )
    if not json:
        say_next("retrieve", "build", out, "--metric", "ip", "--out", out.with_suffix(".index"))
