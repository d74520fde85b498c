import math
import types
from dataclasses import replace

import pytest
import torch
from torch import nn

from steelyard.errors import ConfigError
from steelyard.train import EstimatorConfig
from steelyard.train.adaptive_batch import AdaptiveBatch
from steelyard.train.batch_pilot import BatchPilot
from steelyard.train.callback import Callback
from steelyard.train.estimator import Estimator
from steelyard.train.measure.noise_estimate import NoiseEstimate
from steelyard.train.trainer import train
from steelyard.train.weight_average import WeightAverage


class StopError(Exception):
    pass


class Noisy:
    """A quadratic with a known gradient, which shrinks, and known noise, which does not."""

    def __init__(self, noise):
        self.noise = noise
        self.asked = []

    def batch(self, index):
        self.asked.append(index)
        generator = torch.Generator().manual_seed(index)
        return self.noise * torch.randn(8, 50, generator=generator)


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.full((50,), 1.0))


def loss(module, draws):
    return 0.5 * (module.place - draws).square().sum(1).mean()


class Rates(Callback):
    name = "rates"

    def __init__(self):
        self.seen = []

    def after_update(self, state):
        self.seen.append((state.step, state.accumulation, state.learning_rate))


def plan(**changes):
    return EstimatorConfig(
        **{
            "steps": 300,
            "batch_size": 8,
            "accumulation": 2,
            "learning_rate": 0.02,
            "optimizer": "sgd",
            "momentum": 0.0,
            "weight_decay": 0.0,
            "clip": 0.0,
            "threads": 1,
            "adaptive_batch": AdaptiveBatch(largest=8, rate="linear", every=1),
        }
        | changes
    )


def fit(config, noise, folder, *callbacks):
    source = Noisy(noise)
    estimator = Estimator(Point(), loss, config, callbacks=callbacks)
    return source, estimator.fit(source, folder)


def test_the_batch_grows_with_the_noise_scale_on_the_same_examples(tmp_path):
    rates = Rates()
    source, result = fit(plan(), 1.0, tmp_path, rates)
    # tr(Sigma) is 50 and |G|^2 begins at 50 and falls: the scale passes 8, then 64, and beyond.
    changes = result.reports["adaptive-batch"]["batches"]
    assert [multiple for _, multiple in changes] == [2, 4, 8]
    assert source.asked == [*range(300)] and len(result.losses) == 300
    for step, accumulation, rate in rates.seen:
        assert rate == pytest.approx(0.02 * accumulation / 2)
        assert accumulation in (2, 4, 8, 16) and step + accumulation // 2 <= 300
    assert result.reports["adaptive-batch"]["updates"] == len(rates.seen) < 150
    # Where the noise is small beside the gradient, the batch stays.
    _, quiet = fit(plan(steps=60), 0.01, tmp_path / "quiet")
    assert not quiet.reports["adaptive-batch"]["batches"]


def test_steps_end_where_a_checkpoint_or_an_evaluation_is_due():
    pilot = BatchPilot(plan(checkpoint_every=10, eval_every=7, checkpoint_at=(29,)))
    pilot.multiple = 8
    assert [pilot.count(step) for step in (0, 7, 8, 14, 21, 28, 29, 292, 299)] == [
        4, 2, 2, 4, 4, 1, 1, 2, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_a_resumed_run_has_the_same_bits_whatever_its_batch_was(
    config, source, tmp_path, optimizer
):
    grown = AdaptiveBatch(largest=4, every=1)
    plan = replace(
        config, accumulation=2, steps=40, adaptive_batch=grown, optimizer=optimizer,
        learning_rate=2e-3, checkpoint_every=8, eval_every=0,
    )  # fmt: skip

    def stop(now):
        if now.step > 27:
            raise StopError

    whole = train(plan, source, tmp_path / "whole")
    with pytest.raises(StopError):
        train(plan, source, tmp_path / "parts", on_step=stop)
    parts = train(plan, source, tmp_path / "parts")
    assert parts.losses == whole.losses and parts.eval_loss == whole.eval_loss
    assert parts.reports["adaptive-batch"] == whole.reports["adaptive-batch"]
    assert whole.reports["adaptive-batch"]["updates"] < 40


@pytest.mark.parametrize(
    ("exchange", "scale", "multiple"),
    # The batch is 8: sqrt(16 * 100) = 40 is worth a doubling, sqrt(1 * 100) = 10 none.
    [(0.0, 15.0, 1), (0.0, 17.0, 2), (1.0, 100.0, 1), (16.0, 100.0, 2), (16.0, -1.0, 1)],
)
def test_the_batch_follows_the_root_of_the_exchange_rate_times_the_noise_scale(
    monkeypatch, exchange, scale, multiple
):
    told = NoiseEstimate(scale, 0.0, 0.0, False, 9, 0)
    monkeypatch.setattr(BatchPilot, "estimate", told)
    pilot = BatchPilot(plan(adaptive_batch=AdaptiveBatch(every=1, exchange=exchange)))
    for _ in range(5):
        pilot.after_update(types.SimpleNamespace(step=0))
    assert pilot.multiple == multiple


def test_averages_by_decay_are_kept_beside_it_and_windows_refused(tmp_path):
    kept = plan(averages=(WeightAverage(kind="ema", decay=0.5),))
    assert fit(kept, 1.0, tmp_path)[1].reports["adaptive-batch"]["updates"] < 150
    with pytest.raises(ConfigError, match="kind 'ema' only"):
        plan(averages=(WeightAverage(kind="swa"),))


def test_what_cannot_adapt_is_refused():
    for changes in ({"largest": 3}, {"largest": 1}, {"every": 0}, {"exchange": -1.0}):
        with pytest.raises(ConfigError):
            AdaptiveBatch(**changes)
    with pytest.raises(ConfigError, match="accumulation of 2 or more"):
        plan(accumulation=1)
    assert AdaptiveBatch().factor(4) == 2 and math.isclose(AdaptiveBatch(rate="none").factor(8), 1)
