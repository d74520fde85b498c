"""Options of `operate forecast`: how a file is read, and what is tried on its series."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts

from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.operate.forecast import Forecaster
    from steelyard.operate.forecast.choosing import ChosenForecaster
    from steelyard.operate.forecast.together import ChosenTogether
    from steelyard.operate.series import SeriesSet

__all__ = ["ModelOptions", "SeriesOptions"]

ModelName = Literal["masked-encoder", "ets", "dlinear", "gru"]
_DEADLINE_S = 60.0
_MANY = cyclopts.Parameter(consume_multiple=True, negative_iterable=())


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SeriesOptions:
    """How the file is read.

    Args:
        time: column of the times; found by its name or type unless given.
        value: columns of the values; all numbers unless given.
        name: column that names the series; found by its name unless given.
        step: time between two values, such as "5 min"; the most frequent distance unless given.
        counter: whether values only grow and their growth per second is meant; told by the name
            (_total, _count, _sum) unless given.
    """

    time: str = ""
    value: Annotated[tuple[str, ...], _MANY] = ()
    name: str = ""
    step: str = ""
    counter: bool | None = None

    def read(self, file: str) -> "SeriesSet":
        """Read the series of a file, folder, pattern or address."""
        from steelyard import units
        from steelyard.operate.series import read_series

        return read_series(
            file,
            time=self.time,
            values=self.value,
            name=self.name,
            step_s=units.parse(self.step, "s", where="--step") if self.step else None,
            counter=self.counter,
        )


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is tried beside the simple rules.

    Args:
        models: models to try beside the rules; dlinear and gru are trained on the series first.
        levels: forecast all series together, in place of the models: "all = east + west" for a
            total and its parts, "load > cpu, memory > latency" for what drives what; several rules
            each in quotes.
        checkpoint: file of a masked encoder that `operate pretrain` made; the shipped one unless
            given.
        windows: most past windows a series to try them on, end to end; models are tried half a
            window apart, levels a whole one.
    """

    models: Annotated[tuple[ModelName, ...], _MANY] = ("masked-encoder", "ets")
    levels: Annotated[tuple[str, ...], _MANY] = ()
    checkpoint: Path | None = None
    windows: int = 24

    def chosen(self, series: "SeriesSet", horizon: int) -> "ChosenForecaster | ChosenTogether":
        """Try rules and models on the series' past, and choose.

        Args:
            series: the series.
            horizon: steps of a window.

        Returns:
            The choice, made.

        Raises:
            ConfigError: a count is below 1, or the levels do not fit one another.
            TraceError: the series do not fit the levels, or are too short to train on.
        """
        if horizon < 1 or self.windows < 1:
            raise ConfigError(
                f"--horizon {horizon}, --windows {self.windows}", hint="give 1 or more of each"
            )
        made = self._on_levels(series, horizon) if self.levels else self._each(series, horizon)
        made.fit(series)
        return made

    def _on_levels(self, series: "SeriesSet", horizon: int) -> "ChosenTogether":
        """Return the choice between the joint model and the rules."""
        from steelyard.operate.forecast.levels import Levels
        from steelyard.operate.forecast.networks.hierarchical import (
            HierarchicalFlowForecaster,
            cascade_config,
        )
        from steelyard.operate.forecast.together import ChosenTogether

        levels = Levels.of(*self.levels)
        levels.check(series)
        model = HierarchicalFlowForecaster(levels, cascade_config(horizon))
        return ChosenTogether(model, horizon=horizon, windows=self.windows, deadline_s=_DEADLINE_S)

    def _each(self, series: "SeriesSet", horizon: int) -> "ChosenForecaster":
        """Return the choice between models and rules, series by series."""
        from steelyard.operate.forecast.choosing import ChosenForecaster, half_horizon

        made = [_model(name, horizon, self.checkpoint) for name in dict.fromkeys(self.models)]
        past = int(min(series.lengths)) // 2 // horizon
        for item in made:
            # What is trained here sees nothing of the windows that it is then tried on.
            if item.name in ("DLinear", "GRU"):
                item.fit(series.before(min(self.windows, past) * horizon))
        return ChosenForecaster(
            made,
            horizon=horizon,
            windows=self.windows,
            stride=half_horizon(horizon),
            deadline_s=_DEADLINE_S,
        )


def _model(name: ModelName, horizon: int, checkpoint: Path | None) -> "Forecaster":
    """Make a model by its name."""
    if name == "ets":
        from steelyard.operate.forecast.ets import DampedETS

        return DampedETS()
    if name == "masked-encoder":
        from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster

        kind = MaskedEncoderForecaster
        return kind.load(checkpoint) if checkpoint else kind.shipped()
    from steelyard.operate.forecast.networks.direct import DLinearForecaster, GRUForecaster

    own = DLinearForecaster if name == "dlinear" else GRUForecaster
    return own(horizon=horizon)
