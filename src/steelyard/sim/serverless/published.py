"""A published region: its start-ups by runtime, pool stages, and who causes its cold starts."""

import csv
import itertools
from functools import cache
from pathlib import Path

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.serverless.platform import Platform, Schedulers
from steelyard.sim.serverless.policies import KeepAlive
from steelyard.sim.serverless.startup import EmpiricalQuantiles, StartUp

__all__ = ["pool_stages", "published_mix", "published_platform", "published_start_ups"]

_FOLDER = Path(__file__).parent
_UNPOOLED = ("Custom", "http")
_STAGE_EDGES_S = (0.0, 0.004, 1.0)


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    with (_FOLDER / name).open(newline="") as stream:
        return tuple(csv.DictReader(stream))


def published_start_ups() -> dict[str, StartUp]:
    """Return the parts of a start by runtime, of region 2.

    Curves are as published; the share of starts with dependencies and the correlations of the
    copula were fitted to the curve of the whole start, by runtime.

    Source: Joosen et al. 2025 (arXiv 2410.06145), figures 15 and 16 (CC BY 4.0).
    """
    found: dict[str, dict[str, EmpiricalQuantiles]] = {}
    correlations: dict[str, list[list[float]]] = {}
    for row in _rows("huawei_parts.csv"):
        levels = [float(name[1:]) for name in row if name.startswith("q")]
        values = [float(row[name] or "nan") for name in row if name.startswith("q")]
        share = float(row["share"])
        part = (
            EmpiricalQuantiles.from_curve(levels, np.maximum.accumulate(_filled(values)))
            if share
            else EmpiricalQuantiles.constant(0.0)
        )
        part = EmpiricalQuantiles(part.values_s, share)
        found.setdefault(row["runtime"], {})[row["part"]] = part
        matrix_row = [float(value) for value in row["correlation"].split()]
        correlations.setdefault(row["runtime"], []).append(matrix_row)
    return {
        name: StartUp(parts, _symmetric(correlations[name]), is_pooled=name not in _UNPOOLED)
        for name, parts in found.items()
    }


def _filled(values: list[float]) -> np.ndarray:
    """Fill the ends that the plot cuts off with the nearest known value."""
    array = np.array(values)
    known = np.flatnonzero(np.isfinite(array))
    if not len(known):
        return array
    return np.interp(np.arange(len(array)), known, array[known])


def _symmetric(rows: list[list[float]]) -> np.ndarray:
    """Return a correlation matrix of rows that were rounded, moved inside the allowed ones."""
    matrix = np.array(rows)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    near = (vectors * np.maximum(values, 1e-6)) @ vectors.T
    scale = np.sqrt(np.diag(near))
    return near / np.outer(scale, scale)


def pool_stages() -> tuple[EmpiricalQuantiles, EmpiricalQuantiles, EmpiricalQuantiles]:
    """Return the time to take a pod from the own cluster, from another one, and from none.

    The published curve of allocations has these three modes: the curves of the pooled runtimes are
    cut at 4 ms and 1 s, and the third stage is that of runtimes without a pool.

    Source: Joosen et al. 2025 (arXiv 2410.06145), figure 15c.
    """
    start_ups = published_start_ups()
    curves = {name: item.parts["pod_allocation"].values_s for name, item in start_ups.items()}
    pooled = np.sort(np.concatenate([curves[name] for name in curves if name not in _UNPOOLED]))
    stages = []
    for low, high in itertools.pairwise(_STAGE_EDGES_S):
        inside = pooled[(pooled >= low) & (pooled < high)]
        stages.append(EmpiricalQuantiles.from_curve(np.linspace(0, 1, len(inside)), inside))
    return stages[0], stages[1], start_ups["Custom"].parts["pod_allocation"]


def published_mix() -> dict[tuple[str, str], float]:
    """Return shares of cold starts by trigger and runtime, which sum to 1.

    Sums by runtime are published, as are those of timers and workflows; cells were fitted to the
    triggers' curves of cold starts.

    Source: Joosen et al. 2025 (arXiv 2410.06145), sections 4.2 and 4.3, figure 16.
    """
    cells = {
        (row["trigger"], row["runtime"]): float(row["share"]) for row in _rows("huawei_mix.csv")
    }
    total = sum(cells.values())
    return {cell: share / total for cell, share in cells.items()}


def published_platform(keep_alive: KeepAlive, *, scale: float = 1.0) -> Platform:
    """Return region 2 as a platform without pools: allocations are drawn as published.

    Args:
        keep_alive: how long idle pods stay.
        scale: size over that of the region; larger ones have more schedulers.

    Returns:
        The platform; give it `pools` and `stages=pool_stages()` to simulate reserves.

    Raises:
        ConfigError: `scale` is not above 0.
    """
    if not scale > 0:
        raise ConfigError(f"scale is {scale}, but must be above 0")
    # Published scheduling times hold the usual wait already, so these add to bursts only. A small
    # region keeps all eight: timers that fire in one second would queue for a single one.
    return Platform(
        start_ups=published_start_ups(),
        keep_alive=keep_alive,
        schedulers=Schedulers(max(round(8 * scale), 8), 0.1),
    )
