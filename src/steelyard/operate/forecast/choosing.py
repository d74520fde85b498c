"""A model is used only where it beat the best simple rule on the series' own past."""

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.errors import TraceError
from steelyard.operate.forecast.evaluation import ForecastReport, SeriesScore, evaluate
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.guarded import GuardedForecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.forecast.simple import RecentQuantiles, SeasonalNaive
from steelyard.operate.series import SeriesSet

__all__ = ["Choice", "ChosenForecaster", "simple_rules"]

_MOST_WINDOWS = 12


def simple_rules() -> list[Forecaster]:
    """Return the rules that every model has to beat."""
    return [RecentQuantiles(), SeasonalNaive()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is used for one series, and why.

    Attributes:
        series: its id.
        rule: best simple rule on its past windows; "RecentQuantiles" where it has none.
        rule_score: what that scored; None without past windows.
        model: best model on the same windows, empty without one.
        model_score: what that scored.
        used: the model where it scored below the rule, else the rule.
    """

    series: str
    rule: str
    rule_score: SeriesScore | None
    model: str
    model_score: SeriesScore | None
    used: str


class ChosenForecaster:
    """Tries rules and models on a user's own past windows, and uses what did best.

    Attributes:
        name: "Chosen".
        choices: what is used for each series that `fit` saw, by id.
        reports: what each forecaster scored on the past windows, by name.
        windows: past windows a series that were scored; 0 where the series are too short.
    """

    def __init__(
        self,
        models: Sequence[Forecaster],
        *,
        horizon: int = 48,
        windows: int = _MOST_WINDOWS,
        deadline_s: float = 0.0,
    ) -> None:
        """Say what is tried.

        Args:
            models: tried beside the simple rules; a model that learns has been fitted.
            horizon: steps of the windows that it is tried on.
            windows: most past windows of each series.
            deadline_s: seconds that a forecast may take before a rule stands in; 0 for no limit.
        """
        self.name = "Chosen"
        self.choices: dict[str, Choice] = {}
        self.reports: dict[str, ForecastReport] = {}
        self.windows = 0
        self._rules = simple_rules()
        self._models = [GuardedForecaster(item, deadline_s=deadline_s) for item in models]
        self._horizon = horizon
        self._most = windows

    def fit(self, series: SeriesSet) -> None:
        """Score rules and models on the last windows of the series, and choose for each.

        Args:
            series: the past; nothing of what is forecast later.
        """
        horizon = self._horizon
        # Half of the shortest series stays context, so that no window is forecast from nothing.
        room = int(min(series.lengths, default=0)) // 2 // horizon
        self.windows = min(self._most, room)
        self.reports = {}
        if self.windows:
            for forecaster in (*self._rules, *self._models):
                found = evaluate(forecaster, series, horizon, self.windows, horizon)
                self.reports[forecaster.name] = found
        self.choices = {name: self._choice(name) for name in series.ids}

    def _choice(self, name: str) -> Choice:
        """Choose for one series."""
        scores = {key: report.series[name] for key, report in self.reports.items()}
        rules = [item.name for item in self._rules]
        models = [item.name for item in self._models]
        if not scores:
            # Nothing was tried on this series, so nothing but the plainest rule is justified.
            return Choice(
                series=name,
                rule=rules[0],
                rule_score=None,
                model=models[0] if models else "",
                model_score=None,
                used=rules[0],
            )
        rule = min(rules, key=lambda key: scores[key].crps)
        model = min(models, key=lambda key: scores[key].crps) if models else ""
        is_better = bool(model) and scores[model].crps < scores[rule].crps
        return Choice(
            series=name,
            rule=rule,
            rule_score=scores[rule],
            model=model,
            model_score=scores[model] if model else None,
            used=model if is_better else rule,
        )

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does; each series with what was chosen for it.

        Raises:
            TraceError: a context is of a series that `fit` did not see, or has too few values.
        """
        # Windows of one series are told apart behind an @, as `SeriesSet.cut` names them.
        owners = [name if name in self.choices else name.rpartition("@")[0] for name in context.ids]
        unknown = [
            name for name, own in zip(context.ids, owners, strict=True) if own not in self.choices
        ]
        if unknown:
            raise TraceError(
                f"nothing was chosen for series {unknown[0]!r}", hint="call fit with its past first"
            )
        made: dict[int, SampleForecast] = {}
        for forecaster in (*self._rules, *self._models):
            rows = [
                row for row, own in enumerate(owners) if self.choices[own].used == forecaster.name
            ]
            if rows:
                part = context.cut(rows, [0] * len(rows), context.lengths[rows])
                made |= zip(rows, forecaster.predict(part, horizon), strict=True)
        return [made[row] for row in range(len(context))]
