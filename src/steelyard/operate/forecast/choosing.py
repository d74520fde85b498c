"""A model is used only where it beat the best simple rule on the series' own past."""

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.errors import TraceError
from steelyard.operate.forecast.blending import BlendedForecaster, cut_windows, past_windows
from steelyard.operate.forecast.evaluation import (
    ForecastReport,
    SeriesScore,
    scored,
)
from steelyard.operate.forecast.forecaster import Forecaster
from steelyard.operate.forecast.guarded import GuardedForecaster
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.forecast.simple import RecentQuantiles, SeasonalNaive
from steelyard.operate.series import SeriesSet

__all__ = [
    "ChosenForecaster",
    "SeriesChoice",
    "default_forecaster",
    "half_horizon",
    "simple_rules",
]

_MOST_WINDOWS = 24
_LONG = 288
_LEAD = 0.7
"""Weight of the first model in the blend, before anything was seen."""


def simple_rules() -> list[Forecaster]:
    """Return the rules that every model has to beat."""
    return [RecentQuantiles(), SeasonalNaive()]


def default_forecaster(horizon: int = 48) -> "ChosenForecaster":
    """Return the forecaster for who has no other: that of `steelyard operate forecast`.

    Args:
        horizon: steps of the past windows that `fit` tries it on.

    Returns:
        The choice among the rules, the shipped encoder, damped smoothing and the blend of all; call
        `fit` with the past of the series first.
    """
    from steelyard.operate.forecast.ets import DampedETS
    from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster

    models: list[Forecaster] = [MaskedEncoderForecaster.shipped(), DampedETS()]
    return ChosenForecaster(models, horizon=horizon, stride=half_horizon(horizon))


def half_horizon(horizon: int) -> int:
    """Return the steps between windows that overlap by half: a short past tells more by them."""
    return -(-horizon // 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesChoice:
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
        reports: what each forecaster scored on the past windows, by name; what the blend says of a
            window is learned from the windows before it.
        windows: past windows a series, end to end, that were scored; 0 where the series are too
            short.
    """

    def __init__(
        self,
        models: Sequence[Forecaster],
        *,
        horizon: int = 48,
        windows: int = _MOST_WINDOWS,
        stride: int = 0,
        deadline_s: float = 0.0,
    ) -> None:
        """Say what is tried: the rules, the models, and a blend of all of them.

        Args:
            models: tried beside the simple rules, the one to be trusted most first; a model that
                learns has been fitted.
            horizon: steps of the windows that it is tried on.
            windows: most past windows of each series, end to end.
            stride: steps from one window to the next; 0 for a horizon.
            deadline_s: seconds that a forecast may take before a rule stands in; 0 for no limit.
        """
        self.name = "Chosen"
        self.choices: dict[str, SeriesChoice] = {}
        self.reports: dict[str, ForecastReport] = {}
        self.windows = 0
        self._rules = simple_rules()
        self._models: list[Forecaster] = [
            GuardedForecaster(item, deadline_s=deadline_s) for item in models
        ]
        # A day of quantiles is no rule that is used alone, but it steadies the blend.
        self._parts = [*self._models, *self._rules, RecentQuantiles(_LONG)]
        self._blend = None
        if models:
            self._blend = BlendedForecaster(
                self._parts, horizon=horizon, windows=windows, stride=stride, lead=_LEAD
            )
            self._models.append(GuardedForecaster(self._blend))
        self._horizon = horizon
        self._most = windows
        self._stride = stride or horizon

    def fit(self, series: SeriesSet) -> None:
        """Score rules and models on the last windows of the series, and choose for each.

        Args:
            series: the past; nothing of what is forecast later.
        """
        self.windows = past_windows(series, self._horizon, self._most)
        self.reports = {}
        if self.windows:
            past = cut_windows(series, self._horizon, self.windows, self._stride)
            said = [part.predict(past.context, self._horizon) for part in self._parts]
            tried = zip([part.name for part in self._parts], said, strict=True)
            self.reports = {name: scored(name, made, series, past) for name, made in tried}
            # Samples are whole paths, which means of quantiles would tear apart.
            if self._blend is not None and all(made[0].levels is not None for made in said):
                made = self._blend.learn(series, past, said)
                self.reports[self._blend.name] = scored(self._blend.name, made, series, past)
        self.choices = {name: self._choice(name) for name in series.ids}

    def _choice(self, name: str) -> SeriesChoice:
        """Choose for one series."""
        scores = {key: report.series[name] for key, report in self.reports.items()}
        rules = [item.name for item in self._rules]
        models = [item.name for item in self._models if item.name in scores]
        if not scores:
            # Nothing was tried on this series, so nothing but the plainest rule is justified.
            return SeriesChoice(
                series=name,
                rule=rules[0],
                rule_score=None,
                model=self._models[0].name if self._models else "",
                model_score=None,
                used=rules[0],
            )
        rule = min(rules, key=lambda key: scores[key].crps)
        model = min(models, key=lambda key: scores[key].crps) if models else ""
        is_better = bool(model) and scores[model].crps < scores[rule].crps
        return SeriesChoice(
            series=name,
            rule=rule,
            rule_score=scores[rule],
            model=model,
            model_score=scores[model] if model else None,
            used=model if is_better else rule,
        )

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does; each series with what was chosen for it.

        Args:
            context: contexts of series that `fit` saw.
            horizon: steps to forecast.

        Returns:
            One forecast a series; its source says what was used.

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
