"""Averages of the weights against their definitions, and evaluation with them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from steelyard.errors import ConfigError
from steelyard.train import EstimatorConfig
from steelyard.train.averages import Averages
from steelyard.train.callback import StepState
from steelyard.train.estimator import Estimator
from steelyard.train.reducer import AloneReducer
from steelyard.train.trainer import train
from steelyard.train.weight_average import WeightAverage

KINDS = (
    WeightAverage(kind="ema", decay=0.8),
    WeightAverage(kind="swa", window=3),
    WeightAverage(kind="lawa", window=2, count=2),
)


def test_averages_are_what_they_are_called():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = StepState(module, dict(module.named_parameters()), [], AloneReducer(), 1, 1)
    averages = Averages(KINDS)
    averages.begin(state)
    assert not averages.has("lawa-2x2") and averages.has("swa-3")
    weight, seen = module[0].weight, []
    expected = weight.detach().clone()
    for step in range(8):
        with torch.no_grad():
            weight.copy_(torch.full((2, 2), float(step**2)))
            module[1].running_mean.fill_(step)
        seen.append(weight.detach().clone())
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
        averages.after_update(state)
        windows = {
            "ema-0.8": expected,
            "swa-3": torch.stack(seen[step // 3 * 3 :]).mean(0),
            "lawa-2x2": torch.stack(seen[1::2][-2:]).mean(0) if step else None,
        }
        for name, value in windows.items():
            if value is None:
                continue
            with averages.swapped(name):
                torch.testing.assert_close(weight.detach(), value)
                assert weight is module[0].weight
            assert torch.equal(weight.detach(), seen[-1])
    with averages.swapped("swa-3"):
        assert module[1].running_mean.tolist() == [6.5, 6.5]
    with pytest.raises(ConfigError, match="no average 'ema'"), averages.swapped("ema"):
        pass


def test_losses_of_averages_stand_in_the_result_and_survive_a_kill(config, source, tmp_path):
    config = replace(config, averages=KINDS, cooldown_steps=0)
    whole = train(config, source, tmp_path / "whole")
    assert whole.average_losses.keys() == {kind.name for kind in KINDS}
    steps = [step for step, _ in whole.eval_losses]
    for losses in whole.average_losses.values():
        assert [step for step, _ in losses] == steps
        assert losses[-1][1] != whole.eval_loss

    def stop(progress):
        if progress.step == 7:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(config, source, tmp_path / "parts", on_step=stop)
    parts = train(config, source, tmp_path / "parts")
    assert parts.average_losses == whole.average_losses
    plain = train(replace(config, averages=()), source, tmp_path / "plain")
    assert plain.losses == whole.losses and plain.eval_losses == whole.eval_losses


def test_the_averaged_model_is_kept_for_serving(config, source, tmp_path):
    from steelyard.nn import checkpoint
    from steelyard.train.evaluate import evaluate, heldout_windows

    result = train(replace(config, averages=KINDS[:1], steps=6), source, tmp_path)
    windows = heldout_windows(source.heldout_tokens, 16, 512)
    loss = evaluate(checkpoint.load(tmp_path / "model-ema-0.8"), windows, batch_size=8)
    assert loss == pytest.approx(result.average_losses["ema-0.8"][-1][1], rel=1e-5)


def test_schedule_free_is_evaluated_at_its_average(tmp_path):
    class Points:
        def batch(self, index):
            return torch.randn(8, 2, generator=torch.Generator().manual_seed(index))

    torch.manual_seed(0)
    module = nn.Linear(2, 1)
    config = EstimatorConfig(
        steps=5, batch_size=8, learning_rate=0.1, optimizer="schedule-free", eval_every=5
    )
    seen = []
    estimator = Estimator(
        module,
        lambda module, batch: module(batch).square().mean(),
        config,
        evaluate=lambda module: seen.append(module.weight.detach().clone()) or 0.0,
    )
    trained = []
    estimator.fit(
        Points(), tmp_path, on_step=lambda _: trained.append(module.weight.detach().clone())
    )
    assert torch.equal(module.weight, seen[0]) and not torch.equal(trained[-1], seen[0])
    again = Estimator(nn.Linear(2, 1), lambda *_: None, config)
    again.fit(Points(), tmp_path)
    assert torch.equal(again.module.weight, seen[0])


@pytest.mark.parametrize(
    "change", [{"decay": 1.0}, {"kind": "swa", "window": 1}, {"kind": "lawa", "count": 1}]
)
def test_impossible_averages_are_refused(change, config):
    with pytest.raises(ConfigError):
        replace(KINDS[0], **change)
    with pytest.raises(ConfigError, match="different from one another"):
        replace(config, averages=(KINDS[0], KINDS[0]))
