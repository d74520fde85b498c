"""Traces to files that `read_rows` reads."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from steelyard.files import atomic_path
from steelyard.serve.traces.record import TraceRow

__all__ = ["write_rows"]


def write_rows(path: Path, rows: Sequence[TraceRow]) -> None:
    """Write a trace: JSON lines where prompts have hashes, else CSV; whole or not at all.

    Args:
        path: the file.
        rows: rows by arrival.
    """
    with atomic_path(path) as beside, beside.open("w", encoding="utf-8", newline="") as stream:
        if any(row.hash_ids for row in rows):
            stream.writelines(json.dumps(_line(row)) + "\n" for row in rows)
            return
        writer = csv.writer(stream, lineterminator="\n")
        names = ("client", "session", "think_s")
        plain = TraceRow(arrival_s=0.0, input_tokens=1, output_tokens=1)
        told = [n for n in names if any(getattr(row, n) != getattr(plain, n) for row in rows)]
        writer.writerow(["arrival_s", "input_tokens", "output_tokens", *told])
        writer.writerows(
            [
                f"{row.arrival_s:.6f}",
                row.input_tokens,
                row.output_tokens,
                *(getattr(row, name) for name in told),
            ]
            for row in rows
        )


def _line(row: TraceRow) -> dict[str, object]:
    """Return a row as Mooncake writes it, with what ours may add."""
    line: dict[str, object] = {
        "timestamp": round(row.arrival_s * 1e3, 3),
        "input_length": row.input_tokens,
        "output_length": row.output_tokens,
        "hash_ids": list(row.hash_ids),
        "block_tokens": row.block_tokens,
    }
    told = {"client": row.client, "session": row.session, "think_s": row.think_s}
    return line | {name: value for name, value in told.items() if value not in ("default", "", 0.0)}
