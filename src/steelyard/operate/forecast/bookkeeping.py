"""Forecasts are written down when they are made, and checked when their steps have come.

Each step of a forecast becomes one checked pair in the ledger, under the forecaster's name.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from steelyard.operate.forecast.guarded import forecaster_of
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet
from steelyard.quantity import Check, Forecast, Measurement

if TYPE_CHECKING:
    from steelyard.runs.record import RunRecord
    from steelyard.runs.store import RunStore

__all__ = [
    "CheckedStep",
    "SaidSteps",
    "enter",
    "held_by_forecaster",
    "held_share",
    "remember",
    "settle",
]

KIND = "forecast"
QUANTITY = "operate.series_value"
_MOST_SERIES = 100
_MOST_RUNS = 50

CheckedStep = tuple[str, Check, str]
"""The ledger's name of a forecaster, one of its steps beside what came, and a key of its own."""


class _Quantiles(Protocol):
    """A forecast whose quantiles can be read."""

    @property
    def source(self) -> str:
        """Who made it."""
        ...

    def quantile(self, level: float) -> Any:
        """Return the quantile of each step."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SaidSteps:
    """What one forecast said of each of its steps.

    Attributes:
        series: id of the series.
        forecaster: who made it.
        first_s: time of its first step, in the series' own clock.
        step_s: seconds of a step.
        low: [n] lower end of the 80 % interval of each step.
        value: [n] median.
        high: [n] upper end.
    """

    series: str
    forecaster: str
    first_s: float
    step_s: float
    low: tuple[float, ...]
    value: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, forecast: _Quantiles, *, series: str, first_s: float, step_s: float) -> "SaidSteps":
        """Read the median and the 80 % interval off a forecast."""
        read = np.array([np.ravel(forecast.quantile(level)) for level in (0.1, 0.5, 0.9)], float)
        # Of values that are all alike, one quantile may round below a lower one.
        low, value, high = (tuple(row) for row in np.sort(read, axis=0).tolist())
        return cls(
            series=series,
            forecaster=forecaster_of(forecast.source),
            first_s=first_s,
            step_s=step_s,
            low=low,
            value=value,
            high=high,
        )

    def checked(
        self, values: np.ndarray, *, start_s: float, source: str, key: str, quantity: str
    ) -> list[CheckedStep]:
        """Pair the steps with what came.

        Args:
            values: [m] observed values, NaN where there was none.
            start_s: time of the first of them.
            source: where the forecast is kept, for people.
            key: what tells this forecast from others.
            quantity: name from `steelyard.quantity.QUANTITIES`.

        Returns:
            Steps that were observed; none where these values are on another grid: that is another
            series, whatever its name.
        """
        first = (self.first_s - start_s) / self.step_s
        if abs(first - round(first)) > 0.25:
            return []
        found: list[CheckedStep] = []
        parts = zip(self.low, self.value, self.high, strict=True)
        for step, (low, value, high) in enumerate(parts):
            place = round(first) + step
            if not 0 <= place < len(values) or not math.isfinite(values[place]):
                continue
            said = Forecast(
                quantity=quantity,
                value=value,
                low=low,
                high=high,
                provenance="fitted",
                source=source,
            )
            time_s = self.first_s + step * self.step_s
            came = Measurement(quantity=quantity, value=float(values[place]), time_s=time_s)
            found.append((f"operate.{self.forecaster}", Check(said, came), f"{key}:{step}"))
        return found


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
        step_s = float(context.step_s[index])
        first_s = float(context.start_s[index]) + step_s * int(context.lengths[index])
        kept.append(asdict(SaidSteps.of(item, series=name, first_s=first_s, step_s=step_s)))
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
    found: list[CheckedStep] = []
    for record in store.list(kind=KIND, limit=_MOST_RUNS):
        found += _of_run(record, series)
    enter(store, found)
    return [(name, check) for name, check, _ in found]


def enter(store: "RunStore", found: Iterable[CheckedStep]) -> None:
    """Enter checked steps in the ledger; one whose key is there already takes its place.

    Args:
        store: the run store.
        found: steps of any forecasters.
    """
    from steelyard.runs.ledger import Ledger

    ledger = Ledger(store)
    own: dict[str, list[CheckedStep]] = defaultdict(list)
    for item in found:
        own[item[0]].append(item)
    for forecaster, items in own.items():
        ledger.record(forecaster, [item[1] for item in items], [item[2] for item in items])


def _of_run(record: "RunRecord", series: SeriesSet) -> list[CheckedStep]:
    """Pair what one run forecast with what came; each with a key of its own."""
    found: list[CheckedStep] = []
    for number, item in enumerate(json.loads(record.recipe.get("forecasts", "[]"))):
        said = SaidSteps(**item)
        if said.series not in series.ids:
            continue
        row = series.index(said.series)
        if float(series.step_s[row]) != said.step_s:
            continue
        found += said.checked(
            series.row(row),
            start_s=float(series.start_s[row]),
            source=f"forecast {record.id}",
            key=f"{record.id}:{number}",
            quantity=QUANTITY,
        )
    return found


def held_share(checks: Sequence[Check]) -> float:
    """Return the share of pairs whose 80 % interval held; NaN without pairs."""
    return float(np.mean([item.covered for item in checks])) if checks else float("nan")


def held_by_forecaster(found: Iterable[CheckedStep]) -> dict[str, tuple[int, float]]:
    """Return how many steps of each forecaster were checked, and the share that held."""
    checks: dict[str, list[Check]] = defaultdict(list)
    for name, check, _ in found:
        checks[name].append(check)
    return {name: (len(items), held_share(items)) for name, items in sorted(checks.items())}
