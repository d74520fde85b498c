"""Boosted trees on tables larger than memory beside learners in memory, and what they take.

1 compares AUC and time with scikit-learn's histogram trees, the same rows, rounds, leaves and rate,
in turn in one run; LightGBM and XGBoost, in memory and from files, stand beside. 2 profiles,
cleans, scales, reduces to 16 components and fits a table of ten times the budget in a process of
its own, and watches its memory. The other checks are those of `_analytics_learners` and
`_analytics_preparing`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from benchmarks import peers
from benchmarks.common import Check, ratio
from benchmarks.data._analytics_learners import learner_checks
from benchmarks.data._analytics_preparing import preparing_checks
from benchmarks.serve._json_process import JsonProcess, peer_environment

from steelyard.data.learning import BoostConfig, FitOptions, fit_table
from steelyard.data.sketch.hashing import hash_integers
from steelyard.data.table import DataTable
from steelyard.errors import BackendError

PAPER = ["76-big-data-analytics"]

_COLUMNS, _THREADS = 30, 2
_PEERS = ("scikit-learn", "lightgbm", "xgboost", "xgboost from files")


def run(quick: bool) -> list[Check]:
    """Make tables, and fit them."""
    rows, rounds, repeats = (100_000, 30, 2) if quick else (1_000_000, 100, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checks = [*_beside(folder, rows, rounds, repeats), *preparing_checks(folder, quick)]
        budget, large = (60, 1_250_000) if quick else (300, 12_500_000)
        checks += _memory(folder, large, budget, 5 if quick else 20)
    return [*checks, *learner_checks(quick)]


def _write(path: Path, rows: int) -> None:
    """Write a table of numbers with gaps, whose class depends on a few of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, rows, 250_000):
        count = min(250_000, rows - first)
        x = rng.normal(size=(count, _COLUMNS))
        logit = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) + (x[:, 4] > 0) / 2
        y = rng.random(count) < 1 / (1 + np.exp(-logit))
        x[rng.random(x.shape) < 0.05] = np.nan
        columns = {f"x{place}": x[:, place] for place in range(_COLUMNS)}
        table = pa.table(columns | {"y": y.astype(np.int8)})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table, row_group_size=62_500)
    assert writer is not None
    writer.close()


def _beside(folder: Path, rows: int, rounds: int, repeats: int) -> list[Check]:
    """Fit ours and the peers' in turn."""
    path = folder / "table.parquet"
    _write(path, rows)
    try:
        program = str(Path(__file__).with_name("_tabular_program.py"))
        hint = "python -m benchmarks peers install tabular"
        environment = peer_environment() | {"OMP_NUM_THREADS": str(_THREADS)}
        peer = JsonProcess([str(peers.python("tabular")), program], {}, environment, hint)
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return []
    _write_rows(path, folder / "rows.npz")
    peer.ask({"load": str(folder / "rows.npz")})
    seconds: dict[str, list[float]] = {name: [] for name in ("ours", *_PEERS)}
    areas: dict[str, float] = {}
    for _ in range(repeats):
        shown_s, took_s, areas["ours"] = _ours(path, folder, rounds)
        seconds["ours"].append(took_s)
        for name in _PEERS:
            told = peer.ask({"learner": name, "rounds": rounds, "threads": _THREADS})
            seconds[name].append(float(told["seconds"]))
            areas[name] = float(told["auc"])
        print("ours: " + ", ".join(f"{what} {part:.1f} s" for what, part in shown_s.items()))
    for name, values in seconds.items():
        print(f"{name:18s} {statistics.median(values):7.1f} s   AUC {areas[name]:.4f}")
    speed = ratio(seconds["scikit-learn"], seconds["ours"])
    print(
        f"speed over scikit-learn {speed.median:.2f} ({speed.low:.2f} to {speed.high:.2f}); ours "
        "reads the file twice meanwhile, the others have the rows in memory"
    )
    apart = abs(areas["ours"] - areas["scikit-learn"])
    return [
        Check("1 AUC off that of scikit-learn", apart, 0.003, "lower"),
        Check("1 speed over scikit-learn", speed.median, 0.7, "higher"),
    ]


def _write_rows(path: Path, out: Path) -> None:
    """Write the rows for learners in memory, with those that ours keeps aside."""
    frame = pl.read_parquet(path)
    drawn = hash_integers(np.arange(len(frame))) ^ hash_integers(np.array([0], np.int64))
    held = hash_integers(drawn.view(np.int64)) < np.uint64(int(0.2 * (2.0**64 - 2**12)))
    np.savez(out, x=frame.drop("y").to_numpy(), y=frame["y"].to_numpy(), held=held)


def _ours(path: Path, folder: Path, rounds: int) -> tuple[dict[str, float], float, float]:
    """Return seconds of each stage, seconds of all, and AUC."""
    table = DataTable.scan(str(path))
    began_s, begun = time.perf_counter(), {}

    def done(what: str, share: float) -> None:
        begun.setdefault(what, time.perf_counter())

    options = FitOptions(
        target="y",
        boosting=BoostConfig(rounds=rounds, patience=0, threads=_THREADS),
    )
    found = fit_table(table, options, folder / "work", done=done)
    ended_s = time.perf_counter()
    stages = {"bins": began_s, "codes": begun["codes"], "trees": begun["trees"]}
    ends = [*list(stages.values())[1:], ended_s]
    parts = {what: end - begin for (what, begin), end in zip(stages.items(), ends, strict=True)}
    return parts, ended_s - began_s, found.scores[0].value


def _memory(folder: Path, rows: int, budget: int, rounds: int) -> list[Check]:
    """Fit a table of ten times the budget."""
    path = folder / "large.parquet"
    _write(path, rows)
    size = path.stat().st_size
    words = ["-m", "benchmarks.data._learning_memory", str(path), str(rounds), f"{budget}MB"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"the fit of {size / 1e9:.1f} GB failed: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    used = told["most"] - told["begun"]
    print(
        f"{size / 1e9:.2f} GB under {budget} MB: {told['begun'] / 1e6:.0f} MB after imports, "
        f"{used / 1e6:.0f} MB more at most; AUC {told['auc']:.4f}"
    )
    return [Check("2 memory beyond imports over the budget", used / (budget * 1e6), 1.3, "lower")]
