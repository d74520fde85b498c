"""CSV to clean rows to features on two workers, beside pandas on one core and Ray Data on two.

3 makes the same features of the same files in turn, in one run: rows whose price is no number are
left out, quantities filled, prices bent, numbers scaled, shops and days encoded, and Parquet
written. Times of pandas and Ray count from running interpreters, ours has to start its workers; a
start is a fresh process that makes features of a thousand rows. The last check makes features of
files of more than five times a budget. Checks 1, 2 and 4 of the paper are not here.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from benchmarks import peers
from benchmarks.common import Check, median_spread, ratio
from benchmarks.data._features_ours import make_features
from benchmarks.serve._json_process import JsonProcess, peer_environment

from steelyard.errors import BackendError

PAPER = ["14-bigdl2"]

_PROGRAM = str(Path(__file__).with_name("_features_program.py"))
_LEAST_BYTES = 600_000_000
_ONE_CORE = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def run(quick: bool) -> list[Check]:
    """Make files, and features of them."""
    rows, rounds = (60_000, 2) if quick else (500_000, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "sales", 8, rows)
        _write(folder / "small", 1, 1000)
        checks = [
            *_beside(folder, rounds),
            *_starts(folder, 2 if quick else 5),
            *_bounded(folder),
        ]
    return checks


def _write(folder: Path, files: int, rows: int) -> None:
    """Write CSV files; one price in a thousand is broken, one quantity in twenty missing."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in range(files):
        price = rng.lognormal(3, 1, rows).round(2).astype(str).astype(object)
        price[::1000] = "broken"
        quantity = rng.integers(1, 50, rows).astype(float)
        quantity[rng.random(rows) < 0.05] = np.nan
        numbers = rng.normal(size=(rows, 4)).round(5)
        pl.DataFrame(
            {
                "id": np.arange(rows) + name * rows,
                "price": price.tolist(),
                "quantity": quantity,
                "shop": rng.choice(["north", "south", "east", "west"], rows),
                "day": np.datetime64("2025-01-01") + rng.integers(0, 600, rows),
                **{f"v{place}": numbers[:, place] for place in range(4)},
            },
            nan_to_null=True,
        ).write_csv(folder / f"{name}.csv")


def _beside(folder: Path, rounds: int) -> list[Check]:
    """Make the same features in turn."""
    seconds: dict[str, list[float]] = {"ours": []}
    rows: dict[str, int] = {}
    engines: dict[str, JsonProcess] = {}
    size = sum(path.stat().st_size for path in (folder / "sales").iterdir())
    for name in ("pandas", "ray"):
        try:
            hint = f"python -m benchmarks peers install {name}"
            more = _ONE_CORE if name == "pandas" else {}
            core = f"{min(os.sched_getaffinity(0))}"
            pinned = ["taskset", "-c", core] if name == "pandas" else []
            command = [*pinned, str(peers.python(name)), _PROGRAM, name]
            engines[name] = JsonProcess(command, {}, peer_environment() | more, hint)
        except BackendError as error:
            print(f"left out: {error}; {error.hint}")
    seconds |= {name: [] for name in engines}
    for _ in range(rounds):
        begin = time.perf_counter()
        rows["ours"] = make_features(folder / "sales", folder / "ours", 2)
        seconds["ours"].append(time.perf_counter() - begin)
        for name, engine in engines.items():
            told = engine.ask({"folder": str(folder / "sales"), "out": str(folder / name)})
            seconds[name].append(float(told["seconds"]))
            rows[name] = int(told["rows"])
    names = {"ours": "ours, two workers"} | {name: item.name for name, item in engines.items()}
    for name, values in seconds.items():
        spread = median_spread(values)
        print(
            f"{names[name]:20s} {spread.median:6.2f} s ({spread.low:.2f} to {spread.high:.2f}), "
            f"{size / spread.median / 1e6:.0f} MB/s, {rows[name]:,} rows"
        )
    checks = [
        Check("3 rows that others have not", float(abs(rows["ours"] - rows[name])), 0.0, "lower")
        for name in list(engines)[:1]
    ]
    for name, bar in (("pandas", 1.7), ("ray", 0.9)):
        if name in engines:
            engines[name].close()
            speed = ratio(seconds[name], seconds["ours"]).median
            told = "pandas on one core" if name == "pandas" else "Ray Data"
            checks.append(Check(f"3 throughput over {told}", speed, bar, "higher"))
    return checks


def _starts(folder: Path, rounds: int) -> list[Check]:
    """Time fresh processes that make features of a thousand rows."""
    small = str(folder / "small")
    commands = {
        "ours": [sys.executable, "-m", "benchmarks.data._features_ours", small, "OUT", "1"],
    }
    try:
        commands["ray"] = [str(peers.python("ray")), _PROGRAM, "ray", small, "OUT"]
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return []
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for place in range(rounds):
        for name, command in commands.items():
            words = [
                str(folder / f"start-{name}-{place}") if word == "OUT" else word for word in command
            ]
            environment = peer_environment() if name == "ray" else None
            begin = time.perf_counter()
            done = subprocess.run(
                words, capture_output=True, text=True, env=environment, check=False
            )
            if done.returncode:
                raise BackendError(f"{name} failed: {done.stderr[-2000:]}")
            seconds[name].append(time.perf_counter() - begin)
    ours, ray = (statistics.median(seconds[name]) for name in ("ours", "ray"))
    print(f"a fresh process makes features of 1,000 rows in {ours:.1f} s, with Ray in {ray:.1f} s")
    return [Check("3 start-up over Ray Data", ours / ray, 1.0, "lower")]


def _bounded(folder: Path) -> list[Check]:
    """Make features of files of more than five times a budget."""
    sales = folder / "more"
    sales.mkdir()
    files = sorted((folder / "sales").iterdir())
    size = sum(path.stat().st_size for path in files)
    # Some 50 MB are for compressors and allocators, however small the budget is.
    times = -(-_LEAST_BYTES // size)
    for place in range(times):
        for path in files:
            (sales / f"{place}-{path.name}").hardlink_to(path)
    size *= times
    budget = size / 5.2
    words = ["-m", "benchmarks.data._features_ours", str(sales), str(folder / "bounded")]
    done = subprocess.run(
        [sys.executable, *words, "1", f"{budget:.0f}B"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BackendError(f"the bounded run failed: {done.stderr[-2000:]}")
    used = json.loads(done.stdout.splitlines()[-1])["used"]
    print(f"{size / 1e6:.0f} MB of files under {budget / 1e6:.0f} MB take {used / 1e6:.0f} MB")
    return [Check("3 memory beyond imports over a fifth of the files", used / budget, 1.0, "lower")]
