"""The real series that forecasters are scored on, in the order of the file's rows."""

import numpy as np
import polars as pl
from benchmarks.laws._shared import shared

from steelyard.operate.series import SeriesSet

__all__ = ["real_series"]


def real_series() -> SeriesSet:
    """Read the 15 series of cloud metrics, five minutes a step.

    Three of them repeat one time stamp for an hour, where local time was put forward, so a grid is
    made of the order of the rows and not of their stamps.
    """
    path = shared("cloud-metrics-nab") / "series.csv.gz"
    table = pl.read_csv(path, try_parse_dates=True)
    groups = table.partition_by("series", maintain_order=True)
    return SeriesSet.from_arrays(
        [group["value"].to_numpy().astype(np.float64) for group in groups],
        step_s=300.0,
        ids=[str(group["series"][0]) for group in groups],
        start_s=[group["timestamp"].dt.epoch("s")[0] for group in groups],
        provenance=f"{path}: value",
    )
