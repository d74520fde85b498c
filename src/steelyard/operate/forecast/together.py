"""A joint model for all series or none: used where it beat the best rules on their past."""

import numpy as np

from steelyard.operate.forecast.blending import past_windows
from steelyard.operate.forecast.choosing import SeriesChoice, simple_rules
from steelyard.operate.forecast.evaluation import ForecastReport, SeriesScore, evaluate
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.guarded import GuardedForecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["ChosenTogether"]

_EXACT = 1e-5


class ChosenTogether:
    """Tries a joint model and the rules on past windows, and uses the model for all or for none.

    A joint model reads all series, so it cannot stand in for one of them alone.

    Attributes:
        name: "ChosenTogether".
        choices: what is used for each series that `fit` saw, by id.
        reports: what each forecaster scored on the past windows, by name.
        windows: past windows a series that were scored; 0 where the series are too short.
    """

    def __init__(
        self, model: Forecaster, *, horizon: int, windows: int = 12, deadline_s: float = 0.0
    ) -> None:
        """Say what is tried.

        Args:
            model: the joint model; `fit` trains it.
            horizon: steps of the windows that it is tried on.
            windows: most past windows of each series.
            deadline_s: seconds that a forecast may take before a rule stands in; 0 for no limit.
        """
        self.name = "ChosenTogether"
        self.choices: dict[str, SeriesChoice] = {}
        self.reports: dict[str, ForecastReport] = {}
        self.windows = 0
        self._model = GuardedForecaster(model, deadline_s=deadline_s)
        self._rules = simple_rules()
        self._horizon, self._most = horizon, windows

    def fit(self, series: SeriesSet) -> None:
        """Train the model on what lies before the last windows, score all on them, and choose.

        Args:
            series: the past; nothing of what is forecast later.

        Raises:
            TraceError: the model refuses the series.
        """
        horizon = self._horizon
        self.windows = past_windows(series, horizon, self._most)
        self.reports = {}
        if self.windows:
            self._model.fit(series.before(self.windows * horizon))
            self.reports = {
                item.name: evaluate(item, series, horizon, self.windows, horizon)
                for item in (*self._rules, self._model)
            }
        found = {name: self._scores(name) for name in series.ids}
        # Geometric mean over series: no series' unit or size weighs more than another's.
        logs = [np.log(_floored(model) / _floored(rule)) for _, rule, model in found.values()]
        is_better = bool(self.windows) and float(np.mean(logs)) < 0
        self.choices = {
            name: SeriesChoice(
                series=name,
                rule=rule,
                rule_score=rule_score,
                model=self._model.name,
                model_score=model_score,
                used=self._model.name if is_better else rule,
            )
            for name, (rule, rule_score, model_score) in found.items()
        }

    def _scores(self, name: str) -> tuple[str, SeriesScore | None, SeriesScore | None]:
        """Return the best rule for a series, its score and the model's; no scores untried."""
        if not self.reports:
            return self._rules[0].name, None, None
        scores = {key: report.series[name] for key, report in self.reports.items()}
        rule = min((item.name for item in self._rules), key=lambda key: scores[key].crps)
        return rule, scores[rule], scores[self._model.name]

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does, with what was chosen.

        Args:
            context: contexts of all series that `fit` saw.
            horizon: steps to forecast.

        Returns:
            One forecast a series; its source says what was used.
        """
        used = [choice.used for choice in self.choices.values()]
        if used[0] == self._model.name:
            return self._model.predict(context, horizon)
        made = {rule.name: rule.predict(context, horizon) for rule in self._rules}
        return [
            made[self.choices[name if name in self.choices else name.rpartition("@")[0]].used][row]
            for row, name in enumerate(context.ids)
        ]


def _floored(score: SeriesScore | None) -> float:
    """Return a CRPS of at least 1e-5; below it a forecast is exact, and nobody cares."""
    return max(score.crps, _EXACT) if score else _EXACT
