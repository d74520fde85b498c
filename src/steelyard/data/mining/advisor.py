"""Which miner for these baskets, and how many itemsets, seconds and bytes: told from a sample."""

import math
import time
from dataclasses import dataclass

import numpy as np

from steelyard.data.mining.baskets import Baskets
from steelyard.data.mining.miner import ITEMSET_BYTES, MINERS, min_count_of
from steelyard.data.mining.preparing import Prepared, prepare
from steelyard.errors import DataError
from steelyard.quantity import Z80, Forecast

__all__ = ["MiningForecast", "forecast_mining"]

_LEAST_ROWS, _LEAST_COUNT = 4000, 100
_COUNTED = {"eclat": 50_000_000, "fpgrowth": 5_000_000, "apriori": 300_000}
"""Itemsets of the sample after which each miner is stopped."""
_COUNT_SD, _SINGLE_SD, _TIME_SD = 0.02, 0.9, 0.25
"""Standard deviations in logs that remain where halves of the sample agree: of any number of
itemsets, of one (it falls with the root of their number), and of a time. Chosen on drawn baskets:
those of numbers on 80 with seeds from 2,000,000 on, that of a time on seeds from 1000 on."""
_CLEARLY = 1.25
"""Another miner than Eclat is advised only where it is so much faster by the forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningForecast:
    """What mining will give and take.

    Attributes:
        algorithm: the miner that is forecast to be the fastest.
        itemsets: forecast of their number.
        seconds: forecast of each miner's time, the reading of the baskets left out.
        memory: forecast of the memory of the result while it is made.
        sample_rows: baskets that were looked at.
        sample_s: seconds that the forecast took.
    """

    algorithm: str
    itemsets: Forecast
    seconds: dict[str, Forecast]
    memory: Forecast
    sample_rows: int
    sample_s: float


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What a sample showed."""

    rows: int
    count: int
    seconds: dict[str, float]


