"""CLIP models trained on pools of several sizes, whose error at more samples is forecast."""

import csv

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared

from steelyard import laws
from steelyard.laws.fitting.terms import Array

__all__ = ["clip_checks"]


def clip_checks() -> list[Check]:
    """Fit CLIP models up to 13 billion samples; forecast their error at 34 billion."""
    sizes = {"LAION-80M": 8e7, "LAION-400M": 4.07e8, "LAION-2B": 2.3e9}
    ours = []
    plain = []
    same = []
    for rows in _clip_runs(sizes):
        late = rows["samples"] > 2e10
        early = {name: column[~late] for name, column in rows.items()}
        held = {name: column[late] for name, column in rows.items()}
        for law, into in ((laws.pool_utility(), ours), (laws.power_law("samples"), plain)):
            fit = laws.fit(law, early, early["error"], bootstrap=laws.Bootstrap(count=0))
            into.extend(np.abs(fit.predict(held).value / held["error"] - 1))
        last = [
            early["error"][(early["pool_size"] == size) & (early["samples"] > 1e10)][0]
            for size in held["pool_size"]
        ]
        same.extend(np.abs(np.array(last) / held["error"] - 1))
    print(
        f"CLIP at 34 billion samples: mean error {np.mean(ours):.4f}, power law "
        f"{np.mean(plain):.4f}, no change {np.mean(same):.4f}"
    )
    return [
        Check(
            "7 CLIP pool sizes, relative error at 34 billion samples, mean",
            float(np.mean(ours)),
            0.05,
            "lower",
        ),
        Check(
            "7 CLIP, error of a power law without repetition over ours",
            float(np.mean(plain) / np.mean(ours)),
            1.0,
            "higher",
        ),
        Check(
            "7 CLIP, error of forecasting no change over ours",
            float(np.mean(same) / np.mean(ours)),
            1.0,
            "higher",
        ),
    ]


def _clip_runs(sizes: dict[str, float]) -> list[dict[str, Array]]:
    """Read nine tables: three models on ImageNet, its second test set and its robustness sets."""
    cells: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with (shared("openclip-scaling") / "zeroshot_results.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["upstream_dataset"] in sizes and row["downstream_dataset"] in (
                "imagenet1k",
                "imagenetv2",
                "imagenet_robustness",
            ):
                point = (
                    float(row["samples_seen"]),
                    sizes[row["upstream_dataset"]],
                    1 - float(row["acc1"]),
                )
                cells.setdefault((row["downstream_dataset"], row["arch"]), []).append(point)
    return [
        dict(zip(("samples", "pool_size", "error"), np.array(points).T, strict=True))
        for points in cells.values()
    ]
