"""Preparation and governance: exact merges, fused passes, anonymity, budgets, erasure.

3 compares states of merged parts with those of all rows at once, cuts batches otherwise and turns
the order of files, and looks at errors of sketches on streams that nothing was chosen by. 4 times
nine steps that share a pass beside one pass that only counts rows, and compares bytes and time
with the plan. 5 compares groups with those of Polars, asks a budget empty, and erases keys from a
tree of outputs while it is killed.
"""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benchmarks.common import Check, alternate, ratio

from steelyard.data.governance import (
    AuditLog,
    Lineage,
    PrivacyLedger,
    check_anonymity,
    erase,
    noisy_aggregate,
)
from steelyard.data.pipeline import (
    PCA,
    Bin,
    DateParts,
    Drop,
    FittedPipeline,
    Impute,
    OneHot,
    Outliers,
    Pipeline,
    QuantileMap,
    Rescale,
    TargetEncode,
    YeoJohnson,
)
from steelyard.data.pipeline.components import ComponentColumns
from steelyard.data.pipeline.planning import plan_fit
from steelyard.data.sketch import HyperLogLog, KllQuantiles
from steelyard.data.sketch.hashing import hash_integers
from steelyard.data.table import CovarianceFold, DataTable, Fold, RowCountFold, folds
from steelyard.data.table.reading import ReadLimits
from steelyard.errors import CapacityError

__all__ = ["preparing_checks"]

_NUMBERS = [f"v{place}" for place in range(10)]


def preparing_checks(folder: Path, quick: bool) -> list[Check]:
    """Run the checks.

    Args:
        folder: for files.
        quick: fewer rows and rounds.

    Returns:
        The checks.
    """
    files = _files(folder / "prepared", 20_000 if quick else 250_000)
    return [
        *_exact(files),
        *_sketch_errors(10 if quick else 100, 100_000 if quick else 1_000_000),
        *_fused(files, 3 if quick else 7),
        *_governed(folder / "governed", 20_000 if quick else 500_000, 2 if quick else 10),
    ]