def forecast_mining(baskets: Baskets, min_support: float, *, seed: int = 0) -> MiningForecast:
    """Forecast what mining baskets will give and take, from at most half of them.

    The sample is large enough that an itemset at the support holds in a hundred of its baskets.
    Chance lifts more itemsets above the support than it takes below, the more so in a small
    sample: its two halves show how much, and the forecast is corrected by that.

    Args:
        baskets: the baskets; at least four.
        min_support: share of the baskets that must hold an itemset, in (0, 1].
        seed: seed of the sample.

    Returns:
        The forecasts, with 80 % intervals.

    Raises:
        ConfigError: the support is outside of (0, 1].
        DataError: there are fewer than four baskets.
    """
    total = len(baskets)
    if total < 4:
        raise DataError(f"{total} baskets are too few for a sample", hint="mine them as they are")
    began_s = time.perf_counter()
    min_count_of(min_support, total)
    wanted = max(_LEAST_ROWS, math.ceil(_LEAST_COUNT / min_support))
    rows = np.random.default_rng(seed).permutation(total)[: max(2, min(wanted, total // 2))]
    whole = _sampled(baskets, rows, min_support, timed=True)
    middle = len(rows) // 2
    halves = [
        _sampled(baskets, part, min_support, timed=place == 0)
        for place, part in enumerate((rows[:middle], rows[middle:]))
    ]
    itemsets = _count_forecast(whole, halves, total)
    seconds = {
        name: _time_forecast(name, whole, halves[0], total, itemsets) for name in whole.seconds
    }
    return MiningForecast(
        algorithm=_fastest(seconds),
        itemsets=itemsets,
        seconds=seconds,
        memory=Forecast(
            quantity="data.mining_memory",
            value=ITEMSET_BYTES * itemsets.value,
            low=ITEMSET_BYTES / 3 * itemsets.low,
            high=ITEMSET_BYTES * itemsets.high,
            provenance="derived",
            source=f"{ITEMSET_BYTES} bytes an itemset",
        ),
        sample_rows=len(rows),
        sample_s=time.perf_counter() - began_s,
    )


def _fastest(seconds: dict[str, Forecast]) -> str:
    """Return the miner to take."""
    found = min(seconds, key=lambda name: seconds[name].value)
    return found if seconds[found].value * _CLEARLY < seconds["eclat"].value else "eclat"


def _sampled(baskets: Baskets, rows: np.ndarray, min_support: float, *, timed: bool) -> _Sampled:
    """Count the itemsets of some baskets, and time miners on them."""
    lengths = np.diff(baskets.begins)[rows]
    begins = np.concatenate([[0], np.cumsum(lengths)])
    at = np.arange(begins[-1]) + np.repeat(baskets.begins[rows] - begins[:-1], lengths)
    min_count = min_count_of(min_support, len(rows))
    began_s = time.perf_counter()
    ready = prepare(begins, baskets.items[at], len(baskets.labels), min_count)
    prepared_s = time.perf_counter() - began_s
    count, eclat_s = _timed("eclat", ready, min_count)
    seconds = {"eclat": prepared_s + eclat_s}
    for name in ("fpgrowth", "apriori") if timed else ():
        done, took_s = _timed(name, ready, min_count)
        # Where a miner was stopped, the rest is taken to cost as much an itemset.
        seconds[name] = prepared_s + took_s * max(1.0, count / max(done, 1))
    return _Sampled(len(rows), count, seconds)


def _timed(name: str, ready: Prepared, min_count: int) -> tuple[int, float]:
    """Return the itemsets that a miner counted, and its seconds."""
    miner, limit = MINERS[name], _COUNTED[name]
    span = (0, ready.num_items, min_count)
    # Compiled, or taken from the cache, before the clock starts.
    miner(ready, 0, min(1, ready.num_items), min_count, limit=1, stored=False)
    began_s = time.perf_counter()
    count = miner(ready, *span, limit=limit, stored=False)[3]
    return int(count), time.perf_counter() - began_s


def _count_forecast(whole: _Sampled, halves: list[_Sampled], total: int) -> Forecast:
    """Forecast the itemsets of all baskets."""
    logs = [math.log(max(part.count, 1)) for part in (whole, *halves)]
    excess = (logs[1] + logs[2]) / 2 - logs[0]
    # The excess goes with 1 / rows: from half the sample to all of it as from it to no rows at all.
    left = 1 - whole.rows / total
    value = math.exp(logs[0] - excess * left) if whole.count else 0.0
    spread = math.hypot(
        _COUNT_SD,
        _SINGLE_SD * math.sqrt(left / max(whole.count, 1)),
        math.sqrt(left) * (logs[1] - logs[2]) / 2,
        left * excess / 2,
    )
    wide = math.exp(Z80 * spread)
    high = max(value, 1.0) * wide if whole.count < _COUNTED["eclat"] else math.inf
    return Forecast(
        quantity="data.itemsets",
        value=value,
        low=value / wide,
        high=high,
        provenance="fitted",
        source=f"a sample of {whole.rows:,} of {total:,} baskets, and its halves",
    )


def _time_forecast(
    name: str, whole: _Sampled, half: _Sampled, total: int, itemsets: Forecast
) -> Forecast:
    """Forecast the time of a miner: how it grew from half the sample to the sample goes on."""
    grown = math.log2(max(whole.seconds[name], 1e-6) / max(half.seconds[name], 1e-6))
    power = min(max(grown, 0.5), 1.0)
    ratio = total / whole.rows
    value = whole.seconds[name] * ratio**power * itemsets.value / max(whole.count, 1)
    wide = math.exp(Z80 * (_TIME_SD + 0.1 * math.log(ratio)))
    return Forecast(
        quantity="data.mining_time",
        value=value,
        low=value / wide,
        high=value * wide,
        provenance="fitted",
        source=f"timed on {half.rows:,} and {whole.rows:,} baskets",
    )
