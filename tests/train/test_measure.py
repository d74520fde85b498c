"""What callbacks measure, against brute force and against known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steelyard.errors import ConfigError
from steelyard.train import EstimatorConfig
from steelyard.train.callback import Callback
from steelyard.train.estimator import Estimator
from steelyard.train.measure import ExampleStatistics, GradientNoiseScale, UpdateSizes
from steelyard.train.measure.example_norms import ExampleNorms
from steelyard.train.measure.noise_estimate import NoiseHistory, unbiased_parts
from steelyard.train.trainer import train


class Attending(nn.Module):
    """Attention with a table that is also the head, and a norm per layer."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(9, 6), nn.Embedding(7, 6, padding_idx=2)
        self.norm, self.root = nn.LayerNorm(6), nn.RMSNorm(6)
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, words):
        hidden = self.table(words) + self.places(torch.arange(words.shape[1]).expand_as(words))
        parts = self.qkv(self.norm(hidden)).unflatten(-1, (3, 2, 3)).movedim(2, 0).transpose(2, 3)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        hidden = hidden + self.out(mixed)
        hidden = hidden + self.out(hidden)  # a map that is used twice
        return F.linear(self.root(hidden), self.table.weight)


def _images():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 6, (1, 3), padding=(0, 2), dilation=2, groups=2, bias=False),
        nn.Flatten(2),
        nn.Conv1d(6, 5, 3, padding=1),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


CASES = {
    "attention": (Attending, lambda: torch.randint(0, 9, (4, 7)), (4, 7)),
    "images": (_images, lambda: torch.randn(4, 3, 8, 8), (4,)),
    "wide": (lambda: nn.Linear(40, 50), lambda: torch.randn(4, 3, 40), (4, 3)),
    "flat": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3)),
        lambda: torch.randn(4, 5),
        (4,),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_norms_by_example_equal_brute_force(case):
    torch.manual_seed(0)
    make, draw, shape = CASES[case]
    module, x = make(), draw()
    logits = module(x)
    y = torch.randint(0, logits.shape[-1], shape)
    parameters = dict(module.named_parameters())

    def loss(x, y):
        return F.cross_entropy(module(x).flatten(0, -2), y.flatten())

    norms = ExampleNorms(parameters)
    norms.start(4)
    with norms:
        whole = loss(x, y)
    whole.backward()
    found = norms.squared()
    assert found.keys() == parameters.keys()
    for index in range(4):
        module.zero_grad()
        loss(x[index : index + 1], y[index : index + 1]).backward()
        for name, parameter in parameters.items():
            expected = parameter.grad.double().square().sum().item()
            assert 16 * found[name][index].item() == pytest.approx(expected, rel=1e-5, abs=1e-12), (
                name
            )


def test_what_cannot_be_told_apart_is_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.PReLU())
    norms = ExampleNorms(dict(module.named_parameters()))
    norms.start(2)
    with norms:
        out = module(torch.randn(2, 4))
    out.sum().backward()
    with pytest.raises(ConfigError, match=r"not known for 1\.weight"):
        norms.squared()
    norms.start(2)
    with norms:
        out = module[0](torch.randn(2, 3, 4).flatten(0, 1))
    with pytest.raises(ConfigError, match=r"passed through a layer as \(6, 4\)"):
        out.sum().backward()


