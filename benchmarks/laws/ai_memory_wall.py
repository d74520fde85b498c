"""How fast peak FLOPS outgrow bandwidths, and what that does to models.

Points and tables are those of Gholami et al. 2024 ("AI and Memory Wall", arXiv 2403.14123) and the
catalog's own chips. Trends are fitted; operation counts and training memory are compared with torch
and with the paper's tables; times are predicted from a calibration of this machine and measured.
"""

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._shared import shared
from benchmarks.laws._wall_counts import count_checks
from benchmarks.laws._wall_measured import measured_checks

from steelyard import laws
from steelyard.laws import Fit

PAPER: list[str] = ["24-ai-memory-wall"]

_PUBLISHED = {
    "peak_flops": (3.0, 0.2),
    "dram_bandwidth": (1.6, 0.1),
    "interconnect_bandwidth": (1.4, 0.1),
}
_CHIP_QUANTITIES = ("peak_flops_per_s", "memory_bytes_per_s", "scale_up_bytes_per_s")
_H100 = "H100-SXM5-80GB"
_H100_YEAR = 2022.0


def run(quick: bool) -> list[Check]:
    """Fit, count and measure; `quick` takes fewer bootstraps, shorter probes and two lengths."""
    bootstraps = 1000 if quick else 10000
    points = pl.read_csv(shared("memory-wall") / "hw_trend_points.csv")
    trends = {}
    for series in _PUBLISHED:
        rows = points.filter(pl.col("series") == series)
        trends[series] = laws.growth.fit_growth(
            rows["year"],
            rows["normalized_value"],
            period_years=2,
            bootstrap=laws.Bootstrap(count=bootstraps),
            source=series,
        )
        _print_trend(trends[series])
    checks = [
        Check(
            f"1 {series} growth per two years, error against {factor}",
            abs(laws.growth.growth_in(trends[series], 2.0).value - factor),
            bar,
            "lower",
        )
        for series, (factor, bar) in _PUBLISHED.items()
    ]
    inside = 0
    for series, (factor, _) in _PUBLISHED.items():
        said = laws.growth.growth_in(trends[series], 2.0, intervals="bootstrap")
        inside += said.low <= factor <= said.high
    _print_forecast(trends)
    return [
        *checks,
        Check("1 published factors inside the 95 % bootstrap intervals", inside, 3, "higher"),
        *_catalog(),
        *count_checks(),
        *measured_checks(quick),
    ]


def _print_trend(trend: Fit) -> None:
    """Print one trend with both intervals."""
    t = laws.growth.growth_in(trend, 2.0)
    resampled = laws.growth.growth_in(trend, 2.0, intervals="bootstrap")
    doubling = laws.growth.doubling_time_years(trend)
    last = laws.growth.last_residual(trend)
    print(
        f"{trend.source}: n {trend.num_points}, "
        f"{trend.inputs['year'].min():.0f}-{trend.inputs['year'].max():.0f}, per two years "
        f"{t.value:.2f}x, 95 % t {t.low:.2f}-{t.high:.2f}, bootstrap "
        f"{resampled.low:.2f}-{resampled.high:.2f}, doubles in "
        f"{doubling.value:.2f} years; last point {last.value:.2f}x the line (noise alone: "
        f"{last.low:.2f}-{last.high:.2f})"
    )


def _print_forecast(trends: dict[str, Fit]) -> None:
    """Print where the balance of an H100 goes if both trends last."""
    now = laws.growth.balance_points(_H100)["memory"]
    wall = laws.growth.wall(
        trends["peak_flops"],
        trends["dram_bandwidth"],
        [4.0, 8.0],
        balance_now=now,
        year_now=_H100_YEAR,
    )
    doubling = wall.doubling_time_years
    print(
        f"FLOP per byte of DRAM doubles in {doubling.value:.2f} years (80 %: "
        f"{doubling.low:.2f}-{doubling.high:.2f}); {_H100}: {now:.0f}"
    )
    for index, year in enumerate(wall.year):
        said = (float(end[index]) for end in (wall.batch.value, wall.batch.low, wall.batch.high))
        print(
            "  {:.0f}: {:.0f} tokens per pass keep 16-bit weights compute-bound (80 %: "
            "{:.0f}-{:.0f})".format(year, *said)
        )


def _catalog() -> list[Check]:
    """Compare the growth of three quantities of the same chips of our catalog."""
    trends = [laws.growth.chip_trend(quantity, scale_up=True) for quantity in _CHIP_QUANTITIES]
    flops, memory, link = (laws.growth.growth_in(trend, 2.0).value for trend in trends)
    for trend in trends:
        _print_trend(trend)
    slopes = [
        trend.samples[:, 1] for trend in trends
    ]  # one seed, one set of chips: the same chips are drawn in all three
    ordered = float(np.mean((slopes[0] > slopes[1]) & (slopes[1] > slopes[2])))
    years = trends[0].inputs["year"]
    print(
        f"catalog: chips of {years.min():.0f}-{years.max():.0f}; FLOPS > DRAM > link in "
        f"{100 * ordered:.0f} % of the bootstraps"
    )
    return [
        Check(
            "1 catalog chips with 16-bit peak, memory and link",
            float(trends[0].num_points),
            25.0,
            "higher",
        ),
        Check("1 catalog growth, FLOPS over DRAM", flops / memory, 1.0, "higher"),
        Check("1 catalog growth, DRAM over link", memory / link, 1.0, "higher"),
    ]
