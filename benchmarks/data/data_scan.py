"""One scan of a table: what folds add to it, sketches beside Apache's, memory, and equal results.

1 divides the time of a pass that profiles every column (five sketches each), and of one with eight
Folds over all columns, by that of a pass that only reads and counts: of one of the eight alone.
2 folds with one and two workers. 3 times sketches beside `datasketches` in
turn, in the same run. 4 reads one large row group of Parquet, beside the whole group at once.
5 counts rows and rows set aside of files with planted faults.
6 profiles tables of many rows and of many columns with a budget, and compares what a process held
beyond its libraries with it.
7 to 9 compare forecasts of bytes, time and memory with what such passes take. 10 profiles drawn
tables by the command, one after another, and counts the times inside their intervals.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks import peers
from benchmarks.common import Check, alternate, median_spread, ratio
from benchmarks.data._scan_forecasts import forecast_checks
from benchmarks.serve._json_process import JsonProcess, peer_environment

from steelyard.data.sketch import HyperLogLog, KllQuantiles, hash_column
from steelyard.data.table import (
    CovarianceFold,
    DataTable,
    ProfileFold,
    RowCountFold,
    RowHashFold,
    folds,
)
from steelyard.errors import BackendError

PAPER = ["76-big-data-analytics"]
_COLUMNS = 14
_MEMORY = """
import sys
import pyarrow.parquet
from steelyard.data.table import DataTable, Quarantine
from steelyard.train.memory import peak_resident_bytes
table = DataTable.scan(sys.argv[1])
before = peak_resident_bytes()
if sys.argv[2] == "whole":
    rows = len(pyarrow.parquet.read_table(sys.argv[1]))
else:
    batches = table.read(table.partitions[0], Quarantine())
    rows = sum(len(batch) for batch in batches)
print(rows, peak_resident_bytes() - before)
"""

_BUDGET = """
import sys, threading
from pathlib import Path
import pyarrow
from steelyard.data.table import DataTable, ProfileFold

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

# Libraries and compiled kernels come in first: they are no part of what a budget bounds.
warm = pyarrow.table({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 0.25]})
DataTable.scan(warm).fold(ProfileFold(), memory="100MB")
before, peak, over = held(), 0, threading.Event()

def watch():
    global peak
    while not over.wait(0.002):
        peak = max(peak, held())

thread = threading.Thread(target=watch)
thread.start()
rows = DataTable.scan(sys.argv[1]).fold(ProfileFold(), memory=float(sys.argv[2])).rows
over.set()
thread.join()
print(rows, peak - before)
"""


def run(quick: bool) -> list[Check]:
    """Run the checks.

    Args:
        quick: fewer rows and rounds.

    Returns:
        The checks.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = _files(Path(folder) / "sales", 20_000 if quick else 250_000)
        table = DataTable.scan(files)
        checks = [
            *_fused(table, 3 if quick else 5),
            *_workers(table),
            *_sketches(Path(folder), 500_000 if quick else 5_000_000, 3 if quick else 7),
            *_row_group(Path(folder), 2_000_000 if quick else 20_000_000),
            *_budgets(Path(folder), files, 1_000 if quick else 20_000),
            *forecast_checks(Path(folder), quick),
        ]
    return checks


