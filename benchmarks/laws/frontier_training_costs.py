"""What training frontier models cost, and how fast that grows.

The paper is Cottier et al. 2024 (arXiv 2405.21015), the estimates are those of Epoch AI's later
snapshot.

The frontier is found here from dates and training compute: the top n of notable models that are no
fine-tunes. The ranks that the snapshot itself gives are compared, not used.
"""

import datetime

import numpy as np
import polars as pl
from benchmarks.common import Check
from benchmarks.laws._shared import shared
from benchmarks.laws._training_costs import cost_checks

from steelyard import laws

PAPER: list[str] = ["58-frontier-training-costs"]

_END = datetime.date(2024, 6, 30)
_AMORTIZED = "Hardware_Capex_Energy_Cost"
_CLOUD = "Cloud_Cost"
_PURCHASE = "Hardware_Acquisition_Cost"
_KNOWN = pl.col("hardware").is_not_null()
_ANY = pl.lit(True)
_PAPERS_INTERVAL = (2.0, 3.1)


def run(quick: bool) -> list[Check]:
    """Fit every selection that the paper reports, and print those of its robustness check.

    A top 20 would be the top 10 again: the snapshot gives costs of no model below that.
    """
    models = _models()
    top5 = _growth("amortized, top 5, known hardware", models, _AMORTIZED, 5, _KNOWN, quick)
    top10 = _growth("amortized, top 10, known hardware", models, _AMORTIZED, 10, _KNOWN, quick)
    others = {
        2.55: _growth("amortized, top 5, imputed hardware too", models, _AMORTIZED, 5, _ANY, quick),
        2.79: _growth(
            "amortized, top 10, imputed hardware too", models, _AMORTIZED, 10, _ANY, quick
        ),
        2.30: _growth("acquisition, top 10", models, _PURCHASE, 10, _ANY, quick),
        2.76: _growth("cloud, top 10", models, _CLOUD, 10, _ANY, quick),
    }
    _growth("amortized, top 3, known hardware", models, _AMORTIZED, 3, _KNOWN, quick)
    _growth(
        "amortized, upper quarter of residuals, known hardware",
        models,
        _AMORTIZED,
        0,
        _KNOWN,
        quick,
    )
    low, high = _PAPERS_INTERVAL
    return [
        *cost_checks(),
        Check("2 growth per year, top 5, error against 2.47", abs(top5[0] - 2.47), 0.02, "lower"),
        Check("2 growth per year, top 10, error against 2.60", abs(top10[0] - 2.60), 0.02, "lower"),
        Check("2 models in the top 5, error against 32", abs(top5[1] - 32), 0, "lower"),
        Check("2 models in the top 10, error against 58", abs(top10[1] - 58), 0, "lower"),
        Check(
            "2 growths inside the paper's 2.0 to 3.1",
            sum(low <= item[0] <= high for item in (top5, top10)),
            2,
            "higher",
        ),
        Check(
            "2 other selections and costs, largest error",
            max(abs(found[0] - said) for said, found in others.items()),
            0.02,
            "lower",
        ),
        Check("2 ranks equal to the published, fraction", _agreement(models), 0.95, "higher"),
    ]


def _agreement(models: pl.DataFrame) -> float:
    """Return the fraction of the snapshot's ranks that ours equal."""
    given = models.filter(pl.col("compute_rank").is_not_null())
    return float(np.mean(given["rank"].to_numpy() == given["compute_rank"].to_numpy()))


def _models() -> pl.DataFrame:
    """Read notable models that are no fine-tunes, with rank at publication and published costs."""
    folder = shared("epoch-training-costs")
    notable = pl.read_csv(folder / "models.csv", infer_schema_length=None).filter(
        pl.col("notability").is_not_null()
        & pl.col("base_model").is_null()
        & pl.col("publication_date").is_not_null()
    )
    year = [
        laws.growth.decimal_year(datetime.date.fromisoformat(date))
        for date in notable["publication_date"]
    ]
    compute = notable["training_compute_flop"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    ranked = notable.with_columns(
        year=pl.Series(year),
        rank=pl.Series(laws.growth.rank_at_publication(year, compute)),
        above_trend=pl.Series(laws.growth.above_trend(year, compute)),
    )
    costs = pl.read_csv(folder / "published_costs.csv")
    return ranked.join(costs, left_on="model", right_on="Model", how="left")


def _growth(
    rule: str, models: pl.DataFrame, cost: str, top: int, hardware: pl.Expr, quick: bool
) -> tuple[float, int]:
    """Fit the growth of a cost for one rule of selection.

    Args:
        rule: name of the selection, for the print.
        models: models with rank, residual and costs.
        cost: column of the cost.
        top: largest rank at publication; 0 selects by the residual from the trend.
        hardware: condition on what is known of the hardware.
        quick: whether to take fewer bootstraps.

    Returns:
        Factor per year, and the number of models.
    """
    is_chosen = (pl.col("rank") >= 1) & (pl.col("rank") <= top) if top else pl.col("above_trend")
    # The snapshot is later than the paper, so models that the paper could not know are left out.
    is_dated = pl.col("year") <= laws.growth.decimal_year(_END)
    rows = models.filter(is_chosen & is_dated & hardware & pl.col(cost).is_not_null())
    trend = laws.growth.fit_growth(
        rows["year"],
        rows[cost],
        bootstrap=laws.Bootstrap(count=500 if quick else 5000),
        source=rule,
    )
    t = laws.growth.growth_per_year(trend)
    resampled = laws.growth.growth_per_year(trend, intervals="bootstrap")
    crossing = laws.growth.crossing_year(trend, 1e9)
    print(
        f"{rule}: n {trend.num_points}, {np.min(rows['year'].to_numpy()):.1f} to mid 2024, "
        f"{t.value:.2f}x a year, 95 % t "
        f"{t.low:.2f}-{t.high:.2f}, bootstrap {resampled.low:.2f}-{resampled.high:.2f}; 1e9 USD "
        f"in {crossing.value:.0f} "
        f"(80 %: {crossing.low:.0f}-{crossing.high:.0f})"
    )
    return t.value, trend.num_points
