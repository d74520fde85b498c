"""Stop a run whose final loss, forecast from its curve so far, will be too high."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from steelyard.errors import ConfigError, StoppedEarlyError
from steelyard.laws.curves import Curve, LearningRates, fit_curves, multi_power, predict_curve
from steelyard.quantity import Forecast
from steelyard.train import schedules
from steelyard.train.checkpoint import CheckpointStore
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.result import Progress

__all__ = ["FinalLoss", "StopRule", "forecast_final", "parse_limit"]

_POINTS = 40
_FEWEST = 6
_EARLIEST = 0.15
"""Part of a run before which no forecast is made: the curve has hardly left its beginning."""

_GAINS = (0.05, 0.12)
"""What a fall of the rate from the peak to 0 takes off the loss usually and at most, as a part of
it: a curve before its cooldown does not tell. Trunks of Haegele et al. 2024 (arXiv 2405.18392) lie
2 to 5 % above their cooled branches."""

_PEAK, _STEPS = 3e-4, 500
_BETA, _GAMMA = 0.58, 0.64
_SPEED = 0.1 / _PEAK ** (1 - _GAMMA)
"""C: what a fall is worth has come to a third after ten of the 500 steps."""

_LEVEL = 0.95
_BACK = 0.6

_SCATTER_SHARE, _GAIN_SHARE = 0.53, 0.93
"""Parts of the 95 % interval of the scatter, and of the way from the usual gain to the most, that
left a tenth of finals on either side of 80 % intervals: those of Gemstones told the first, and
every other run of the routed models with the multi-power law's runs of 25M parameters the second.
Above, the scatter alone was enough."""
_LIMIT = re.compile(r"^\s*eval\.loss\s*>\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*$")


def parse_limit(text: str) -> float:
    """Read a condition such as "eval.loss > 3.2".

    Args:
        text: the condition.

    Returns:
        The loss, nats per token.

    Raises:
        ConfigError: it reads otherwise.
    """
    found = _LIMIT.match(text)
    if found is None or not float(found[1]) > 0:
        raise ConfigError(
            f"a run cannot be stopped by {text!r}", hint='give such as "eval.loss > 3.2"'
        )
    return float(found[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalLoss:
    """What a curve tells of the loss at its end.

    Attributes:
        forecast: eval.loss with its 80 % interval.
        least: loss below which hardly a run ends; at most the interval's low end.
    """

    forecast: Forecast
    least: float


@dataclass(frozen=True, slots=True)
class _Said:
    """A forecast for one gain: natural logarithms of the loss, and of its scatter's ends over it.

    Attributes:
        log: logarithm of the loss.
        below: how much lower the low end of 95 % lies.
        above: how much higher the high end lies.
    """

    log: float
    below: float
    above: float


def forecast_final(rates: LearningRates, steps: ArrayLike, losses: ArrayLike) -> FinalLoss | None:
    """Forecast the loss at the end of a schedule from the curve so far.

    The multi-power law is fitted to the curve with what a falling rate is worth held at a usual
    value. The interval holds the scatter of the curve, most of what the rate's fall may be worth
    more, and what a forecast of this moment from 60 % of the curve had been too high. The least
    loss goes to the ends of all three: of 1000 forecasts for published runs one was below it.

    Args:
        rates: learning rate of every step of the whole run.
        steps: steps at which the loss was measured, ascending, [n].
        losses: the losses, positive, [n].

    Returns:
        The forecast of eval.loss, and the least; None before 15 % of the steps, and with fewer than
        six points between the warm-up and 60 % of the way so far.

    Source: Luo et al. 2025 (Multi-Power Law, ICLR), equation 1.
    """
    short, at = _shortened(rates, np.asarray(steps, dtype=float))
    values = np.asarray(losses, dtype=float)
    warm = at >= int(np.argmax(short.rates))
    at, values = at[warm], values[warm]
    is_early = not len(at) or at[-1] < _EARLIEST * short.steps
    if is_early or (at <= _BACK * at[-1]).sum() < _FEWEST:
        return None
    rows = np.unique(np.linspace(0, len(at) - 1, _POINTS).round().astype(int))
    curve = Curve(rates=short, step=at[rows], loss=values[rows])
    end = short.steps - 1.0
    usual, most = (_said(curve, gain, end) for gain in _GAINS)
    fallen = _hindsight(curve, end)
    gained = max(usual.log - most.log, 0.0)
    below = math.hypot(_SCATTER_SHARE * usual.below, _GAIN_SHARE * gained) + fallen
    least = min(usual.log - usual.below, most.log - most.below) - fallen
    return FinalLoss(
        forecast=Forecast(
            quantity="eval.loss",
            value=math.exp(usual.log),
            low=math.exp(usual.log - below),
            high=math.exp(usual.log + _SCATTER_SHARE * usual.above),
            provenance="fitted",
            source=f"multi-power law on {len(rows)} points of the run itself (Luo et al. 2025)",
        ),
        least=math.exp(min(least, usual.log - below)),
    )


def _shortened(rates: LearningRates, steps: np.ndarray) -> tuple[LearningRates, np.ndarray]:
    """Return the schedule in 500 steps of a peak that the law's usual values are for."""
    # The law is the same in other units of rate and step: its values carry over from run to run.
    places = ((np.arange(_STEPS) + 0.5) * rates.steps / _STEPS).astype(int)
    scaled = rates.rates[places] * (_PEAK / rates.peak)
    return LearningRates(scaled), (steps + 1) * _STEPS / rates.steps - 1


