"""Forecasts of a profile beside what it reads and takes: many rows, and many columns.

Each file is profiled in a process of its own, whose rates were measured before on generated tables
that have nothing of these. Values are drawn from other distributions than those of the calibration.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import Check
from benchmarks.data._scan_ledger import ledger_checks

_ROUNDS = 3
_PROGRAM = """
import json, sys
from pathlib import Path
from steelyard.cli.data.scanning import PassMeter, forecast_pass
from steelyard.data.table import DataTable, ProfileFold

table = DataTable.scan(sys.argv[1])
_, said = forecast_pass(table, "", 1, leaves=False, quiet=True)
found = []
for _ in range(int(sys.argv[2])):
    meter = PassMeter()
    folded = table.fold(ProfileFold())
    checks = meter.checks(said, folded.quarantine.reads.num_bytes, workers=1, is_usual=True)
    found.append({c.forecast.quantity: [c.forecast.value, c.measurement.value] for c in checks})
print(json.dumps(found))
"""


def forecast_checks(folder: Path, quick: bool) -> list[Check]:
    """Measure how near forecasts come.

    Args:
        folder: place for files of some hundred megabytes.
        quick: a tenth of the rows, in one round.

    Returns:
        Checks of bytes, time and memory.
    """
    made = _files(folder / "forecast", quick)
    home = folder / "home"
    _calibrate(home)
    found = {name: _passes(path, home, 1 if quick else _ROUNDS) for name, path in made.items()}
    checks = [*_bytes_and_times(found)]
    for shape in ("rows", "columns"):
        own = [item for name, item in found.items() if name.startswith(shape)]
        worst = max(_ratio(item, "scan.peak_memory") for item in own)
        checks.append(Check(f"9 peak memory over its forecast, many {shape}", worst, 1.5, "lower"))
    return [*checks, *ledger_checks(folder / "ledger", home, 6 if quick else 52)]


def _files(folder: Path, quick: bool) -> dict[str, Path]:
    """Write a table of many rows and one of many columns, as CSV and as Parquet."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    folder.mkdir()
    tall = pa.table(_tall(100_000 if quick else 1_000_000))
    tables = {
        "rows": tall,
        "columns": pa.table(_wide(2000 if quick else 20_000)),
    }
    made = {}
    for name, table in tables.items():
        made[f"{name}, csv"] = folder / f"{name}.csv"
        csv.write_csv(table, made[f"{name}, csv"])
        made[f"{name}, parquet"] = folder / f"{name}.parquet"
        parquet.write_table(table, made[f"{name}, parquet"], row_group_size=200_000)
    return made


def _tall(rows: int) -> dict[str, Any]:
    """Return 14 columns of all kinds."""
    import pyarrow as pa

    rng = np.random.default_rng(11)
    shops = np.array(["north", "south", "east", "west"])
    columns: dict[str, Any] = {
        "id": np.arange(rows),
        "day": pa.array((np.arange(rows) % 365 + 20_000).astype(np.int32)).cast(pa.date32()),
        "shop": shops[rng.zipf(1.5, rows) % 4],
        "note": [f"note {value}" for value in (rng.zipf(1.3, rows) % 5000).tolist()],
        "is_new": rng.random(rows) < 0.1,
        "count": rng.poisson(4, rows),
    }
    return columns | {f"v{place}": rng.lognormal(3, 1, rows).round(2) for place in range(8)}


def _wide(rows: int) -> dict[str, Any]:
    """Return 600 columns: two thirds of numbers, the others of small counts."""
    rng = np.random.default_rng(12)
    return {
        f"f{place}": rng.normal(size=rows).round(3) if place % 3 else rng.poisson(9, rows)
        for place in range(600)
    }


def _environment(home: Path) -> dict[str, str]:
    return os.environ | {"STEELYARD_HOME": str(home)}


def _calibrate(home: Path) -> None:
    """Measure the rates in a process of their own, and say how long it took."""
    words = (
        "from steelyard.catalog.scan_rates import store_scan_rates\n"
        "from steelyard.data.table.rates import measure_scan_rates\n"
        "rates = measure_scan_rates()\n"
        "store_scan_rates(rates)\n"
        "print(f'calibrated in {rates.duration_s:.1f} s')\n"
    )
    subprocess.run([sys.executable, "-c", words], check=True, env=_environment(home))


def _passes(path: Path, home: Path, rounds: int) -> list[dict[str, list[float]]]:
    """Profile a file some times in a fresh process."""
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path), str(rounds)],
        capture_output=True,
        text=True,
        check=True,
        env=_environment(home),
    )
    return json.loads(told.stdout.splitlines()[-1])


def _measured(passes: list[dict[str, list[float]]], quantity: str) -> float:
    """Return the median of what was measured; of memory the first, which the others find kept."""
    values = [item[quantity][1] for item in passes]
    return values[0] if quantity == "scan.peak_memory" else float(np.median(values))


def _ratio(passes: list[dict[str, list[float]]], quantity: str) -> float:
    """Return what was measured over what was forecast."""
    return _measured(passes, quantity) / passes[0][quantity][0]


def _bytes_and_times(found: dict[str, list[dict[str, list[float]]]]) -> list[Check]:
    """Compare bytes and times; the table shows each file."""
    for name, passes in found.items():
        told = ", ".join(
            f"{quantity.removeprefix('scan.')} {_ratio(passes, quantity):.3f}"
            for quantity in passes[0]
        )
        print(f"{name}: measured over forecast: {told}")
    checks = []
    for quantity, name, bar in (
        ("scan.bytes_read", "7 error of bytes forecast, worst file", 0.02),
        ("scan.duration", "8 error of time forecast, worst file", 0.25),
    ):
        errors = [abs(1 / _ratio(passes, quantity) - 1) for passes in found.values()]
        checks.append(Check(name, max(errors), bar, "lower"))
    return checks
