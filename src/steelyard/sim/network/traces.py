"""Traffic of one's own, from a CSV file of flows."""

import csv
from pathlib import Path

import numpy as np

from steelyard.errors import TraceError
from steelyard.sim.network.flows import Flows

__all__ = ["read_flows"]

_NEEDED = ("source", "target", "bytes")
_MOST_ROWS = 5_000_000


def read_flows(path: Path) -> Flows:
    """Read flows from a CSV file.

    Args:
        path: file with columns source and target (hosts, from 0), bytes, and start_s where flows
            do not start together; others are passed over.

    Returns:
        The flows, in the file's order; rows from a host to itself are left out.

    Raises:
        TraceError: the file cannot be read, a column is missing, or a cell is no such number.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            names = rows.fieldnames or []
            missing = [name for name in _NEEDED if name not in names]
            if missing:
                raise TraceError(
                    f"{path}: no column {', '.join(missing)}",
                    hint=f"the first line names the columns; it has {', '.join(names)}",
                )
            cells = [_cells(path, line, row) for line, row in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}", hint="give a CSV file of flows") from error
    kept = [row for row in cells if row[0] != row[1]]
    if not kept:
        raise TraceError(f"{path}: no flow between two hosts", hint="add rows below the first line")
    source, target, size, start = zip(*kept, strict=True)
    return Flows(np.array(source), np.array(target), np.array(size), np.array(start))


def _cells(path: Path, line: int, row: dict[str, str]) -> tuple[int, int, float, float]:
    """Read a line of the file; the first has number 2."""
    if line > _MOST_ROWS:
        raise TraceError(f"{path}: more than {_MOST_ROWS:,} flows", hint="give a part of the trace")
    name = ""
    try:
        ends = []
        for name in ("source", "target"):
            ends.append(int(row[name]))
            if not 0 <= ends[-1] < 2**31:
                raise ValueError
        numbers = []
        for name, least in (("bytes", 0.0), ("start_s", -1.0)):
            numbers.append(float(row.get(name) or 0.0))
            if not (least < numbers[-1] < 1e18) or (name == "start_s" and numbers[-1] < 0):
                raise ValueError
    except (TypeError, ValueError):
        raise TraceError(
            f"{path}, line {line}: {name} is {row.get(name)!r}",
            hint="hosts are whole numbers from 0, bytes above 0, start_s at least 0",
        ) from None
    return ends[0], ends[1], numbers[0], numbers[1]
