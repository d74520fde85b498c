"""A ledger of scans: forecasts of tables that nobody tuned on, as users profile them, one by one.

Tables are drawn: their format, rows, columns, kinds of columns, how varied values are, and where
they lie in row groups. Each is profiled by the command in a process of its own; all share one
ledger, from which intervals learn. The first passes have none to learn from, and count.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import Check

__all__ = ["ledger_checks"]

_SEED = 4_000
_VALUES = (200_000, 6_000_000)
_ENDS = (".csv", ".parquet", ".arrow", ".jsonl", ".csv.gz")
_SHARES = (0.35, 0.35, 0.12, 0.1, 0.08)
_READ = """
import json
from steelyard.runs.ledger import Ledger
from steelyard.runs.store import RunStore
found = [
    [item.forecast.quantity, item.forecast.value, item.forecast.low, item.forecast.high,
     item.measurement.value]
    for _, item in Ledger(RunStore.existing()).checks("cost.scan")
]
print(json.dumps(found))
"""


def ledger_checks(folder: Path, home: Path, runs: int) -> list[Check]:
    """Profile drawn tables and compare what was measured with the intervals.

    Args:
        folder: place for one table at a time.
        home: folder of the user's own, with rates that were measured before.
        runs: tables.

    Returns:
        Checks of the intervals of time; those of memory are printed.
    """
    folder.mkdir()
    environment = os.environ | {"STEELYARD_HOME": str(home)}
    for run in range(runs):
        path = _drawn(folder, np.random.default_rng(_SEED + run))
        command = [sys.executable, "-m", "steelyard", "data", "table", "profile", str(path)]
        subprocess.run([*command, "--json"], check=True, env=environment, capture_output=True)
        path.unlink()
    told = subprocess.run(
        [sys.executable, "-c", _READ], check=True, env=environment, capture_output=True, text=True
    )
    found = json.loads(told.stdout)
    checks = []
    for quantity in ("scan.duration", "scan.peak_memory"):
        own = np.array([item[1:] for item in found if item[0] == quantity])
        value, low, high, measured = own.T
        inside = float(np.mean((low <= measured) & (measured <= high)))
        errors = np.abs(np.log(measured / value))
        width = float(np.median(np.log(high / low) / 2) / np.median(errors))
        print(
            f"{quantity}: {len(own)} passes, {inside:.1%} inside, median error "
            f"{np.median(errors):.1%}, at 90 % {np.quantile(errors, 0.9):.0%}; measured over "
            f"forecast, median {np.median(measured / value):.2f}"
        )
        if quantity == "scan.duration":
            checks += [
                Check("10 times inside their intervals, least", inside, 0.7, "higher"),
                Check("10 times inside their intervals, most", inside, 0.9, "lower"),
                Check("10 half-width over the median error, times", width, 2.5, "lower"),
            ]
    return checks


def _drawn(folder: Path, rng: np.random.Generator) -> Path:
    """Write a drawn table."""
    import pyarrow as pa

    values = np.exp(rng.uniform(*np.log(_VALUES)))
    columns = int(np.exp(rng.uniform(np.log(2), np.log(500))))
    end = str(rng.choice(_ENDS, p=_SHARES))
    # Python reads JSON lines, twenty times slower than the others.
    rows = max(int(values / columns / (10 if end == ".jsonl" else 1)), 20)
    made = pa.table({f"c{place}": _column(rows, rng) for place in range(columns)})
    path = folder / f"table{end}"
    _write(made, path, rng)
    return path


def _column(rows: int, rng: np.random.Generator) -> Any:
    """Draw a column of a kind."""
    import pyarrow as pa

    kind = rng.choice(["count", "number", "rounded", "word", "text", "flag", "day", "time"])
    many = int(np.exp(rng.uniform(np.log(2), np.log(50_000))))
    drawn = (rng.pareto(1.0, rows) * 3).astype(np.int64) % many
    if kind == "count":
        return pa.array(drawn * int(rng.integers(1, 9)))
    if kind == "number":
        return pa.array(rng.gamma(2.0, 30.0, rows))
    if kind == "rounded":
        return pa.array(rng.gamma(2.0, 30.0, rows).round(int(rng.integers(0, 4))))
    if kind == "word":
        return pa.array(np.array([f"w{number}" for number in range(many)])[drawn])
    if kind == "text":
        width = int(rng.integers(5, 60))
        letters = rng.integers(97, 123, (rows, width), np.uint8)
        return pa.array(letters.view(f"S{width}").ravel().astype(str))
    if kind == "flag":
        return pa.array(drawn % 2 == 0)
    if kind == "day":
        return pa.array((15_000 + drawn % 5000).astype(np.int32)).cast(pa.date32())
    return pa.array(1_500_000_000 + drawn * 61).cast(pa.timestamp("s"))


def _write(table: Any, path: Path, rng: np.random.Generator) -> None:
    """Write a table in the format that its name ends with."""
    import gzip
    import io

    import polars as pl
    import pyarrow as pa
    from pyarrow import csv, parquet

    if path.suffix == ".parquet":
        groups = int(rng.choice([20_000, 100_000, 1_000_000]))
        how = str(rng.choice(["snappy", "zstd", "none"]))
        parquet.write_table(table, path, row_group_size=groups, compression=how)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=int(rng.choice([8192, 65_536])))
    elif path.suffix == ".jsonl":
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        frame.write_ndjson(path)
    elif path.suffix == ".gz":
        text = io.BytesIO()
        csv.write_csv(table, text)
        path.write_bytes(gzip.compress(text.getvalue(), 4))
    else:
        csv.write_csv(table, path)
