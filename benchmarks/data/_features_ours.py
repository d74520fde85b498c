"""CSV to clean rows to features with Steelyard.

Usage: python -m benchmarks.data._features_ours FOLDER OUT WORKERS [MEMORY] makes features once and
prints one line of JSON: seconds, rows, and with a budget the anonymous bytes beyond those after
the imports.
"""

import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from steelyard.data.pipeline import DateParts, Impute, Log, OneHot, Pipeline, Rescale
from steelyard.data.table import DataTable, parsed_once

__all__ = ["make_features"]

_STEPS = (
    Impute(columns=("quantity",), method="mean"),
    Log(columns=("price",)),
    Rescale(columns=("price", "v0", "v1", "v2", "v3")),
    OneHot(columns=("shop",)),
    DateParts(columns=("day",), parts=("month", "weekday")),
)


def make_features(folder: Path, out: Path, workers: int, memory: str = "") -> int:
    """Fit steps to a folder of CSV files, write what they make of it, and return its rows."""
    with tempfile.TemporaryDirectory(dir=out.parent) as kept:
        scanned = DataTable.scan(str(folder), types={"price": "number"})
        table = parsed_once(scanned, Path(kept))
        fitted = Pipeline(_STEPS).fit(table, memory=memory or None, workers=workers)
        made = fitted.transform(table)
        if memory:
            from steelyard.data.table.budget import FoldBudget
            from steelyard.units import parse

            made = made.with_limits(FoldBudget.to_write(made, parse(memory, "byte")))

        rows, _ = made.write(out, parts=".parquet", workers=workers)
    return rows


def _anonymous() -> int:
    """Return bytes of memory that are of no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon")


def main() -> None:
    """Make features once."""
    folder, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    memory = sys.argv[4] if len(sys.argv) > 4 else ""
    begun, most, over = 0, [0], threading.Event()
    if memory:
        small = folder.parent / "small"
        make_features(small, out, 1, memory)
        shutil.rmtree(out)
        begun = _anonymous()

        def watch() -> None:
            while not over.is_set():
                most[0] = max(most[0], _anonymous())
                time.sleep(0.01)

        threading.Thread(target=watch, daemon=True).start()
    begin = time.perf_counter()
    rows = make_features(folder, out, workers, memory)
    seconds = time.perf_counter() - begin
    over.set()
    print(json.dumps({"seconds": seconds, "rows": rows, "used": max(most[0] - begun, 0)}))


if __name__ == "__main__":
    main()
