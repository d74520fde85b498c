import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steelyard.errors import ConfigError, DivergedError
from steelyard.train import EstimatorConfig
from steelyard.train.callback import Callback
from steelyard.train.estimator import Estimator
from steelyard.train.trainer import open_session, replay_run, train


class PlantedWeight(Callback):
    """A fault: one weight is no number after a step."""

    name = "planted"

    def __init__(self, parameter, step):
        self.parameter, self.step = parameter, step

    def after_update(self, state):
        if state.step == self.step:
            with torch.no_grad():
                state.parameters[self.parameter].view(-1)[3] = math.nan


class Points:
    """Points with one that explodes."""

    def __init__(self, step, row, factor):
        self.bad = step, row, factor

    def batch(self, index):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
        y = x.sum(1)
        step, row, factor = self.bad
        if index == step:
            x[row] *= factor
        return x, y


class Overflow(nn.Module):
    """A layer whose result is no number for one example of one step, whatever the weights."""

    def forward(self, x):
        large = x.abs().amax(1, keepdim=True) > 1e8
        return x + torch.where(large, math.nan, 0.0)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), Overflow(), nn.Linear(16, 1)
    )


def loss(module, batch):
    x, y = batch
    return F.mse_loss(module(x)[:, 0], y)


def estimator(callbacks=(), module=None, **changes):
    shape = {"steps": 30, "batch_size": 8, "accumulation": 2, "learning_rate": 1e-2}
    config = EstimatorConfig(**shape, checkpoint_every=10, threads=1, **changes)
    return Estimator(module or mlp(), loss, config, callbacks=callbacks)


def test_a_planted_weight_is_named_with_its_step(tmp_path):
    points = Points(-1, 0, 1.0)
    plan = estimator([PlantedWeight("2.weight", 16)])
    with pytest.raises(DivergedError, match="step 18") as caught:
        plan.fit(points, tmp_path)
    assert "train replay" in caught.value.hint
    found = estimator([PlantedWeight("2.weight", 16)]).replay(points, tmp_path)
    assert (found.step, found.kind, found.layer) == (16, "weight", "2")
    # Of the checkpoints of 0 and 10, the last steps all lie behind the earlier one.
    assert found.began == 0 and [trace.step for trace in found.steps] == [*range(18)]
    assert found.is_identical and len(found.update_sizes) == 18
    assert all(math.isfinite(item.loss) and not item.layer for item in found.examples)


def test_an_example_that_is_no_number_is_named_with_the_layer(tmp_path):
    points = Points(13, 6, 1e30)
    module = mlp()
    module[1] = nn.Identity()
    with pytest.raises(DivergedError):
        estimator(module=module).fit(points, tmp_path)
    again = mlp()
    again[1] = nn.Identity()
    found = estimator(module=again).replay(points, tmp_path)
    assert (found.step, found.kind, found.layer) == (13, "activation", "3")
    assert found.steps[-1].fault and found.steps[-1].fault.rows == (6,)
    assert found.examples[0].row == 6 and found.examples[0].layer == "3"
    assert found.is_identical


def test_an_example_that_explodes_is_found_in_a_run_that_went_on(tmp_path):
    points = Points(25, 3, 1e4)
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    result = estimator(module=module).fit(points, tmp_path)
    assert result.losses[25] == max(result.losses[5:])
    found = estimator(module=module).replay(points, tmp_path)
    assert (found.step, found.kind, found.layer) == (25, "loss spike", "0")
    assert found.examples[0].row == 3
    assert found.examples[0].gradient_norm > 100 * found.examples[1].gradient_norm
    assert found.is_identical and found.began == 20


def test_a_gradient_that_is_no_number_is_told_from_an_activation(tmp_path):
    class Root(nn.Module):
        def forward(self, x):
            # The square root of 0 is sound, and its slope is not.
            return (x * (x.abs() < 1e3)).abs().sqrt() + 0 * x

    points = Points(4, 5, 0.0)
    module = nn.Sequential(nn.Linear(4, 1, bias=False), Root())
    with pytest.raises(DivergedError):
        estimator(module=module).fit(points, tmp_path)
    found = estimator(module=module).replay(points, tmp_path)
    assert (found.step, found.kind) == (4, "gradient")
    assert found.examples[0].row == 5


def test_a_decoder_is_replayed_from_its_seed_and_probed(config, source, tmp_path):
    planted = PlantedWeight("layers.1.down.weight", 2)
    with pytest.raises(DivergedError):
        train(config, source, tmp_path, callbacks=[planted])
    names = dict(open_session(config, source).module.named_parameters())
    assert planted.parameter in names
    # Without the fault the run does not diverge again, and says so.
    found = replay_run(config, source, tmp_path)
    assert found.is_identical and found.steps[-1].fault is None
    assert len(found.stability) == len(found.steps) == 4
    assert found.stability[0].loss_before == pytest.approx(found.steps[0].loss, rel=0.2)


def test_a_sound_run_has_nothing_to_replay(config, source, tmp_path):
    train(config, source, tmp_path)
    with pytest.raises(ConfigError, match="stands out"):
        replay_run(config, source, tmp_path)
    assert replay_run(config, source, tmp_path, step=11).step == 11
