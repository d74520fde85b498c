"""Contexts of every kind of finite number: none of them may make a forecast that is not finite."""

import numpy as np
from benchmarks.common import Check

from steelyard.operate.forecast import Forecaster, RecentQuantiles, SeasonalNaive
from steelyard.operate.forecast.ets import DampedETS
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.series import SeriesSet

__all__ = ["wild_checks"]

_LONGEST = 400
_HORIZON = 48


def wild_checks(count: int) -> list[Check]:
    """Forecast wild contexts; count forecasts that are not finite or far outside the range."""
    bad = 0
    encoder = MaskedEncoderForecaster.shipped()
    for part in range(0, count, 1000):
        context = _contexts(min(1000, count - part), part)
        bad += _count_bad(encoder, context)
        # The others are simpler and get every tenth.
        tenth = np.arange(0, len(context), 10)
        some = context.cut(tenth, np.zeros_like(tenth), context.lengths[tenth])
        for rule in (RecentQuantiles(), SeasonalNaive(), DampedETS()):
            bad += _count_bad(rule, some)
    print(
        f"{count:,} wild contexts, a tenth of them for rules and smoothing: {bad} forecasts were "
        "not finite or far out"
    )
    return [Check(f"7 bad forecasts of {count:,} wild contexts", bad, 0, "lower")]


def _count_bad(forecaster: Forecaster, context: SeriesSet) -> int:
    """Count a forecaster's bad forecasts."""
    made = forecaster.predict(context, _HORIZON)
    return sum(_is_bad(item.values, context.row(row)) for row, item in enumerate(made))


def _contexts(count: int, seed: int) -> SeriesSet:
    """Draw contexts: sizes over 600 decades, constants, jumps, holes, from one value to 400."""
    rng = np.random.default_rng((97, seed))
    rows = []
    for _ in range(count):
        length = int(np.ceil(_LONGEST ** rng.uniform()))
        kind = rng.integers(5)
        if kind == 0:
            values = rng.choice([-1, 1], length) * 10.0 ** rng.uniform(-300, 307.5, length)
        elif kind == 1:
            values = np.full(length, rng.normal() * 10.0 ** rng.uniform(-300, 300))
        elif kind == 2:
            values = np.cumsum(rng.standard_cauchy(length)) * 10.0 ** rng.uniform(-20, 20)
        elif kind == 3:
            values = np.where(rng.uniform(size=length) < 0.05, 10.0 ** rng.uniform(0, 200), 1.0)
        else:
            values = np.exp(np.clip(np.arange(length) * rng.normal(), -600, 600))
        if rng.uniform() < 0.3:
            values = np.where(rng.uniform(size=length) < rng.uniform(), np.nan, values)
            values[rng.integers(length)] = 1.0
        rows.append(values)
    steps = rng.choice([1.0, 60.0, 300.0, 3600.0, 86_400.0], count)
    return SeriesSet.from_arrays(rows, step_s=list(steps))


def _is_bad(made: np.ndarray, context: np.ndarray) -> bool:
    """Tell whether a forecast is not finite, or beyond the past's range by more than its width."""
    if not np.isfinite(made).all():
        return True
    # In quarters, because the range of the largest floats is no float itself.
    low, high = np.nanmin(context) / 4, np.nanmax(context) / 4
    reach = (high - low) * (1 + 1e-9) + 1e-300
    return bool((made / 4 < low - reach).any() or (made / 4 > high + reach).any())
