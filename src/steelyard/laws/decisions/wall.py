"""The memory wall: how fast the peaks of accelerators outgrow their bandwidths.

The balance of a device is its peak FLOP/s over a bandwidth in byte/s: the FLOP it can do while a
byte arrives. Work with less arithmetic per byte waits for memory. A product with weights does 2
FLOP per weight and token, so the number of tokens in a pass that keeps it compute-bound is the
balance times the bytes per weight over 2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import CatalogError, FitError
from steelyard.laws.fitting.estimate import Estimate, student
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.points import check_positive
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.growth import fit_growth
from steelyard.laws.forms.growth_line import line_of, years_to_gain

__all__ = ["Wall", "balance_points", "chip_points", "chip_trend", "wall"]

_QUANTITIES = (
    "peak_flops_per_s",
    "memory_bytes_per_s",
    "scale_up_bytes_per_s",
    "host_link_bytes_per_s",
    "memory_bytes",
)
_TIERS = {
    "memory": "memory_bytes_per_s",
    "scale_up": "scale_up_bytes_per_s",
    "host": "host_link_bytes_per_s",
}
_HALF = ("bf16", "fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wall:
    """A forecast of balance points.

    Attributes:
        year: decimal years, [m].
        balance: FLOP per byte, [m].
        batch: tokens per pass from which products with weights are compute-bound, [m].
        growth_per_year: factor by which the balance grows in a year.
        doubling_time_years: years in which it doubles; infinite ends where the trends do not settle
            whether it grows.
        year_now: year of the known balance.
        balance_now: the known balance, FLOP per byte.
        bytes_per_weight: bytes of a weight, 2 for 16 bit.
        level: probability inside the intervals.
        slope: growth of the balance's natural log per year.
    """

    year: Array
    balance: Prediction
    batch: Prediction
    growth_per_year: Estimate
    doubling_time_years: Estimate
    year_now: float
    balance_now: float
    bytes_per_weight: float
    level: float
    slope: Estimate

    def years_until(self, batch: float) -> Estimate:
        """Say after how many years products with this many tokens per pass turn memory-bound.

        Args:
            batch: tokens per pass, positive: sequences of a decode step, or tokens of a prefill
                chunk.

        Returns:
            Years from `year_now`; negative when they are memory-bound already, an infinite end
            where the trend may be flat.

        Raises:
            FitError: the batch is not positive.

        Source: Gholami et al. 2024 (arXiv 2403.14123): with the growth per two years, 2 ln(needed /
            now) / ln(3.0 / 1.6).
        """
        if not (math.isfinite(batch) and batch > 0):
            raise FitError(
                f"a batch of {batch:g} tokens keeps nothing busy",
                hint="give a positive number of tokens per pass",
            )
        goal = math.log(2 * batch / self.bytes_per_weight / self.balance_now)
        return years_to_gain(goal, self.slope)


def wall(
    compute: Fit,
    bandwidth: Fit,
    years_ahead: ArrayLike,
    *,
    balance_now: float,
    year_now: float,
    bytes_per_weight: float = 2.0,
    level: float = 0.8,
) -> Wall:
    """Forecast how the balance of accelerators moves when both trends go on.

    Args:
        compute: growth of peak FLOP/s, in any unit.
        bandwidth: growth of a bandwidth, in any unit.
        years_ahead: years from `year_now`, [m] or a single number.
        balance_now: FLOP per byte of a device of today, such as
            `balance_points("H100-SXM5-80GB")["memory"]`.
        year_now: decimal year of that device.
        bytes_per_weight: bytes of a weight as it is read, 2 for 16 bit.
        level: probability inside the intervals, 0..1. They hold the uncertainty of both slopes, not
            that a trend bends.

    Returns:
        Balances and batches with their growth.

    Raises:
        FitError: the trends are not growth laws, or the balance or the bytes are not positive.

    Source: Gholami et al. 2024 (arXiv 2403.14123). The interval of the difference of two slopes is
        Welch's.
    """
    check_positive(balance_now=balance_now, bytes_per_weight=bytes_per_weight)
    top, bottom = line_of(compute), line_of(bandwidth)
    slope = top.slope - bottom.slope
    sd = math.hypot(top.slope_sd, bottom.slope_sd)
    # Welch's degrees of freedom: the trends have noise of different size.
    freedom = (
        sd**4 / (top.slope_sd**4 / top.freedom + bottom.slope_sd**4 / bottom.freedom)
        if sd > 0
        else float(top.freedom)
    )
    half = student(freedom, level) * sd
    ahead = np.atleast_1d(np.asarray(years_ahead, dtype=np.float64))
    ends = [
        balance_now * np.exp(ahead * slope + sign * np.abs(ahead) * half) for sign in (0, -1, 1)
    ]
    per_token = bytes_per_weight / 2
    rate = Estimate(slope, slope - half, slope + half)
    return Wall(
        year=year_now + ahead,
        balance=Prediction(*ends),
        batch=Prediction(*(end * per_token for end in ends)),
        growth_per_year=Estimate(*(math.exp(slope + sign * half) for sign in (0, -1, 1))),
        doubling_time_years=years_to_gain(math.log(2), rate),
        year_now=year_now,
        balance_now=balance_now,
        bytes_per_weight=bytes_per_weight,
        level=level,
        slope=rate,
    )


def balance_points(accelerator: str, dtype: str = "") -> dict[str, float]:
    """Return the balance of a device of the catalog at each tier of its memory.

    Args:
        accelerator: catalog name.
        dtype: number type of the arithmetic; empty for bf16, or fp16 where a device has no bf16.

    Returns:
        FLOP per byte by tier: "memory", "scale_up" (peers in the node), "host"; tiers without a
        known bandwidth are left out.

    Raises:
        CatalogError: no such device, or it has no peak for the dtype.
    """
    from steelyard import catalog

    chip = catalog.accelerator(accelerator)
    peak = _peak(chip.peak_flops_per_s, (dtype,) if dtype else _HALF)
    if not peak:
        raise CatalogError(
            f"{accelerator} has no {dtype or '16-bit'} peak",
            hint=f"it has {', '.join(chip.peak_flops_per_s)}",
        )
    return {
        tier: peak / getattr(chip, name) for tier, name in _TIERS.items() if getattr(chip, name) > 0
    }


def chip_points(
    quantity: str, *, dtypes: Sequence[str] = _HALF, since: int = 2010, scale_up: bool = False
) -> tuple[Array, Array, tuple[str, ...]]:
    """Read one quantity of the catalog's accelerators over their first years of sale.

    Processors are left out.

    Args:
        quantity: field of `catalog.Accelerator`: "peak_flops_per_s", "memory_bytes_per_s",
            "scale_up_bytes_per_s", "host_link_bytes_per_s" or "memory_bytes".
        dtypes: number types of the peak, the first that a chip has; one precision per series,
            because their trends differ.
        since: first year.
        scale_up: whether to keep only chips with a link to peers and a peak in `dtypes`, so that
            several quantities are read from the same chips.

    Returns:
        Years [n], values in SI base units [n], and the chips' names.

    Raises:
        CatalogError: no such quantity.
    """
    from steelyard import catalog

    if quantity not in _QUANTITIES:
        raise CatalogError(
            f"no trend of {quantity!r}", hint=f"choose from {', '.join(_QUANTITIES)}"
        )
    rows = []
    for name in catalog.names("accelerators"):
        chip = catalog.accelerator(name)
        peak = _peak(chip.peak_flops_per_s, dtypes)
        value = peak if quantity == "peak_flops_per_s" else float(getattr(chip, quantity))
        is_chip = chip.kind != "cpu" and chip.confidence != "measured" and chip.year >= since
        if is_chip and value and (not scale_up or (peak and chip.scale_up_bytes_per_s)):
            rows.append((float(chip.year), value, name))
    years, values, names = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(years), np.array(values), tuple(names)


def chip_trend(
    quantity: str, *, dtypes: Sequence[str] = _HALF, since: int = 2010, scale_up: bool = False
) -> Fit:
    """Fit the growth of one quantity of the catalog's accelerators.

    Args:
        quantity: field of `catalog.Accelerator`, as for `chip_points`.
        dtypes: number types of the peak, the first that a chip has.
        since: first year.
        scale_up: whether to keep only chips with a link to peers.

    Returns:
        Growth per two years, for the functions of `steelyard.laws.forms.growth_line`.
    """
    years, values, names = chip_points(quantity, dtypes=dtypes, since=since, scale_up=scale_up)
    words = f"{'/'.join(dtypes)} {quantity}" if quantity == "peak_flops_per_s" else quantity
    return fit_growth(
        years,
        values,
        period_years=2.0,
        source=f"{words} of {len(names)} accelerators of the catalog",
    )


def _peak(peaks: Mapping[str, float], dtypes: Sequence[str]) -> float:
    """Return the peak of the first dtype that is known, 0 for none."""
    return next((peaks[dtype] for dtype in dtypes if peaks.get(dtype)), 0.0)
