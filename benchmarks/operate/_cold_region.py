"""A month of the published region 2: the workload, its calibration, and what was published."""

from pathlib import Path

import numpy as np
import polars as pl
from benchmarks.operate._published_parts import CURVES, RUNTIMES, curve

from steelyard.operate.coldstart import DemandProfile, FixedKeepAlive, WorkloadGenerator
from steelyard.sim.serverless import Platform, ServerlessResult, Workload, run
from steelyard.sim.serverless.published import published_mix, published_platform

__all__ = ["calibrated", "hourly", "month", "published_quantiles", "runtime_of"]

DAYS = 31
_HOLIDAY = (14, 24)
"""Days 13 and 24 are the last and the first working days beside it."""


def hourly(region: int) -> pl.DataFrame:
    """Return the published mean parts and counts by hour of a region."""
    table = pl.read_csv(Path(CURVES).parent / "hourly_components.csv.gz")
    return table.filter(pl.col("region") == region).sort("hour")


def published_quantiles(runtime: str) -> tuple[float, float]:
    """Return the median and the 90th percentile of a runtime's cold starts, seconds."""
    levels, seconds = curve("cold_start", "runtime_region2", runtime)
    median, high = np.interp([0.5, 0.9], levels, seconds)
    return float(median), float(high)


def calibrated(scale: float) -> tuple[WorkloadGenerator, Platform]:
    """Return a generator whose first week has the published cold starts, and the platform.

    The factors by trigger are fitted on days 0 to 6: to the published shares by trigger, and to the
    published number of that week. Later days are not looked at.
    """
    platform = published_platform(FixedKeepAlive(), scale=scale)
    week = float(hourly(2)["cold_starts"].to_numpy()[: 7 * 24].sum()) * scale
    mix = published_mix()
    triggers = {name: sum(v for (of, _), v in mix.items() if of == name) for name, _ in mix}
    factors = dict.fromkeys(triggers, 1.0)
    for _ in range(3):
        maker = WorkloadGenerator(
            cold_starts_per_day=week / 7, days=7.0, profile=_profile(), rate_factors=factors
        )
        work = maker.make(seed=11)
        result = run(platform, work, 11)
        mine = np.array([work.functions[at].trigger for at in result.function])
        for name, share in triggers.items():
            factors[name] *= share * week / max((mine == name).sum(), 1)
    return (
        WorkloadGenerator(
            cold_starts_per_day=week / 7,
            days=DAYS,
            profile=_profile(),
            rate_factors=factors,
        ),
        platform,
    )


def _profile() -> DemandProfile:
    """Return demand as the published hourly counts of running pods move (figure 8)."""
    # Means of days 0 to 12 start on a Friday: the dips of days 1 and 2 are its weekend.
    return DemandProfile(
        diurnal=0.3,
        peak_hour=7.0,
        weekend=0.78,
        first_weekday=4,
        holiday_days=_HOLIDAY,
        holiday=0.65,
        rush=1.08,
    )


def month(scale: float, seed: int) -> tuple[Workload, Platform]:
    """Return the calibrated month with a seed that calibration did not see."""
    maker, platform = calibrated(scale)
    return maker.make(seed), platform


def runtime_of(result: ServerlessResult, work: Workload) -> np.ndarray:
    """Return each pod's runtime, as a position in `RUNTIMES`."""
    names = list(RUNTIMES)
    return np.array([names.index(item.runtime) for item in work.functions])[result.function]
