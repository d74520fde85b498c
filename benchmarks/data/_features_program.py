"""CSV to clean rows to features with pandas or with Ray Data, in their own interpreter.

Usage: _features_program.py ENGINE FOLDER OUT makes features once. Without a folder, lines of JSON
{"folder": F, "out": O} are answered by {"seconds", "rows"}; Ray is running by then.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pandas as pd  # pyright: ignore[reportMissingImports]

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
SHOPS = ["east", "north", "south", "west"]


def cleaned(frame):
    """Drop rows whose price is no number, and turn days into times."""
    frame["price"] = pd.to_numeric(frame["price"], errors="coerce")
    frame = frame[frame["price"].notna()].copy()
    frame["day"] = pd.to_datetime(frame["day"])
    return frame


def featured(frame, known):
    """Fill, bend, scale and encode."""
    import numpy as np

    frame["quantity"] = frame["quantity"].fillna(known["quantity"])
    frame["price"] = (np.log1p(frame["price"]) - known["mean"]) / known["std"]
    for place, name in enumerate(("v0", "v1", "v2", "v3")):
        frame[name] = (frame[name] - known["means"][place]) / known["stds"][place]
    for shop in SHOPS:
        frame[f"shop={shop}"] = (frame["shop"] == shop).astype("int8")
    frame["month"] = frame["day"].dt.month.astype("int16")
    frame["weekday"] = frame["day"].dt.weekday.astype("int16")
    return frame.drop(columns=["shop", "day"])


def with_pandas(folder, out):
    """Make features of all rows in memory, on one core."""
    import numpy as np

    parts = [pd.read_csv(path) for path in sorted(folder.glob("*.csv"))]
    frame = cleaned(pd.concat(parts, ignore_index=True))
    logs = np.log1p(frame["price"])
    numbers = frame[["v0", "v1", "v2", "v3"]]
    known = {
        "quantity": frame["quantity"].mean(),
        "mean": logs.mean(),
        "std": logs.std(),
        "means": numbers.mean().tolist(),
        "stds": numbers.std().tolist(),
    }
    made = featured(frame, known)
    made.to_parquet(out / "all.parquet", compression="zstd", index=False)
    return len(made)


def with_ray(folder, out):
    """Make features block by block on all cores."""
    import numpy as np
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import ray.data  # pyright: ignore[reportMissingImports]
    from pyarrow import csv  # pyright: ignore[reportMissingImports]

    # A block whose prices are all numbers would have another type than one with a broken one.
    options = csv.ConvertOptions(column_types={"price": pa.string()})
    files = [str(path) for path in sorted(folder.glob("*.csv"))]
    rows = ray.data.read_csv(files, convert_options=options)
    clean = rows.map_batches(cleaned, batch_format="pandas", batch_size=None)

    def told(frame):
        logs = np.log1p(frame["price"])
        parts = {"logs": logs, "quantity": frame["quantity"]}
        parts |= {name: frame[name] for name in ("v0", "v1", "v2", "v3")}
        found = {}
        for name, values in parts.items():
            found[f"{name}_n"] = [values.count()]
            found[f"{name}_s"] = [values.sum()]
            found[f"{name}_q"] = [(values**2).sum()]
        return pd.DataFrame(found)

    sums = clean.map_batches(told, batch_format="pandas", batch_size=None).to_pandas().sum()

    def moments(name):
        count, total, squares = (sums[f"{name}_{kind}"] for kind in "nsq")
        mean = total / count
        return mean, ((squares - count * mean**2) / (count - 1)) ** 0.5

    numbers = [moments(name) for name in ("v0", "v1", "v2", "v3")]
    known = {
        "quantity": moments("quantity")[0],
        "mean": moments("logs")[0],
        "std": moments("logs")[1],
        "means": [mean for mean, _ in numbers],
        "stds": [std for _, std in numbers],
    }
    made = clean.map_batches(
        featured, fn_kwargs={"known": known}, batch_format="pandas", batch_size=None
    )
    made.write_parquet(str(out), compression="zstd")
    return int(sums["logs_n"])


def made(engine, folder, out):
    """Make features into an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    begin = time.perf_counter()
    rows = (with_ray if engine == "ray" else with_pandas)(folder, out)
    return {"seconds": time.perf_counter() - begin, "rows": rows}


def start_ray():
    """Start Ray on two cores of this machine, quietly."""
    import logging

    import ray  # pyright: ignore[reportMissingImports]

    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False


engine = sys.argv[1]
if engine == "ray":
    start_ray()
if len(sys.argv) > 3:
    told = made(engine, Path(sys.argv[2]), Path(sys.argv[3]))
    channel.write(json.dumps(told) + "\n")
else:
    version = pd.__version__
    if engine == "ray":
        import ray  # pyright: ignore[reportMissingImports]

        version = ray.__version__
    channel.write(json.dumps({"name": f"{engine} {version}"}) + "\n")
    channel.flush()
    for line in sys.stdin:
        given = json.loads(line)
        channel.write(json.dumps(made(engine, Path(given["folder"]), Path(given["out"]))) + "\n")
        channel.flush()