class Quadratic:
    """Gradients of known mean and covariance, whatever the weights: the loss is linear."""

    def __init__(self, seed=0):
        self.mean = torch.linspace(0.5, 1.5, 20)
        self.spread = torch.linspace(1, 3, 20)
        self.truth = float(self.spread.square().sum() / self.mean.square().sum())
        self.seed = seed
        self.module = nn.Linear(20, 1, bias=False)

    def batch(self, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        return self.mean + self.spread * torch.randn(16, 20, generator=generator)

    @staticmethod
    def loss(module, batch):
        return module(batch).mean()


STILL = EstimatorConfig(
    steps=200, batch_size=16, accumulation=2, learning_rate=1e-3, threads=1, clip=0.01
)


@pytest.mark.parametrize("source", ["accumulation", "per-example"])
def test_a_known_noise_scale_is_found_within_5_percent(source, tmp_path):
    # Two micro-batches of 8, as two processes would have them, over 200 steps.
    made = Quadratic()
    gauge = GradientNoiseScale(source, every=1, decay=0.9999)
    Estimator(made.module, made.loss, STILL, callbacks=[gauge]).fit(made, tmp_path)
    assert gauge.estimate.value == pytest.approx(made.truth, rel=0.05)
    assert gauge.estimate.measured == 200
    assert gauge.per_layer == {"weight": pytest.approx(gauge.estimate.value)}


def test_the_estimate_is_unbiased_and_its_interval_holds():
    rng = np.random.default_rng(0)
    mean, spread = np.linspace(0.5, 1.5, 20), np.linspace(1, 3, 20)
    truth = (spread**2).sum() / (mean**2).sum()
    draws = mean + spread / np.sqrt(8) * rng.standard_normal((1000, 64, 2, 20))
    small, big = (draws**2).sum(-1).mean(-1), (draws.mean(2) ** 2).sum(-1)
    signals, noises = unbiased_parts(small, big, 8, 16)
    assert signals.mean() == pytest.approx((mean**2).sum(), rel=0.01)
    assert noises.mean() == pytest.approx((spread**2).sum(), rel=0.01)
    held = 0
    for row in range(300):
        history = NoiseHistory(0.999)
        for step in range(64):
            history.add(step, signals[row, step : step + 1], noises[row, step : step + 1])
        found = history.estimate()
        held += found.low <= truth <= found.high
    assert 0.7 <= held / 300 <= 0.9


def test_a_gradient_lost_in_noise_gives_a_lower_bound():
    history = NoiseHistory(0.99)
    rng = np.random.default_rng(1)
    for step in range(40):
        history.add(step, -0.1 + rng.standard_normal(1), np.array([5.0]))
    history.add(40, np.array([math.nan]), np.array([1.0]))
    found = history.estimate()
    assert found.is_lower_bound and found.high == math.inf and found.value > 5
    assert found.skipped == 1 and found.measured == 40


@pytest.mark.parametrize("kind", ["accumulation", "per-example", "norm-layers"])
def test_measuring_changes_no_bit_and_survives_a_kill(kind, config, source, tmp_path):
    config = replace(config, accumulation=4, checkpoint_every=5)
    plain = train(config, source, tmp_path / "plain")

    def gauges():
        return [GradientNoiseScale(kind, every=2), UpdateSizes(every=3)]

    whole = train(config, source, tmp_path / "whole", callbacks=gauges())
    assert whole.losses == plain.losses and whole.eval_losses == plain.eval_losses

    def stop(progress):
        if progress.step == 7:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(config, source, tmp_path / "parts", callbacks=gauges(), on_step=stop)
    parts = train(config, source, tmp_path / "parts", callbacks=gauges())
    assert parts.reports == whole.reports
    noise = whole.reports["noise-scale" + ("" if kind == "accumulation" else f"-{kind}")]
    assert noise["measured"] == 6 and len(noise["layers"]) == (5 if kind == "norm-layers" else 14)
    measured = {item.quantity: item.value for item in whole.measurements()}
    assert noise["is_lower_bound"] or measured["train.noise_scale"] == noise["value"]
    sizes = whole.reports["update-sizes"]
    assert [step for step, _ in sizes["curve"]] == [0, 3, 6, 9]
    assert 1e-5 < sizes["curve"][-1][1] < 1


def test_sources_agree_and_adam_sees_other_directions(config, source, tmp_path):
    config = replace(config, steps=24, batch_size=16, accumulation=4, cooldown_steps=0)
    found = {}
    for name, options in {
        "micro": {},
        "examples": {"source": "per-example"},
        "adam": {"precondition": "adam"},
    }.items():
        gauge = GradientNoiseScale(**options, every=1, decay=0.999)
        train(config, source, tmp_path / name, callbacks=[gauge])
        found[name] = gauge.estimate
    assert found["micro"].value == pytest.approx(found["examples"].value, rel=0.3)
    assert found["adam"].value != found["micro"].value and found["adam"].skipped == 1


def test_impossible_measurements_are_refused(config, source, tmp_path):
    def run(directory, *gauges, **change):
        train(replace(config, **change), source, tmp_path / directory, callbacks=gauges)

    with pytest.raises(ConfigError, match="two batch sizes"):
        run("one", GradientNoiseScale())
    with pytest.raises(ConfigError, match="batch_size is 1"):
        run("single", GradientNoiseScale("per-example"), batch_size=1)
    with pytest.raises(ConfigError, match="callbacks are named"):
        run("twice", UpdateSizes(), UpdateSizes())
    with pytest.raises(ConfigError, match="no layer, root or group norm"):
        made = Quadratic()
        Estimator(made.module, made.loss, STILL, callbacks=[GradientNoiseScale("norm-layers")]).fit(
            made, tmp_path / "none"
        )
    with pytest.raises(ConfigError, match="precondition"):
        GradientNoiseScale("per-example", precondition="adam")


def test_forgetting_and_error_norms_follow_their_definitions(tmp_path):
    answers = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])  # visits by example

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(2))
            self.visit = -1

        def forward(self, labels):
            self.visit += 1
            right = answers[:, self.visit].bool()
            shown = torch.where(right, labels, 1 - labels)
            return 2.0 * F.one_hot(shown, 2) + 0 * self.bias

    class Source:
        def batch(self, index):
            return {"ids": torch.arange(3), "labels": torch.tensor([0, 1, 1])}

    gauge = ExampleStatistics(
        4, ids=lambda batch: batch["ids"], labels=lambda batch: batch["labels"], scored_steps=2
    )
    config = EstimatorConfig(steps=4, batch_size=3, learning_rate=1e-3, checkpoint_every=1)
    result = Estimator(
        Fixed(),
        lambda module, batch: F.cross_entropy(module(batch["labels"]), batch["labels"]),
        config,
        callbacks=[gauge],
    ).fit(Source(), tmp_path)
    assert gauge.forgotten.tolist() == [1, 0, 0, 0] and gauge.seen.tolist() == [4, 4, 4, 0]
    assert gauge.learned.tolist() == [True, False, True, False]
    sure = 1 / (1 + math.exp(2))
    expected = [math.sqrt(2) * sure, math.sqrt(2) * (1 - sure), math.sqrt(2) * sure]
    assert gauge.el2n[:3].tolist() == pytest.approx(expected, rel=1e-4)
    assert result.reports["examples"]["never_forgotten"] == 1
    copy = ExampleStatistics(4, ids=lambda _: _, labels=lambda _: _)
    copy.restore(gauge.tensors())
    assert torch.equal(copy.forgotten, gauge.forgotten)


def test_hooks_come_in_order_with_the_gradients_of_a_micro_batch_alone(tmp_path):
    class Log(Callback):
        name = "log"

        def __init__(self):
            self.seen, self.parts = [], []

        def wants_micro_batches(self, step):
            return step == 1

        def after_backward(self, state):
            self.seen.append(("backward", state.step, state.micro_batch))
            self.parts.append(state.module.weight.grad.clone())

        def before_update(self, state):
            self.seen.append(("before", state.step))
            self.total = state.module.weight.grad.clone()

        def after_update(self, state):
            self.seen.append(("after", state.step))

    made, log = Quadratic(), Log()
    config = replace(STILL, steps=2, accumulation=4)
    Estimator(made.module, made.loss, config, callbacks=[log]).fit(made, tmp_path)
    assert log.seen == [
        ("before", 0),
        ("after", 0),
        *(("backward", 1, number) for number in range(4)),
        ("before", 1),
        ("after", 1),
    ]
    expected = [part.mean(0, keepdim=True) / 4 for part in made.batch(1).split(4)]
    for part, mean in zip(log.parts, expected, strict=True):
        torch.testing.assert_close(part, mean)
    torch.testing.assert_close(log.total, made.batch(1).mean(0, keepdim=True))
