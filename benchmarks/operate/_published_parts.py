"""Fits what the published curves of starts leave open, and writes the tables of the package.

`python -m benchmarks.operate._published_parts` reads the curves of arXiv 2410.06145 (figures 15 and
16) in ../shared and writes `sim/serverless/huawei_parts.csv` and `huawei_mix.csv`. Left open are,
by runtime, the share of starts with dependencies (their curve excludes those without) and how parts
depend on each other. Both are fitted to the curve of the whole start at its odd percentiles; even
ones, the median and the 90th percentile among them, are not used.
"""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

CURVES = Path(__file__).parents[3] / "shared/data/huawei-coldstart/quantiles.csv.gz"
PACKAGE = Path(__file__).parents[2] / "src/steelyard/sim/serverless"
PARTS = ("pod_allocation", "deploy_code", "deploy_dependency", "scheduling")
RUNTIMES = {
    "Python3": 1_190_000,
    "Node.js": 287_000,
    "Custom": 186_000,
    "Java": 166_000,
    "Python2": 166_000,
    "Go1.x": 30_000,
    "PHP7.3": 26_000,
    "http": 18_000,
    "C#": 3_000,
}
"""Cold starts by runtime (section 4.3)."""
TRIGGERS = {"TIMER-A": 0.30, "workflow-S": 0.20}
"""Shares of cold starts that the text states (section 4.2); those of others are fitted."""

Array = NDArray[np.float64]


def curve(metric: str, scope: str, group: str) -> tuple[Array, Array]:
    """Return levels and quantiles of a published curve, known ones only."""
    found = (
        pl.read_csv(CURVES)
        .filter(
            (pl.col("metric") == metric) & (pl.col("scope") == scope) & (pl.col("group") == group)
        )
        .drop_nulls("value")
        .sort("quantile")
    )
    return found["quantile"].to_numpy(), found["value"].to_numpy()


def fit_runtime(runtime: str) -> tuple[float, Array, float]:
    """Fit the share of starts with dependencies and the correlations of the copula.

    Returns:
        Share, correlations [parts, parts], and the distance of the logarithms (root mean
        square) at the odd percentiles; those near the 50th and 90th weigh three times.
    """
    scores = ndtri(qmc.Sobol(len(PARTS), rng=0).random_base2(12))
    curves = [curve(part, "runtime_region2", runtime) for part in PARTS]
    at, target = curve("cold_start", "runtime_region2", runtime)
    odd = np.round(at * 100).astype(int) % 2 == 1
    has_dependency = len(curves[2][0]) > 0
    near = (np.abs(at[odd] - 0.5) < 0.1) | (np.abs(at[odd] - 0.9) < 0.06)
    weights = np.where(near, 3.0, 1.0)

    def loss(values: Array) -> float:
        share = 1 / (1 + np.exp(-values[0])) if has_dependency else 0.0
        levels = ndtr(scores @ factor(values[1:]).T)
        total = np.zeros(len(scores))
        for row, (known, seconds) in enumerate(curves):
            if len(known):
                part = share if row == 2 else 1.0
                level = levels[:, row]
                drawn = np.interp((level - 1 + part) / max(part, 1e-9), known, seconds)
                total += np.where(level >= 1 - part, drawn, 0.0)
        away = np.log(np.quantile(total, at[odd]) / target[odd])
        return float(np.sqrt(np.average(away**2, weights=weights)))

    starts = np.random.default_rng(0).normal(0, 0.8, (12, 7))
    options = {"maxfev": 500, "xatol": 1e-3, "fatol": 1e-4, "adaptive": True}
    found = [minimize(loss, x, method="Nelder-Mead", options=options) for x in starts]
    best = min(found, key=lambda item: item.fun)
    best = minimize(loss, best.x, method="Nelder-Mead", options=options)
    share = 1 / (1 + np.exp(-best.x[0])) if has_dependency else 0.0
    lower = factor(best.x[1:])
    return share, lower @ lower.T, best.fun


def factor(values: Array) -> Array:
    """Return the lower factor of a correlation matrix: rows of length 1, of any 6 numbers."""
    lower = np.eye(len(PARTS))
    lower[np.tril_indices(len(PARTS), -1)] = values
    return lower / np.linalg.norm(lower, axis=1, keepdims=True)


def write_parts() -> None:
    """Write the table of curves with what was fitted."""
    names = [f"q{level:g}" for level in (*np.arange(1, 100) / 100, 0.995)]
    rows = []
    for runtime, count in RUNTIMES.items():
        share, correlation, error = fit_runtime(runtime)
        print(f"{runtime}: with dependencies {share:.3f}, error of logarithms {error:.3f}")
        for part, row in zip(PARTS, correlation, strict=True):
            levels, seconds = curve(part, "runtime_region2", runtime)
            by_name = dict(zip((f"q{level:g}" for level in levels), seconds, strict=True))
            there = 0.0 if not len(levels) else share if part == "deploy_dependency" else 1.0
            rows.append(
                {
                    "runtime": runtime,
                    "part": part,
                    "cold_starts": count,
                    "share": round(there, 4),
                    "correlation": " ".join(f"{value:.3f}" for value in row),
                }
                | {name: by_name.get(name) for name in names}
            )
    pl.DataFrame(rows, infer_schema_length=None).write_csv(PACKAGE / "huawei_parts.csv")


def write_mix() -> None:
    """Write shares of cold starts by trigger and runtime.

    A trigger's curve of starts is a mixture of its runtimes'. The table is the one with the least
    squares of all these mixtures whose sums are the published ones.
    """
    grid = np.geomspace(0.01, 30, 200)

    def distribution(scope: str, group: str) -> Array:
        levels, seconds = curve("cold_start", scope, group)
        return np.interp(grid, seconds, levels, left=0.0, right=1.0)

    columns = [distribution("runtime_region2", name) for name in RUNTIMES]
    triggers = ["TIMER-A", "OBS-A", "APIG-S", "workflow-S", "other-A", "other-S"]
    shape = len(triggers), len(columns)
    rows, wanted = [], []
    for at, trigger in enumerate(triggers):
        away = np.zeros((len(grid), *shape))
        target = distribution("trigger_region2", trigger)
        away[:, at] = np.stack([column - target for column in columns], axis=1)
        rows.append(away.reshape(len(grid), -1))
        wanted.append(np.zeros(len(grid)))
        if trigger in TRIGGERS:
            mine = np.zeros(shape)
            mine[at] = 1000.0  # so heavy that the sum is met
            rows.append(mine.reshape(1, -1))
            wanted.append(np.array([1000.0 * TRIGGERS[trigger]]))
    total = sum(RUNTIMES.values())
    for at, count in enumerate(RUNTIMES.values()):
        mine = np.zeros(shape)
        mine[:, at] = 1000.0
        rows.append(mine.reshape(1, -1))
        wanted.append(np.array([1000.0 * count / total]))
    table = nnls(np.vstack(rows), np.concatenate(wanted))[0].reshape(shape)
    found = [
        {"trigger": trigger, "runtime": runtime, "share": round(float(table[row, at]), 5)}
        for row, trigger in enumerate(triggers)
        for at, runtime in enumerate(RUNTIMES)
        if table[row, at] > 2e-4
    ]
    print(dict(zip(triggers, table.sum(axis=1).round(3), strict=True)))
    pl.DataFrame(found).write_csv(PACKAGE / "huawei_mix.csv")


if __name__ == "__main__":
    write_mix()
    write_parts()
