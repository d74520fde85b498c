"""Forecasts are written down when they are made, and checked when their steps have come.

Each step of a forecast becomes one checked pair in the ledger, under the forecaster's name.
"""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet
from steelyard.quantity import Check, Forecast, Measurement

if TYPE_CHECKING:
    from steelyard.runs.record import RunRecord
    from steelyard.runs.store import RunStore

__all__ = ["remember", "settle"]

KIND = "forecast"
QUANTITY = "operate.series_value"
_MOST_SERIES = 100
_MOST_RUNS = 50


def remember(
    store: "RunStore", source: str, context: SeriesSet, forecasts: Sequence[SampleForecast]
) -> str:
    """Write down what was forecast, to be checked by `settle`.

    Args:
        store: the run store.
        source: where the series came from.
        context: what was known.
        forecasts: one a series; of more than 100, the first 100 are kept.

    Returns:
        Id of the run that holds them.
    """
    kept = []
    pairs = list(zip(context.ids, forecasts, strict=True))[:_MOST_SERIES]
    for index, (name, item) in enumerate(pairs):
        low, high = item.interval()
        step_s = float(context.step_s[index])
        kept.append(
            {
                "series": name,
                "forecaster": item.source,
                "first_s": float(context.start_s[index]) + step_s * int(context.lengths[index]),
                "step_s": step_s,
                "low": low.tolist(),
                "value": item.quantile(0.5).tolist(),
                "high": high.tolist(),
            }
        )
    # As text: every number of a nested recipe would become a field to compare runs by.
    recipe = {"source": source, "forecasts": json.dumps(kept)}
    with store.create(KIND, recipe, seed=0, name=source) as run:
        return run.id


def settle(store: "RunStore", series: SeriesSet) -> list[tuple[str, Check]]:
    """Check earlier forecasts whose steps these series now hold, and enter them in the ledger.

    A step that is settled again replaces its earlier pair, so each counts once.

    Args:
        store: the run store.
        series: what was observed.

    Returns:
        (forecaster, pair) of every step found, of the last 50 runs that forecast.
    """
    from steelyard.runs.ledger import Ledger

    found: list[tuple[str, Check, str]] = []
    for record in store.list(kind=KIND, limit=_MOST_RUNS):
        found += _of_run(record, series)
    ledger = Ledger(store)
    for forecaster in dict.fromkeys(name for name, _, _ in found):
        own = [(check, key) for name, check, key in found if name == forecaster]
        ledger.record(forecaster, [check for check, _ in own], [key for _, key in own])
    return [(name, check) for name, check, _ in found]


def _of_run(record: "RunRecord", series: SeriesSet) -> list[tuple[str, Check, str]]:
    """Pair what one run forecast with what came; each with a key of its own."""
    pairs = []
    for number, item in enumerate(json.loads(record.recipe.get("forecasts", "[]"))):
        if item["series"] not in series.ids:
            continue
        row = series.index(item["series"])
        step_s = float(series.step_s[row])
        first = (item["first_s"] - float(series.start_s[row])) / step_s
        # Another grid is another series, whatever its name.
        if step_s != item["step_s"] or abs(first - round(first)) > 0.25:
            continue
        values = series.row(row)
        for step, (low, value, high) in enumerate(
            zip(item["low"], item["value"], item["high"], strict=True)
        ):
            place = round(first) + step
            if not 0 <= place < len(values) or not math.isfinite(values[place]):
                continue
            time_s = item["first_s"] + step * step_s
            pair = _pair((low, value, high), float(values[place]), time_s, record.id)
            pairs.append((f"operate.{item['forecaster']}", pair, f"{record.id}:{number}:{step}"))
    return pairs


def _pair(said: tuple[float, float, float], came: float, time_s: float, source: str) -> Check:
    """Make the checked pair of one step."""
    low, value, high = said
    forecast = Forecast(
        quantity=QUANTITY,
        value=value,
        low=low,
        high=high,
        provenance="fitted",
        source=f"forecast {source}",
    )
    return Check(forecast, Measurement(quantity=QUANTITY, value=came, time_s=time_s))


def held_share(checks: Sequence[Check]) -> float:
    """Return the share of pairs whose 80 % interval held; NaN without pairs."""
    return float(np.mean([item.covered for item in checks])) if checks else float("nan")
