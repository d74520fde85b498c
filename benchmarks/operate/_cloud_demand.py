"""Demands of real services: cloud metrics of NAB, and running pods of a serverless region."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

__all__ = ["RealDemand", "cloud_demands", "pod_demands"]

_WEEK_S = 604_800.0


@dataclass(frozen=True, slots=True)
class RealDemand:
    """A demand whose last week is kept aside.

    Attributes:
        name: series.
        history: [n] load of each step before the last week.
        week: [n] load of the last week.
        step_s: seconds of a step.
    """

    name: str
    history: np.ndarray
    week: np.ndarray
    step_s: float


def _split(name: str, load: np.ndarray, step_s: float) -> RealDemand:
    """Keep the last week aside."""
    cut = len(load) - round(_WEEK_S / step_s)
    return RealDemand(name, load[:cut], load[cut:], step_s)


def cloud_demands(folder: Path) -> list[RealDemand]:
    """Read the series of five-minute steps that last longer than twelve days.

    Rows of one step are averaged (a clock was set back once), and missing steps take the value
    before them.

    Args:
        folder: of series.csv.gz with columns series, timestamp, value.

    Returns:
        Thirteen demands or so, in the order of the file.
    """
    table = pl.read_csv(folder / "series.csv.gz", try_parse_dates=True)
    found = []
    for (name,), part in table.group_by("series", maintain_order=True):
        steps = part.group_by(pl.col("timestamp").dt.truncate("5m")).agg(pl.col("value").mean())
        grid = (
            steps.sort("timestamp").upsample("timestamp", every="5m").fill_null(strategy="forward")
        )
        load = grid["value"].to_numpy().astype(float)
        if len(load) >= 12 * 288:
            found.append(_split(str(name), load, 300.0))
    return found


def pod_demands(folder: Path) -> list[RealDemand]:
    """Read the hourly running pods of a region, by trigger and in all.

    Args:
        folder: of pods_by_trigger_region2.csv.gz.

    Returns:
        A demand for each trigger, and one for all.
    """
    table = pl.read_csv(folder / "pods_by_trigger_region2.csv.gz").drop("hour")
    found = [_split(f"pods {name}", table[name].to_numpy(), 3600.0) for name in table.columns]
    return [*found, _split("pods of all", table.sum_horizontal().to_numpy(), 3600.0)]