def _said(curve: Curve, gain: float, step: float) -> _Said:
    """Forecast the loss at a later step, if a whole fall is worth such a part of it."""
    law = multi_power([curve.rates]).fix(
        B=max(gain, 1e-6) * float(curve.loss[-1]) / _PEAK, C=_SPEED, beta=_BETA, gamma=_GAMMA
    )
    blocks = max(int(curve.step[-1] - curve.step[0]) // _FEWEST, 1)
    fitted = fit_curves([curve], law=law, prior=None, block_steps=blocks)
    said = predict_curve(fitted, curve.rates, [step], _LEVEL)
    value, low, high = float(said.value[0]), float(said.low[0]), float(said.high[0])
    # Of few points three parameters take much of the scatter with them (Student's t).
    wider = float(stdtrit(len(curve.step) - 3, (1 + _LEVEL) / 2) / ndtri((1 + _LEVEL) / 2))
    return _Said(math.log(value), wider * math.log(value / low), wider * math.log(high / value))


def _hindsight(curve: Curve, end: float) -> float:
    """Return by how much a forecast of this moment, made earlier, was too high, for the way ahead.

    A curve that falls faster than the law, as one does that has just begun to learn something, will
    go on to do so: the logarithm of the error grows with that of the distance.
    """
    now = float(curve.step[-1])
    seen = curve.step <= _BACK * now
    earlier = Curve(rates=curve.rates, step=curve.step[seen], loss=curve.loss[seen])
    excess = _said(earlier, _GAINS[0], now).log - math.log(float(np.median(curve.loss[-3:])))
    return max(excess, 0.0) * max(math.log(end / now) / math.log(1 / _BACK), 1.0)


class StopRule:
    """Watches a run step by step and stops it once hardly any end is left below a limit.

    An 80 % interval above the limit is not enough: of ten such runs one would end below it.

    Attributes:
        latest: the latest forecast of the final held-out loss; None before there is one.
    """

    def __init__(
        self, config: EstimatorConfig, limit: float, directory: Path | None = None
    ) -> None:
        """Take over what a run has done already.

        Args:
            config: the run; it has to evaluate on its way.
            limit: held-out loss that the run may not end above.
            directory: the run's folder, whose latest checkpoint tells of earlier calls; None for a
                run that begins.

        Raises:
            ConfigError: the run is evaluated at its end only.
        """
        if not config.eval_every:
            raise ConfigError(
                "a run that is evaluated at its end only cannot be stopped before",
                hint=f"set eval_every, such as to {max(config.steps // 20, 1)}",
            )
        self.latest: FinalLoss | None = None
        self._limit = limit
        self._rates = LearningRates(config.learning_rate * schedules.for_config(config))
        newest = CheckpointStore(directory).latest() if directory else None
        self._losses: list[float] = newest.tensors["history.losses"].tolist() if newest else []
        self._evaluated = [
            (int(step), float(loss))
            for step, loss in (newest.scalars["eval_losses"] if newest else ())
        ]

    def __call__(self, now: Progress) -> None:
        """Take in a step; after an evaluation, forecast.

        Args:
            now: the step.

        Raises:
            StoppedEarlyError: even the least final loss lies above the limit.
        """
        self._losses.append(now.loss)
        if now.eval_loss is None or now.step == now.steps:
            return
        self._evaluated.append((now.step, now.eval_loss))
        steps, losses = _smoothed(self._losses, self._evaluated)
        found = self.latest = forecast_final(self._rates, steps, losses)
        if found is not None and found.least > self._limit:
            said = found.forecast
            raise StoppedEarlyError(
                f"stopped after {now.step} of {now.steps} steps: the final eval.loss is forecast "
                f"at {said.value:.4f} ({said.low:.4f} to {said.high:.4f}, hardly below "
                f"{found.least:.4f}), above {self._limit:g}",
                hint="run again without the condition to go on",
            )


def _smoothed(
    losses: Sequence[float], evaluated: Sequence[tuple[int, float]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the training curve as means of blocks, moved to the level of the held-out loss."""
    # Every step tells of the curve's course; evaluations are few, and tell of its level.
    values = np.asarray(losses)
    blocks = [part for part in np.array_split(np.arange(len(values)), 2 * _POINTS) if len(part)]
    steps = np.array([float(part.mean()) for part in blocks])
    means = np.array([float(values[part].mean()) for part in blocks])
    gaps = [np.log(loss / np.interp(step - 1, steps, means)) for step, loss in evaluated[-5:]]
    return steps, means * np.exp(np.median(gaps))
