"""The optimizers: each against its formula, and bit-equal after a resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from steelyard.errors import ConfigError
from steelyard.train import EstimatorConfig
from steelyard.train.checkpoint import load_checkpoint
from steelyard.train.estimator import Estimator
from steelyard.train.lamb import Lamb
from steelyard.train.optimizer import make_optimizers
from steelyard.train.schedule_free import ScheduleFree
from steelyard.train.weight_average import WeightAverage

CONFIG = EstimatorConfig(
    steps=9, batch_size=8, learning_rate=0.01, warmup_steps=2, checkpoint_every=4, threads=1
)


class Words(nn.Module):
    """An embedding, two maps and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table, self.first = nn.Embedding(11, 6), nn.Linear(6, 7)
        self.norm, self.second = nn.LayerNorm(7), nn.Linear(7, 6)
        self.head = nn.Linear(6, 11)

    def forward(self, words):
        return self.head(self.second(self.norm(self.first(self.table(words))).relu()))


class Copies:
    def batch(self, index):
        return torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(index))


def loss(module, words):
    return nn.functional.cross_entropy(module(words).flatten(0, 1), words.flatten())


def fit(directory, config, **options):
    return Estimator(Words(), loss, config, evaluate=lambda _: 0.0).fit(
        Copies(), directory, **options
    )


@pytest.mark.parametrize("optimizer", ["sgd", "lamb", "muon", "schedule-free"])
def test_an_optimizer_learns_and_resumes_with_the_same_bits(optimizer, tmp_path):
    config = replace(CONFIG, optimizer=optimizer, averages=(WeightAverage(kind="ema"),))
    whole = fit(tmp_path / "whole", config)

    def stop(progress):
        if progress.step == 6:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(tmp_path / "parts", config, on_step=stop)
    parts = fit(tmp_path / "parts", config)
    assert parts.losses == whole.losses and whole.losses[-1] < whole.losses[0]
    one, two = (load_checkpoint(item.checkpoint).tensors for item in (parts, whole))
    assert one.keys() == two.keys()
    timed = ("history.step_times_s", "history.cold")
    assert all(torch.equal(one[name], two[name]) for name in one if name not in timed)


def test_muon_turns_the_matrices_inside_alone():
    module = Words()
    muon, adamw = make_optimizers(module, replace(CONFIG, optimizer="muon"))
    assert isinstance(muon, torch.optim.Muon) and isinstance(adamw, torch.optim.AdamW)
    turned = [item for group in muon.param_groups for item in group["params"]]
    assert [id(item) for item in turned] == [id(module.first.weight), id(module.second.weight)]
    count = sum(len(group["params"]) for group in adamw.param_groups)
    assert count + 2 == len(list(module.parameters()))


def test_a_tied_head_leaves_the_last_map_to_muon(config):
    from steelyard.nn.transformer import build

    model = build(replace(config.architecture, tied_embeddings=True, vocab_size=60))
    muon = make_optimizers(model, replace(config, optimizer="muon"))[0]
    turned = {id(item) for group in muon.param_groups for item in group["params"]}
    assert len(turned) == 4 * len(model.layers) and id(model.embedding.weight) not in turned


def test_lamb_follows_its_formula():
    torch.manual_seed(0)
    matrix, vector = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))
    groups = [{"params": [matrix], "weight_decay": 0.1}, {"params": [vector], "weight_decay": 0.0}]
    lamb = Lamb(groups, lr=0.1, betas=(0.9, 0.99))
    first, second = np.zeros((2, 4, 3)), np.zeros((2, 3))
    for step in range(1, 4):
        gradients = torch.randn(4, 3), torch.randn(3)
        expected = []
        for weight, gradient, moments, decay in zip(
            (matrix, vector), gradients, (first, second), (0.1, 0.0), strict=True
        ):
            w, g = weight.detach().double().numpy(), gradient.double().numpy()
            moments[0] = 0.9 * moments[0] + 0.1 * g
            moments[1] = 0.99 * moments[1] + 0.01 * g**2
            up = moments[0] / (1 - 0.9**step)
            direction = up / (np.sqrt(moments[1] / (1 - 0.99**step)) + 1e-6) + decay * w
            scale = np.linalg.norm(w) / np.linalg.norm(direction) if w.ndim == 2 else 1
            expected.append(w - 0.1 * scale * direction)
            weight.grad = gradient
        lamb.step()
        np.testing.assert_allclose(matrix.detach(), expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(vector.detach(), expected[1], rtol=1e-5, atol=1e-6)


def test_schedule_free_evaluates_the_average_of_its_iterates():
    weight = nn.Parameter(torch.tensor([2.0, -1.0]))
    optimizer = ScheduleFree([{"params": [weight], "weight_decay": 0.0}], lr=0.1, betas=(0.9, 0.99))
    z = x = weight.detach().double().numpy().copy()
    second = np.zeros(2)
    for step in range(1, 6):
        y = 0.1 * z + 0.9 * x
        np.testing.assert_allclose(weight.detach(), y, rtol=1e-5)
        gradient = np.array([0.3 * step, y[0] * y[1]])
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        second = 0.99 * second + 0.01 * gradient**2
        z = z - 0.1 * gradient / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        x = (1 - 1 / step) * x + z / step
        np.testing.assert_allclose(optimizer.averages()[weight], x, rtol=1e-5)


def test_momentum_with_the_rate_outside_needs_no_correction():
    # v = m v + g, w -= lr v against v = m lr'/lr v + lr' g, w -= v, over a drop of the rate (Goyal
    # et al. 2017, arXiv 1706.02677, section 3); without the factor the two part.
    rates = [0.1] * 4 + [0.01] * 4
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    inside = {True: weight.detach().clone().numpy(), False: weight.detach().clone().numpy()}
    speeds = {True: np.zeros(2), False: np.zeros(2)}
    for step, rate in enumerate(rates):
        for corrected, speed in speeds.items():
            factor = rate / rates[max(0, step - 1)] if corrected else 1.0
            speeds[corrected] = 0.9 * factor * speed + rate * inside[corrected]
            inside[corrected] = inside[corrected] - speeds[corrected]
        weight.grad = weight.detach().clone()
        sgd.param_groups[0]["lr"] = rate
        sgd.step()
    np.testing.assert_allclose(weight.detach(), inside[True], rtol=1e-6)
    assert abs(inside[False] - inside[True]).max() > 1e-2


def test_impossible_optimizers_are_refused():
    for change in ({"momentum": 1.0}, {"optimizer": "schedule-free", "betas": (0.0, 0.9)}):
        with pytest.raises(ConfigError):
            replace(CONFIG, **change)
