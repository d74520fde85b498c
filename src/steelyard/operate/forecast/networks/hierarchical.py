"""The joint forecaster of series on levels: what drives comes first, and totals are sums."""

import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.operate.forecast.bounds import known_values, reach
from steelyard.operate.forecast.levels import Levels
from steelyard.operate.forecast.networks.cascade import CascadeNetwork, joint_loss
from steelyard.operate.forecast.networks.config import EncoderConfig
from steelyard.operate.forecast.networks.joint_windows import JointWindows, time_marks
from steelyard.operate.forecast.networks.training import pretraining_budget
from steelyard.operate.forecast.sample_forecast import SampleForecast
from steelyard.operate.forecast.simple import filled
from steelyard.operate.series import SeriesSet
from steelyard.train.estimator import Estimator

__all__ = ["HierarchicalFlowForecaster", "cascade_config"]

_SAMPLES = 400
_BATCH = 64
_MOST_STEPS = 400
_LARGEST = 1e300


def cascade_config(
    horizon: int = 48, *, context_steps: int = 96, flow: bool = True, seed: int = 0
) -> EncoderConfig:
    """Return the shape of a cascade that trains within seconds on one table.

    Args:
        horizon: steps forecast at once.
        context_steps: last steps that are read, at least 24.
        flow: whether the joint law is bent by a flow; else all numbers are independent Gaussians.
        seed: seed of weights, windows and samples.

    Returns:
        A shape without patches and lags: a series' whole window is one token.
    """
    return EncoderConfig(
        context_steps=context_steps,
        horizon=horizon,
        patch=1,
        seasons=(),
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        head="flow" if flow else "gaussian",
        scaling="standard",
        seed=seed,
    )