def _files(folder: Path, rows: int) -> Path:
    """Write four CSV files of numbers, texts, days and a target, with gaps."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    for name in range(4):
        values = rng.lognormal(3, 1, (rows, 10)).round(3)
        values[rng.random(values.shape) < 0.02] = np.nan
        frame = pl.DataFrame(
            {
                "id": np.arange(rows) + name * rows,
                "shop": rng.choice(["north", "south", "east", "west"], rows),
                "note": [f"note {place}" for place in rng.integers(0, 500, rows)],
                "day": np.datetime64("2026-01-01") + rng.integers(0, 300, rows),
                **dict(zip(_NUMBERS, values.T, strict=True)),
                "y": rng.integers(0, 2, rows),
            },
            nan_to_null=True,
        )
        frame.write_csv(folder / f"{name}.csv")
    return folder


def _exact(folder: Path) -> list[Check]:
    """Compare states however rows are cut."""
    table = DataTable.scan(folder).select([*_NUMBERS, "shop", "id"])
    batches = list(table.batches)
    worst, unequal = 0.0, 0
    moments, distinct = folds.moments(*_NUMBERS), folds.distinct()
    counts, covariance = folds.count_min("shop", "id"), CovarianceFold(tuple(_NUMBERS))
    merged = table.fold(moments, distinct, counts, covariance).results
    every: list[Fold[Any]] = [moments, distinct, counts, covariance]
    for fold in every:
        state = fold.init(table.schema)
        for batch in batches:
            fold.update(state, batch)
        whole = fold.sections(state)
        # Where nothing is made of a state, its result is the state.
        for name, values in fold.sections(merged[fold.name]).items():
            if values.dtype.kind == "f" and fold in (moments, covariance):
                scale = np.maximum(np.abs(whole[name]), np.abs(whole[name]).max() * 1e-6)
                worst = max(worst, float((np.abs(values - whole[name]) / scale).max()))
            else:
                unequal += int(not np.array_equal(values, whole[name]))
    steps = (Impute(columns=("v0",), method="mean"), Rescale(columns=("v1", "v2")), PCA(size=4))
    full = DataTable.scan(folder).select(_NUMBERS)
    usual = Pipeline(steps).fit(full)
    small = Pipeline(steps).fit(full.with_limits(ReadLimits(batch_rows=999, block_bytes=1 << 16)))
    paths = sorted(str(path) for path in folder.iterdir())
    turned = Pipeline(steps).fit(DataTable.scan(*paths[::-1]).select(_NUMBERS))
    cut = max(_steps_apart(usual, small), _steps_apart(usual, turned))
    angle = _angle()
    print(f"merged states: {worst:.1e} off; cut or turned: {cut:.1e}; components: {angle:.1e} rad")
    return [
        Check("3 merged moments and covariances off", worst, 1e-9, "lower"),
        Check("3 merged sketches unequal", float(unequal), 0.0, "lower"),
        Check("3 fitted steps off by batches and order of files", cut, 1e-9, "lower"),
        Check("3 angle of components, rad", angle, 1e-3, "lower"),
    ]


def _angle() -> float:
    """Return the largest angle between components of a pass and those of all rows at once."""
    rng = np.random.default_rng(12)
    rows = rng.normal(size=(60_000, 4)) * [4.0, 3.0, 2.0, 1.5] @ rng.normal(size=(4, 24))
    rows += 0.3 * rng.normal(size=rows.shape) + 1000.0
    table = DataTable.scan(pl.DataFrame(rows, schema=[f"c{place}" for place in range(24)]))
    step = Pipeline((PCA(size=4),)).fit(table.repartition(1 << 20)).steps[0]
    assert isinstance(step, ComponentColumns)
    found = step.directions
    axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:4]
    cosines = np.linalg.svd(axes @ found.T)[1]
    return float(np.arccos(np.clip(cosines, -1, 1)).max())


def _steps_apart(one: FittedPipeline, other: FittedPipeline) -> float:
    """Return the largest relative difference of arrays of fitted steps."""
    names = ("values", "shifts", "factors", "mean", "directions", "variances")
    pairs = [
        (getattr(mine, name), getattr(theirs, name))
        for mine, theirs in zip(one.steps, other.steps, strict=True)
        for name in names
        if hasattr(mine, name)
    ]
    return max(float(np.abs(mine - theirs).max() / np.abs(theirs).max()) for mine, theirs in pairs)


def _sketch_errors(streams: int, rows: int) -> list[Check]:
    """Look at errors of merged sketches on streams of random order."""
    levels = np.arange(1, 100) / 100
    ranks, counts = [], []
    for seed in range(1000, 1000 + streams):
        rng = np.random.default_rng(seed)
        order = rng.permutation(rows).astype(float)
        whole, registers = KllQuantiles(whole=16_384), HyperLogLog(12)
        for part in np.array_split(order, 7):
            own = KllQuantiles(whole=16_384)
            own.update(part)
            whole.merge(own)
        registers.update(hash_integers(rng.integers(0, 2**62, rows)))
        ranks.append(np.abs((whole.quantile(levels) + 1) / rows - levels).max())
        counts.append(abs(registers.estimate() / rows - 1) / registers.standard_error)
    worst = float(np.quantile(ranks, 0.99))
    print(
        f"{streams} streams of {rows:,}: ranks {worst:.2%} off in 99 of 100, distinct values "
        f"{max(counts):.2f} standard errors at most"
    )
    return [
        Check("3 rank error of quantiles, 99 of 100", worst, 0.0165, "lower"),
        Check("3 errors of distinct values over the standard error", max(counts), 3.0, "lower"),
    ]


_STEPS = (
    Outliers(columns=("v0", "v1"), action="clip"),
    Impute(columns=("v2",), method="mean"),
    Impute(columns=("v3",), method="median"),
    Rescale(columns=("v4", "v5")),
    YeoJohnson(columns=("v6",)),
    QuantileMap(columns=("v7",)),
    Bin(columns=("v8",)),
    OneHot(columns=("shop",)),
    TargetEncode(columns=("note",), target="y", by=("id",)),
    DateParts(columns=("day",)),
)


def _fused(folder: Path, rounds: int) -> list[Check]:
    """Time steps that share a pass beside one pass over the same columns."""
    table = DataTable.scan(folder)
    pipeline = Pipeline(_STEPS)
    read = table.select([name for name in table.schema.names if name not in ("v9",)])
    plan = plan_fit(pipeline, table)
    fitted = pipeline.fit(table)
    seconds = alternate(
        {"plain": lambda: read.fold(RowCountFold()), "steps": lambda: pipeline.fit(table)},
        rounds=rounds,
    )
    times = ratio(seconds["steps"], seconds["plain"])
    took_s = float(np.median(seconds["steps"]))
    size = abs(fitted.read_bytes / plan.num_bytes - 1)
    off = abs(took_s / plan.duration_s - 1)
    print(
        f"{len(_STEPS)} steps in {fitted.scans} pass: {times.median:.2f} ({times.low:.2f} to "
        f"{times.high:.2f}) times a pass that counts rows ({np.median(seconds['plain']):.2f} s); "
        f"bytes {size:.2%} off the plan, time {off:.1%}"
    )
    return [
        Check("4 passes of ten steps", float(fitted.scans), 1.0, "lower"),
        Check("4 fused steps over one pass", times.median, 1.3, "lower"),
        Check("4 bytes off the plan", size, 0.02, "lower"),
        Check("4 time off the plan", off, 0.25, "lower"),
    ]


def _governed(folder: Path, rows: int, kills: int) -> list[Check]:
    """Check anonymity, a budget, and erasure under kills."""
    folder.mkdir()
    rng = np.random.default_rng(9)
    frame = pl.DataFrame(
        {
            "who": [f"u{place}" for place in rng.integers(0, rows // 3, rows)],
            "age": rng.integers(18, 90, rows),
            "town": rng.choice([f"t{place}" for place in range(300)], rows),
            "v": rng.normal(size=rows),
        }
    )
    source = folder / "people.parquet"
    frame.write_parquet(source)
    table = DataTable.scan(str(source))
    found = check_anonymity(table, ["age", "town"], 20)
    groups = frame.group_by("age", "town").len().filter(pl.col("len") < 20)
    wrong = abs(found.small_groups - groups.height) + abs(found.small_rows - groups["len"].sum())
    ledger = PrivacyLedger(folder / "ledger")
    ledger.begin(1.0)
    answered = 0
    for _ in range(25):
        try:
            noisy_aggregate(table, ledger, 0.1)
            answered += 1
        except CapacityError:
            continue
    left, erased_s = _erased(folder, source, kills)
    print(
        f"{found.small_groups:,} groups below 20 rows; {answered} of 25 questions answered; "
        f"an erasure killed {kills} times leaves {left} files with a key ({erased_s:.1f} s)"
    )
    return [
        Check("5 groups and rows that brute force counts otherwise", float(wrong), 0.0, "lower"),
        Check("5 answers beyond the budget", float(answered - 10), 0.0, "lower"),
        Check("5 outputs that hold an erased key", float(left), 0.0, "lower"),
    ]


def _erased(folder: Path, source: Path, kills: int) -> tuple[int, float]:
    """Erase keys from a tree of outputs, killed and begun again; return files that have them."""
    lineage, table = Lineage(folder / "lineage"), DataTable.scan(str(source))
    outputs = []
    for name, steps in (
        ("scaled", (Rescale(columns=("v",)),)),
        ("bare", (Rescale(columns=("v",)), Drop(columns=("who",)))),
    ):
        fitted = Pipeline(steps).fit(table)
        fitted.save(folder / f"{name}.pipeline")
        out = folder / f"{name}.parquet"
        fitted.transform(table).write(out)
        lineage.record(out, [source], pipeline=folder / f"{name}.pipeline")
        outputs.append(out)
    for end in ("csv", "jsonl", "arrow"):
        out = folder / f"copy.{end}"
        DataTable.scan(str(outputs[0])).write(out)
        lineage.record(out, [outputs[0]])
        outputs.append(out)
    bare = len(pl.read_parquet(outputs[1]))
    keys = ["u3", "u17", "u1000"]
    gone = int(pl.read_parquet(source)["who"].is_in(keys).sum())
    began_s = time.perf_counter()
    rng = np.random.default_rng(int(time.time()))
    for _ in range(kills):
        worker = multiprocessing.get_context("fork").Process(target=_erase, args=(folder, keys))
        worker.start()
        time.sleep(float(rng.uniform(0.02, 1.0)))
        if worker.pid and worker.is_alive():
            os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    _erase(folder, keys)
    took_s = time.perf_counter() - began_s
    holding = 0
    for path in (source, *outputs):
        own = DataTable.scan(str(path))
        if "who" in own.schema.names:
            held = set(own.select(["who"]).collect()[0]["who"].to_pylist())
            holding += bool(held & set(keys))
        else:
            holding += len(own.collect()[0]) != bare - gone
    holding += len(lineage.changed())
    return holding, took_s


def _erase(folder: Path, keys: list[str]) -> None:
    """Erase keys from all that the lineage knows."""
    log = AuditLog(folder / "lineage" / "audit.jsonl")
    erase(Lineage(folder / "lineage"), "who", keys, audit=log)