def _files(folder: Path, rows: int) -> Path:
    """Write four CSV files of 14 columns; one row in a thousand is broken."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    shops = np.array(["north", "south", "east", "west"])
    for name in range(4):
        numbers = rng.lognormal(3, 1, (rows, 10)).round(2)
        picked = shops[rng.integers(0, 4, rows)]
        with (folder / f"{name}.csv").open("w") as file:
            file.write("id,day,shop,note," + ",".join(f"v{place}" for place in range(10)) + "\n")
            for place in range(rows):
                values = ",".join(map(str, numbers[place].tolist()))
                if place % 1000 == 7:
                    values = "broken" + values[values.index(",") :]
                day = f"2026-{1 + place % 12:02d}-{1 + place % 28:02d}"
                file.write(
                    f"{name * rows + place},{day},{picked[place]},note {place % 97},{values}\n"
                )
    return folder


def _fused(table: DataTable, rounds: int) -> list[Check]:
    """Time a profile beside a plain pass."""
    eight = [
        RowCountFold(),
        RowHashFold(),
        CovarianceFold(),
        folds.moments(),
        folds.quantiles(whole=16_384),
        folds.distinct(),
        folds.frequent(),
        folds.count_min(),
    ]
    rivals: dict[str, Callable[[], object]] = {
        "plain": lambda: table.fold(eight[0]),
        "profile": lambda: table.fold(ProfileFold()),
        "eight": lambda: table.fold(*eight),
    }
    seconds = alternate(rivals, rounds=rounds)
    spread, of_eight = (ratio(seconds[name], seconds["plain"]) for name in ("profile", "eight"))
    found = table.fold(RowCountFold(), ProfileFold())
    rows, planted = found.rows, found.quarantine.total
    print(
        f"{rows:,} rows of {_COLUMNS} columns: a pass takes {np.median(seconds['plain']):.2f} s, "
        f"with a profile {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f}) times as "
        f"long, with eight folds {of_eight.median:.2f} ({of_eight.low:.2f} to {of_eight.high:.2f})"
    )
    parts = len(table.files)
    expected = sum(-(-(rows + planted) // parts // 1000) for _ in range(parts))
    return [
        Check("1 time of a pass with a profile over one without", spread.median, 1.3, "lower"),
        Check("1 time of eight folds over one of them alone", of_eight.median, 1.3, "lower"),
        Check("5 rows set aside less those planted", abs(planted - expected), 0, "lower"),
    ]


def _workers(table: DataTable) -> list[Check]:
    """Compare results of one and two workers."""
    one, two = (table.fold(ProfileFold(), workers=count) for count in (1, 2))
    differs = float(repr(one.results["profile"]) != repr(two.results["profile"]))
    return [Check("2 results that differ between one and two workers", differs, 0, "lower")]


def _sketches(folder: Path, count: int, rounds: int) -> list[Check]:
    """Time sketches beside Apache's."""
    import pyarrow as pa

    values = np.random.default_rng(1).standard_normal(count)
    path = folder / "values.npy"
    np.save(path, values)
    column = pa.array(values)
    program = str(Path(__file__).with_name("_sketches_program.py"))
    hint = "python -m benchmarks peers install datasketches"
    try:
        peer = JsonProcess(
            [str(peers.python("datasketches")), program], {}, peer_environment(), hint
        )
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return []
    ours: dict[str, list[float]] = {"quantiles": [], "distinct": []}
    theirs: dict[str, list[float]] = {"quantiles": [], "distinct": []}
    for turn in range(rounds + 1):
        told = peer.ask({"values": str(path), "k": 200, "precision": 14})
        own = _own(values, column)
        # The first round compiles.
        for name in ours if turn else ():
            ours[name].append(own[name])
            theirs[name].append(float(told[f"{name}_s"]))
    checks = []
    for name, bar in (("quantiles", 1.0), ("distinct", 5.0)):
        spread = ratio(theirs[name], ours[name])
        print(
            f"{name}: {median_spread(ours[name]).median / count * 1e9:.1f} ns a value, speed over "
            f"datasketches {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"
        )
        checks.append(Check(f"3 speed of {name} over datasketches", spread.median, bar, "higher"))
    return checks


def _own(values: np.ndarray, column) -> dict[str, float]:
    """Time our sketches; hashing counts, as it does inside the other's."""
    begin = time.perf_counter()
    KllQuantiles(200).update(values)
    middle = time.perf_counter()
    HyperLogLog(14).update(hash_column(column))
    return {"quantiles": middle - begin, "distinct": time.perf_counter() - middle}


def _row_group(folder: Path, rows: int) -> list[Check]:
    """Compare the memory of reading one row group batch by batch and at once."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(2)
    path = folder / "group.parquet"
    columns = {f"v{place}": rng.integers(0, 1 << 60, rows) for place in range(4)}
    parquet.write_table(
        pa.table(columns), path, row_group_size=rows, compression="none", use_dictionary=False
    )
    peaks = {}
    for how in ("whole", "batches"):
        told = subprocess.run(
            [sys.executable, "-c", _MEMORY, str(path), how],
            capture_output=True,
            text=True,
            check=True,
        )
        found, peak = map(int, told.stdout.split())
        assert found == rows
        peaks[how] = peak
    size = path.stat().st_size
    print(
        f"a row group of {size / 1e6:.0f} MB: {peaks['batches'] / 1e6:.0f} MB batch by batch, "
        f"{peaks['whole'] / 1e6:.0f} MB at once"
    )
    # A buffered reader was published to need 68 MB for 640; a fifth leaves room for a page.
    return [Check("4 memory of one row group over its size", peaks["batches"] / size, 0.2, "lower")]


def _budgets(folder: Path, tall: Path, rows: int) -> list[Check]:
    """Compare what a profile holds with its budget: of many rows, and of many columns."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(3)
    wide = folder / "wide.parquet"
    columns = {f"c{place}": rng.lognormal(size=rows).round(3) for place in range(600)}
    parquet.write_table(pa.table(columns), wide, row_group_size=rows)
    checks = []
    for name, path, budget in (("rows", tall, 150e6), ("columns", wide, 400e6)):
        told = subprocess.run(
            [sys.executable, "-c", _BUDGET, str(path), str(budget)],
            capture_output=True,
            text=True,
            check=True,
        )
        found, peak = map(int, told.stdout.split())
        print(
            f"many {name}: {found:,} rows held {peak / 1e6:.0f} MB of a budget of "
            f"{budget / 1e6:.0f} MB"
        )
        checks.append(Check(f"6 memory over the budget, many {name}", peak / budget, 1.3, "lower"))
    return checks
