"""Profiles, cleans, scales, reduces and fits a table, and says how much memory that took.

Usage: python -m benchmarks.data._learning_memory FILE ROUNDS MEMORY. Prints one line of JSON:
anonymous bytes after the imports, and most of them until trees are fitted, seen every 20 ms.
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from steelyard.data.learning import BoostConfig, FitOptions, fit_table
from steelyard.data.pipeline import PCA, Impute, Outliers, Pipeline, Rescale
from steelyard.data.table import DataTable, ProfileFold


def _anonymous() -> int:
    """Return bytes of memory that are of no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon")


def _small() -> DataTable:
    """Return some rows in memory."""
    import polars as pl

    rng = np.random.default_rng(0)
    columns = {f"x{place}": rng.normal(size=2000) for place in range(3)}
    return DataTable.scan(pl.DataFrame(columns | {"y": rng.integers(0, 2, 2000)}))


def _fit(
    table: DataTable, size: int, rounds: int, memory: str, folder: Path | None = None
) -> float:
    """Prepare and fit a table; return the AUC of rows kept aside."""
    table.fold(ProfileFold(), memory=memory)
    names = tuple(name for name in table.schema.names if name != "y")
    steps = (
        Outliers(columns=names, rule="zscore", factor=8.0, action="clip"),
        Impute(columns=names, method="mean"),
        Rescale(columns=names),
        PCA(size=size, columns=names),
    )
    table = Pipeline(steps).fit(table, memory=memory).transform(table)
    boosting = BoostConfig(rounds=rounds, patience=0)
    options = FitOptions(target="y", memory=memory, boosting=boosting)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return fit_table(table, options, Path(name) / "work").scores[0].value


def main() -> None:
    """Fit, and look at the memory meanwhile."""
    path, rounds, memory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    # Libraries and kernels are loaded when they are first wanted: a small fit wants them all.
    _fit(_small(), 2, 2, memory)
    begun, most, over = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], _anonymous())
            time.sleep(0.02)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    area = _fit(DataTable.scan(path), 16, rounds, memory, Path(path).parent)
    over.set()
    watcher.join()
    values = {"begun": begun, "most": most[0], "auc": area}
    print(json.dumps(values))


if __name__ == "__main__":
    main()