class HierarchicalFlowForecaster:
    """Forecasts series on levels together, with one law for all of their steps.

    Totals are not forecast by themselves: every sample of a total is the sum of its parts' samples,
    and of what else the total holds where it is more than their sum.

    Attributes:
        name: "HierarchicalFlow".
        levels: levels and sums by name; the order of columns is of no account.
        config: shape of the network.
        network: what `fit` trained, None before.

    Source: Luo et al. 2024 (arXiv 2408.01000), trained on the exact likelihood.
    """

    def __init__(
        self, levels: Levels, config: EncoderConfig | None = None, *, steps: int = 0
    ) -> None:
        """Make a forecaster that has learned nothing yet.

        Args:
            levels: which series drives which, and which is the sum of which.
            config: shape, as `cascade_config` makes it; None for the default one.
            steps: optimizer steps of `fit`; 0 makes ten passes over the windows, as in the paper,
                at most 400 steps.
        """
        self.name = "HierarchicalFlow"
        self.levels = levels
        self.config = config or cascade_config()
        self.network: CascadeNetwork | None = None
        self._steps = steps
        self._rests: tuple[str, ...] = ()

    @property
    def forecast_names(self) -> tuple[str, ...]:
        """Series that the law is of: all but totals, and what totals hold besides their parts."""
        own = [name for name in self.levels.names if name not in self.levels.sums]
        return (*own, *(f"rest of {total}" for total in self._rests))

    def fit(self, series: SeriesSet) -> None:
        """Train on series, as `Forecaster.fit` says.

        Args:
            series: one series for each name of the levels, all of the same times.

        Raises:
            TraceError: a series has no level or a level no series, a total is less than its parts,
                or the series are too short.
        """
        self.levels.check(series)
        exact = self.levels.is_exact
        totals = [name for name in self.levels.names if name in self.levels.sums]
        self._rests = tuple(name for name in totals if not exact(series, name))
        windows = self._windows(series)
        count = len(self.levels.names)
        numbers = [self.levels.level[name] for name in self.levels.names]
        numbers += [self.levels.level[total] + 1 for total in self._rests]
        places = [i for i, name in enumerate(self.levels.names) if name not in self.levels.sums]
        places += range(count, count + len(self._rests))
        self.network = CascadeNetwork(self.config, numbers, places)
        # Ten passes: a short table is learned by heart long before the most steps are done.
        passes = max(min(10 * windows.count // _BATCH, _MOST_STEPS), 10)
        budget = pretraining_budget(
            self._steps or passes, batch_size=_BATCH, learning_rate=2e-3, seed=self.config.seed
        )
        with tempfile.TemporaryDirectory() as folder:
            Estimator(self.network, joint_loss, budget).fit(windows, Path(folder))
        self.network.eval()

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does: samples of equal number belong together.

        Args:
            context: one or more windows of every series of the levels; windows that end at the same
                time are one.
            horizon: steps ahead; those beyond the one it was trained for are like its last.

        Returns:
            400 samples of each series and window.

        Raises:
            TraceError: `fit` was not called, a series is missing from a window, or has no value.
        """
        groups = self._groups(context)
        samples = self._samples(context, groups)
        steps = np.minimum(np.arange(horizon), self.config.horizon - 1)
        made: dict[int, SampleForecast] = {}
        for group, found in zip(groups, samples, strict=True):
            for place, row in enumerate(group):
                values = found[:, steps, place]
                made[row] = SampleForecast(values, None, self.name, context.ids[row])
        return [made[row] for row in range(len(context))]

    def joint(self, context: SeriesSet, horizon: int) -> SampleForecast:
        """Forecast one window of all series as one distribution.

        Args:
            context: every series of the levels, once.
            horizon: steps ahead.

        Returns:
            Samples [400, horizon, N] with the names of the series, in the order of `context`.

        Raises:
            TraceError: as for `predict`, or there is more than one window.
        """
        if len(context) != len(self.levels.names):
            raise TraceError(
                f"{len(context)} series for {len(self.levels.names)} names of the levels",
                hint="give every series once, or call predict",
            )
        made = self.predict(context, horizon)
        values = np.stack([item.values for item in made], -1)
        return SampleForecast(values, None, self.name, names=context.ids)

    def nats(self, series: SeriesSet, windows: int) -> float:
        """Return how unlikely the last windows were held, exactly.

        Args:
            series: every series of the levels; nothing of the windows may have been learned from.
            windows: windows of the horizon, one behind the other; the last ends at the end.

        Returns:
            Mean negative log-likelihood in nats a number forecast, of values in the unit of their
            own windows, each with its mean at 0 and its deviation at 1.

        Raises:
            TraceError: `fit` was not called, or the series are too short.
        """
        network = self._fitted()
        self.levels.check(series)
        horizon = self.config.horizon
        ends = int(series.lengths[0]) - horizon * np.arange(windows, 0, -1)
        past, marks, target = self._windows(series).windows(ends)
        with torch.no_grad():
            return float(joint_loss(network, (past, marks, target)))

    def _fitted(self) -> CascadeNetwork:
        """Return the network, if there is one."""
        if self.network is None:
            raise TraceError("the forecaster has learned nothing yet", hint="call fit first")
        return self.network

    def _windows(self, series: SeriesSet) -> JointWindows:
        """Return the windows of series on the order of the levels, rests behind them."""
        rows = [np.asarray(series.row(series.index(name)), float) for name in self.levels.names]
        rows += [
            np.asarray(series.row(series.index(total)), float)
            - self.levels.sum_of_parts(series, total)
            for total in self._rests
        ]
        table = np.stack(rows)
        # In units of the largest value no square can overflow, and a window's unit undoes it.
        size = np.maximum(np.nanmax(np.abs(table), axis=1, keepdims=True), 1 / _LARGEST)
        marks = time_marks(float(series.start_s[0]), float(series.step_s[0]), table.shape[1])
        sizes = (self.config.context_steps, self.config.horizon, _BATCH)
        return JointWindows(table / size, marks, sizes, self.config.seed)

    def _groups(self, context: SeriesSet) -> list[list[int]]:
        """Return, for each window, the rows of its series in the order of the levels."""
        names = self.levels.names
        found: dict[float, dict[str, int]] = defaultdict(dict)
        for row, name in enumerate(context.ids):
            # Windows of one series are told apart behind an @, as `SeriesSet.cut` names them.
            own = name if name in names else name.rpartition("@")[0]
            if own not in names:
                raise TraceError(
                    f"series {name!r} has no level", hint=f"levels are given for {', '.join(names)}"
                )
            length = float(context.step_s[row]) * int(context.lengths[row])
            found[float(context.start_s[row]) + length][own] = row
        for rows in found.values():
            absent = [name for name in names if name not in rows]
            if absent:
                raise TraceError(
                    f"series {absent[0]!r} is missing from a window",
                    hint="give all series of the levels, up to the same time",
                )
        return [[rows[name] for name in names] for rows in found.values()]

    def _samples(self, context: SeriesSet, groups: list[list[int]]) -> list[NDArray[np.float64]]:
        """Return samples [K, horizon, N] of each window, in the order of the levels."""
        network = self._fitted()
        size = self.config.horizon * len(self.forecast_names)
        rng = np.random.default_rng(self.config.seed)
        noise = torch.from_numpy(rng.standard_normal((_SAMPLES, size))).float()
        found: list[NDArray[np.float64]] = []
        for first in range(0, len(groups), _BATCH):
            part = groups[first : first + _BATCH]
            read = [self._read(context, group) for group in part]
            past = torch.from_numpy(np.stack([rows for rows, _, _ in read]))
            marks = torch.from_numpy(np.stack([time for _, time, _ in read]))
            with torch.no_grad():
                drawn = network.draw(network(past, marks), noise).numpy()
            found += [
                self._whole(samples, units, rows)
                for samples, (rows, _, units) in zip(drawn, read, strict=True)
            ]
        return found

    def _read(
        self, context: SeriesSet, group: list[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return values [N, context] in units of their largest, marks, and those units [N]."""
        steps = self.config.context_steps
        rows = {
            name: filled(known_values(context.row(row), context.ids[row]))[-steps:]
            for name, row in zip(self.levels.names, group, strict=True)
        }
        padded = {
            name: np.concatenate([np.full(steps - len(row), np.nan), row])
            for name, row in rows.items()
        }
        table = [padded[name] for name in self.levels.names]
        for total in self._rests:
            parts = np.sum([padded[name] for name in self.levels.sums[total]], axis=0)
            rest = padded[total] - parts
            # Parts that begin later than their total leave nothing known; then it is 0.
            table.append(np.nan_to_num(rest) if np.isnan(rest).all() else rest)
        values = np.stack(table)
        units = np.maximum(np.nanmax(np.abs(values), axis=1), 1 / _LARGEST)
        row = group[0]
        step_s = float(context.step_s[row])
        end_s = float(context.start_s[row]) + step_s * int(context.lengths[row])
        return values / units[:, None], time_marks(end_s - steps * step_s, step_s, steps), units

    def _whole(
        self, drawn: NDArray[np.float64], units: NDArray[np.float64], past: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return samples of all series [K, horizon, N]: parts within their reach, totals summed."""
        names = self.levels.names
        places = [*names, *(f"rest of {total}" for total in self._rests)]
        values: dict[str, NDArray[np.float64]] = {}
        for column, name in enumerate(self.forecast_names):
            place = places.index(name)
            low, high = reach(np.nanmin(past[place]), np.nanmax(past[place]))
            values[name] = np.clip(drawn[..., column], low, high) * units[place]
        # A total of totals needs theirs first, and those stand on larger levels.
        for total in sorted(self.levels.sums, key=lambda name: -self.levels.level[name]):
            parts = [values[name] for name in self.levels.sums[total]]
            rest = [values[f"rest of {total}"]] if total in self._rests else []
            values[total] = np.sum([*parts, *rest], axis=0)
        return np.stack([np.clip(values[name], -_LARGEST, _LARGEST) for name in names], -1)
