"""Large minibatches by SGD: workers, momentum and the scaling rule at equal epochs.

Rules and numbers of checks are those of Goyal et al. 2017 (arXiv 1706.02677). Workers are processes
over gloo; their gradient is held against one process's on the same samples, and of the time that
summing takes over an emulated link of 1 Gbit/s the share is measured that the backward pass hides.
The scaling rule is tried on generated images with a small convolution network, at equal epochs,
with batch statistics over 32 images whatever the batch is (micro-batches are virtual workers): the
base batch, and eight times it with a gradual warm-up, without, with the root rule, and at the
base's rate.
"""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.common import Check
from benchmarks.train._gradient_rank import Points, classify, network
from benchmarks.train._workers import gradients, sums
from torch import nn

from steelyard.data.images import GeneratedImages, ImageBatches
from steelyard.train import EstimatorConfig
from steelyard.train.estimator import Estimator
from steelyard.train.optimizer import make_optimizers
from steelyard.train.scale_recipe import scale_recipe

PAPER = ["56-large-minibatch-sgd"]

_EXAMPLES, _EPOCHS = 2048, 12
_IMAGES = GeneratedImages(channels=1, size=12, examples=_EXAMPLES, heldout=4096)
_BASE = EstimatorConfig(
    steps=_EPOCHS * _EXAMPLES // 32,
    batch_size=32,
    optimizer="sgd",
    learning_rate=0.1,
    weight_decay=1e-4,
    cooldown_steps=_EPOCHS * _EXAMPLES // 64,
    schedule="linear",
    clip=0.0,
    threads=1,
)


def run(quick: bool) -> list[Check]:
    """Check workers and their sums, the forms of momentum, and the rules at equal epochs."""
    return [*gradients(), *sums(quick), *_momentum(), *_rules(2 if quick else 8)]


def _momentum() -> list[Check]:
    """Run both forms of momentum over a drop of the rate, and the inner one without correction."""
    config = replace(_BASE, clip=0.0, weight_decay=0.0)
    module = network().double()
    optimizer = make_optimizers(module, config)[0]
    for group in optimizer.param_groups:
        group["nesterov"] = False  # the paper's equations 9 and 10 are without
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    inner = {name: (weights.clone(), torch.zeros_like(weights)) for name in ("corrected", "not")}
    rates = [0.1] * 20 + [0.01] * 20
    probe = network().double()
    for step, rate in enumerate(rates):
        x, y = Points().batch(step)
        batch = (x.double(), y)
        for name, (place, speed) in inner.items():
            torch.nn.utils.vector_to_parameters(place, probe.parameters())
            parts = torch.autograd.grad(classify(probe, batch), list(probe.parameters()))
            factor = rate / rates[max(0, step - 1)] if name == "corrected" else 1.0
            speed = 0.9 * factor * speed + rate * torch.cat([part.flatten() for part in parts])
            inner[name] = (place - speed, speed)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        classify(module, batch).backward()
        optimizer.step()
    ours = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    errors = {
        name: float((ours - place).norm() / ours.norm()) for name, (place, _) in inner.items()
    }
    return [
        Check(
            "3 form with the rate inside and correction, against ours",
            errors["corrected"],
            1e-6,
            "lower",
        ),
        Check("3 the same without correction", errors["not"], 1e-3, "higher"),
    ]


def _convolutions(seed: int) -> nn.Module:
    """Make a small network with batch norms."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def _rules(seeds: int) -> list[Check]:
    """Train the arms at equal epochs and compare their errors."""
    warmup = 3 * _EXAMPLES
    large = scale_recipe(_BASE, 256, rule="linear", warmup_examples=warmup)
    arms: dict[str, EstimatorConfig] = {
        "base": _BASE,
        "gradual": large,
        "no warm-up": replace(large, warmup_steps=0, warmup_from=0.0),
        "root": scale_recipe(_BASE, 256, rule="sqrt", warmup_examples=warmup),
        "unscaled": scale_recipe(_BASE, 256, rule="none"),
    }
    errors = {
        name: [_error(config, seed) for seed in range(seeds)] for name, config in arms.items()
    }
    means = {name: statistics.mean(found) for name, found in errors.items()}
    for name, found in errors.items():
        spread = statistics.stdev(found) / len(found) ** 0.5
        print(
            f"  {name:<11} error {100 * means[name]:5.2f} +- {100 * spread:.2f} % of {seeds} seeds"
        )
    noise = max(statistics.stdev(found) for found in errors.values()) * (2 / seeds) ** 0.5

    def gap(one: str, other: str) -> float:
        return means[one] - means[other]

    return [
        Check(
            "1 gradual less base, in standard errors", gap("gradual", "base") / noise, 2.0, "lower"
        ),
        Check("1 unscaled less gradual, error", gap("unscaled", "gradual"), 0.0, "higher"),
        Check("1 unscaled less root, error", gap("unscaled", "root"), 0.0, "higher"),
        Check("1 root less gradual, error", gap("root", "gradual"), 0.0, "higher"),
        Check("1 no warm-up less gradual, error", gap("no warm-up", "gradual"), 0.0, "higher"),
    ]


def _wrong_share(module: nn.Module) -> float:
    """Return the share of held-out images that are classified wrongly."""
    images, classes = map(torch.from_numpy, _IMAGES.held)
    return float((module(images).argmax(1) != classes).float().mean())


def _error(config: EstimatorConfig, seed: int) -> float:
    """Train once and return the held-out error."""
    images = ImageBatches(_IMAGES, config.batch_size, seed)
    with tempfile.TemporaryDirectory() as folder:
        estimator = Estimator(
            _convolutions(seed), classify, replace(config, seed=seed), evaluate=_wrong_share
        )
        found = estimator.fit(images, Path(folder)).eval_loss
    assert found is not None
    return found
